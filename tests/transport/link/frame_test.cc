#include "transport/link/frame.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "proto/frame.pb.h"

namespace strata {
namespace {

Frame ExampleFrame() {
  wire::Step step;
  step.set_step_id(42);
  step.add_tokens(1);
  step.add_tokens(2);
  return MakeFrame(FrameType::kStep, step, Payload::Own(std::vector<float>{1, 2, 3, 4}));
}

std::string Encode(const Frame& frame) {
  return EncodeFramePrefixAndHeader(frame) + std::string(frame.payload.bytes());
}

std::string ExampleBytes() { return Encode(ExampleFrame()); }

absl::StatusOr<Frame> Decode(std::string bytes) {
  return DecodeFrame(Payload::Own(std::move(bytes)));
}

TEST(FrameTest, RoundTripKeepsTypeHeaderAndPayload) {
  for (FrameType type : {FrameType::kHello, FrameType::kCredit, FrameType::kClose, FrameType::kStep,
                         FrameType::kResult, FrameType::kError}) {
    Frame frame = ExampleFrame();
    frame.type = type;
    const auto decoded = Decode(Encode(frame));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->type, type);
    EXPECT_EQ(decoded->header, frame.header);
    EXPECT_EQ(decoded->payload.bytes(), frame.payload.bytes());
  }
}

TEST(FrameTest, LayoutIsTheOneDocumented) {
  Frame frame;
  frame.type = FrameType::kResult;
  frame.header = "hd";
  frame.payload = Payload::Own(std::string("abc"));
  const std::string bytes = Encode(frame);
  ASSERT_EQ(bytes.size(), kFramePrefixBytes + 2 + 3);
  EXPECT_EQ(bytes.substr(0, 4), "STRF");
  EXPECT_EQ(bytes.substr(4, 8), std::string("\1\5\0\0\2\0\0\0", 8));
  EXPECT_EQ(bytes.substr(16, 8), std::string("\3\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(bytes.substr(24), "hdabc");
  // CRC-32C of "STRF\1\5\0\0\2\0\0\0hd", computed elsewhere.
  const auto prefix = DecodeFramePrefix(bytes);
  ASSERT_TRUE(prefix.ok());
  EXPECT_EQ(prefix->crc, 0xc92a3e31u);
}

TEST(FrameTest, EmptyHeaderAndPayloadAreAFrame) {
  const auto decoded = Decode(Encode(Frame()));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_TRUE(decoded->header.empty());
  EXPECT_TRUE(decoded->payload.empty());
}

TEST(FrameTest, EveryTruncationIsInvalid) {
  const std::string bytes = ExampleBytes();
  for (size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_TRUE(absl::IsInvalidArgument(Decode(bytes.substr(0, n)).status())) << n;
  }
}

TEST(FrameTest, ATruncatedPrefixAsksForMore) {
  EXPECT_TRUE(absl::IsOutOfRange(DecodeFramePrefix("STRF").status()));
  EXPECT_TRUE(absl::IsOutOfRange(DecodeFramePrefix("").status()));
}

TEST(FrameTest, BytesAfterAFrameAreInvalid) {
  EXPECT_TRUE(absl::IsInvalidArgument(Decode(ExampleBytes() + "x").status()));
}

TEST(FrameTest, EveryBitOfPrefixAndHeaderCounts) {
  const std::string bytes = ExampleBytes();
  const size_t front = bytes.size() - ExampleFrame().payload.size();
  for (size_t bit = 0; bit < front * 8; ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    EXPECT_TRUE(absl::IsInvalidArgument(Decode(flipped).status())) << "bit " << bit;
  }
}

TEST(FrameTest, ReservedBitsMustBeZero) {
  std::string bytes = ExampleBytes();
  bytes[6] = 1;
  const absl::Status status = DecodeFramePrefix(bytes).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_NE(status.message().find("reserved"), absl::string_view::npos) << status;
}

TEST(FrameTest, ForeignBytesAreShown) {
  const absl::Status status = Decode("GET / HTTP/1.1\r\nHost: x\r\n\r\n").status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_NE(status.message().find("GET "), absl::string_view::npos) << status;
}

TEST(FrameTest, UnknownTypesAndLayoutsAreInvalid) {
  std::string bytes = ExampleBytes();
  bytes[5] = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeFramePrefix(bytes).status()));
  bytes[5] = 7;
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeFramePrefix(bytes).status()));
  bytes = ExampleBytes();
  bytes[4] = 2;
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeFramePrefix(bytes).status()));
}

