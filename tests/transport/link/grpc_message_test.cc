// Splitting frames into messages of a gRPC call, and assembling them again.
#include "transport/link/grpc_message.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/raw_message.h"
#include "tests/transport/link/step_frame.h"

namespace strata {
namespace {

using absl_testing::StatusIs;
using ::strata::testing::BytesOf;
using ::strata::testing::MessageOf;
using ::testing::HasSubstr;

std::vector<std::string> MessagesOf(Frame frame) {
  std::vector<std::string> messages;
  GrpcOutgoing outgoing(std::move(frame));
  for (grpc::ByteBuffer message; outgoing.Next(&message);) messages.push_back(BytesOf(message));
  return messages;
}

TEST(GrpcMessage, PayloadsOfAnySizeComeBack) {
  for (const size_t size : {size_t{0}, size_t{4}, size_t{kGrpcPieceBytes},
                            size_t{kGrpcPieceBytes + 4}, size_t{3 * kGrpcPieceBytes}}) {
    const std::string payload = PlacedBytes(size);
    const std::vector<std::string> messages = MessagesOf(Step(7, Payload::Own(payload)));
    EXPECT_EQ(messages.size(), std::max<size_t>(1, (size + kGrpcPieceBytes - 1) / kGrpcPieceBytes));
    GrpcIncoming incoming;
    for (size_t i = 0; i < messages.size(); ++i) {
      EXPECT_LE(messages[i].size(), kGrpcPieceBytes + 1000);
      const auto frame = incoming.Take(MessageOf(messages[i]));
      ASSERT_TRUE(frame.ok()) << frame.status();
      ASSERT_EQ(frame->has_value(), i + 1 == messages.size());
      if (!frame->has_value()) continue;
      EXPECT_EQ((*frame)->header, Step(7).header);
      EXPECT_EQ((*frame)->payload.bytes(), payload);
    }
  }
}

TEST(GrpcMessage, APayloadIsSentFromWhereItLies) {
  const Payload payload = Payload::Own(PlacedBytes(2 * kGrpcPieceBytes));
  GrpcOutgoing outgoing(Step(1, payload));
  grpc::ByteBuffer message;
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(outgoing.Next(&message) && outgoing.Next(&message));
  ASSERT_TRUE(message.Dump(&slices).ok());
  ASSERT_EQ(slices.size(), 1u);
  EXPECT_EQ(reinterpret_cast<const char*>(slices[0].begin()), payload.data() + kGrpcPieceBytes);
}

TEST(GrpcMessage, APieceOfAnotherSizeIsRefusedAndTheNextMessageBeginsAFrame) {
  const std::vector<std::string> right =
      MessagesOf(Step(1, Payload::Own(PlacedBytes(2 * kGrpcPieceBytes + 8))));
  ASSERT_EQ(right.size(), 3u);
  for (size_t wrong = 0; wrong < 3; ++wrong) {
    for (const int change : {-1, 1}) {
      GrpcIncoming incoming;
      for (size_t i = 0; i < wrong; ++i) ASSERT_TRUE(incoming.Take(MessageOf(right[i])).ok());
      std::string bytes = right[wrong];
      bytes.resize(bytes.size() + change);
      EXPECT_THAT(incoming.Take(MessageOf(bytes)),
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("next message has")));
      const auto next = incoming.Take(MessageOf(MessagesOf(Step(2))[0]));
      ASSERT_TRUE(next.ok()) << next.status();
      EXPECT_TRUE(next->has_value());
    }
  }
}

TEST(GrpcMessage, InvalidFramesAreRefused) {
  for (const std::string& bytes : {std::string(), std::string("STRF"), std::string(1000, '\xff')}) {
    GrpcIncoming incoming;
    EXPECT_THAT(incoming.Take(MessageOf(bytes)), StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

}  // namespace
}  // namespace strata