TEST(FrameTest, AbsurdSizesAreInvalidBeforeAnythingIsAllocated) {
  std::string bytes = ExampleBytes();
  for (int i = 8; i < 12; ++i) bytes[i] = '\xff';
  EXPECT_TRUE(absl::IsInvalidArgument(Decode(bytes).status()));
  bytes = ExampleBytes();
  for (int i = 16; i < 24; ++i) bytes[i] = '\xff';
  EXPECT_TRUE(absl::IsInvalidArgument(Decode(bytes).status()));
  // Within the bound, but the bytes are missing.
  bytes = ExampleBytes();
  bytes[18] = '\x10';
  EXPECT_TRUE(absl::IsInvalidArgument(Decode(bytes).status()));
}

TEST(FrameTest, AnAlignedPayloadIsNotCopied) {
  Frame frame;
  frame.header = "1234";
  frame.payload = Payload::Own(std::vector<float>{1, 2, 3});
  const Payload bytes = Payload::Own(Encode(frame));
  const auto decoded = DecodeFrame(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->payload.data(), bytes.data() + kFramePrefixBytes + 4);
  EXPECT_EQ(decoded->payload.floats()[2], 3);
}

TEST(FrameTest, AnUnalignedPayloadIsMoved) {
  Frame frame;
  frame.header = "123";
  frame.payload = Payload::Own(std::vector<float>{1, 2, 3});
  const Payload bytes = Payload::Own(Encode(frame));
  const auto decoded = DecodeFrame(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_NE(decoded->payload.data(), bytes.data() + kFramePrefixBytes + 3);
  EXPECT_EQ(decoded->payload.floats()[2], 3);
}

TEST(FrameTest, PiecesOfAnySizeMakeTheSameFrame) {
  const std::string bytes = ExampleBytes();
  for (size_t piece = 1; piece <= bytes.size(); ++piece) {
    auto owner = std::make_shared<std::string>(bytes);
    std::vector<absl::string_view> parts = {""};
    for (size_t i = 0; i < bytes.size(); i += piece) {
      parts.push_back(absl::string_view(*owner).substr(i, piece));
      parts.push_back("");
    }
    const auto decoded = DecodeFrame(parts, owner);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->header, ExampleFrame().header);
    EXPECT_EQ(decoded->payload.floats()[3], 4);
  }
}

TEST(FrameTest, APayloadOutlivesTheBytesItCameFrom) {
  auto decoded = Decode(ExampleBytes());
  ASSERT_TRUE(decoded.ok());
  Payload payload = std::move(decoded->payload);
  decoded = absl::UnknownError("gone");
  EXPECT_EQ(payload.floats()[3], 4);
}

TEST(FrameTest, AHeaderThatIsNoMessageIsInvalid) {
  Frame frame;
  frame.header = "\xff\xff\xff";
  wire::Step step;
  EXPECT_TRUE(absl::IsInvalidArgument(ParseHeader(frame, &step)));
}

TEST(PayloadTest, CopiesShareTheBytes) {
  const Payload a = Payload::Own(std::vector<float>{1, 2});
  const Payload b = a;
  EXPECT_EQ(a.data(), b.data());
  EXPECT_EQ(b.size(), 8u);
}

TEST(PayloadTest, TheOwnerLivesAsLongAsTheLastCopy) {
  auto owner = std::make_shared<int>(0);
  const std::weak_ptr<int> weak = owner;
  Payload a = Payload::Share(owner, owner.get(), sizeof(int));
  owner.reset();
  Payload b = a;
  a = Payload();
  EXPECT_FALSE(weak.expired());
  b = Payload();
  EXPECT_TRUE(weak.expired());
}

}  // namespace
}  // namespace strata
