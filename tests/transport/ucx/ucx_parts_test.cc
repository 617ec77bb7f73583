// The parts of links over UCX that need no link: checksums, tickets, buffers, addresses.
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"
#include "tests/support/ucx_messages.h"
#include "tests/transport/link/step_frame.h"
#include "transport/ucx/ucx_address.h"
#include "transport/ucx/ucx_buffers.h"
#include "transport/ucx/ucx_message.h"
#include "transport/ucx/ucx_seal.h"
#include "transport/ucx/ucx_tickets.h"

namespace strata {
namespace {

using absl_testing::StatusIs;
using ::strata::testing::MakeTestFolder;
using ::strata::testing::UcxHeaderOf;
using ::strata::testing::UcxMessage;
using ::strata::testing::UcxMessagesOf;

const std::string& Key() {
  static const auto* const key = new std::string(kUcxKeyBytes, 'k');
  return *key;
}

UcxSum SumOf(UcxSeal* seal, uint8_t kind, const std::vector<absl::string_view>& parts) {
  return seal->Next(kind, parts);
}

// --- messages

// The messages of a frame with that payload.
struct Messages {
  explicit Messages(size_t payload_bytes, size_t header_bytes = 10)
      : payload(PlacedBytes(payload_bytes)) {
    Frame frame;
    frame.header = std::string(header_bytes, 'h');
    frame.payload = Payload::Own(payload);
    all = UcxMessagesOf(std::move(frame));
  }

  std::string payload;
  std::vector<UcxMessage> all;
};

TEST(UcxMessage, PayloadsOfAnySizeComeBack) {
  const auto buffers = UcxBuffers::Make();
  for (const size_t header : {size_t{10}, 2 * kUcxShortHeaderMax}) {
    for (const size_t size : {size_t{0}, size_t{4}, size_t{kUcxPieceBytes},
                              size_t{kUcxPieceBytes + 4}, size_t{3 * kUcxPieceBytes}}) {
      const Messages sent(size, header);
      UcxJoiner joiner;
      uint64_t rest = 0;
      for (size_t i = 0; i < sent.all.size(); ++i) {
        const UcxMessage& message = sent.all[i];
        EXPECT_TRUE(
            CheckMessageSize(message.kind, UcxHeaderOf(message.front), message.data.size(), &rest)
                .ok());
        const auto frame =
            joiner.Take(message.kind, message.front, Payload::Own(message.data), buffers.get());
        ASSERT_TRUE(frame.ok()) << frame.status();
        ASSERT_EQ(frame->has_value(), i + 1 == sent.all.size());
        if (!frame->has_value()) continue;
        EXPECT_EQ((*frame)->header, std::string(header, 'h'));
        EXPECT_EQ((*frame)->payload.bytes(), sent.payload);
      }
      EXPECT_EQ(rest, 0u);
    }
  }
}

TEST(UcxMessage, OnlyTheNextPieceIsAccepted) {
  const Messages sent(2 * kUcxPieceBytes + 8);
  uint64_t rest = 0;
  const auto more = [&](uint64_t size) {
    return CheckMessageSize(UcxKind::kMore, UcxHeaderOf(""), size, &rest).ok();
  };
  EXPECT_FALSE(more(0) || more(8) || more(kUcxPieceBytes));
  const auto first = [&] {
    return CheckMessageSize(sent.all[0].kind, UcxHeaderOf(sent.all[0].front), kUcxPieceBytes,
                            &rest);
  };
  EXPECT_TRUE(first().ok());
  EXPECT_THAT(first(), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_FALSE(more(0) || more(8) || more(kUcxPieceBytes + 1));
  EXPECT_TRUE(CheckMessageSize(UcxKind::kPing, UcxHeaderOf(""), 0, &rest).ok());
  EXPECT_TRUE(more(kUcxPieceBytes));
  EXPECT_FALSE(more(kUcxPieceBytes));
  EXPECT_TRUE(more(8));
  EXPECT_FALSE(more(8));
}

// As after a piece with a wrong checksum.
TEST(UcxMessage, PiecesWithoutAPayloadAreRefused) {
  const auto buffers = UcxBuffers::Make();
  const Messages sent(2 * kUcxPieceBytes + 8);
  const auto take = [&](UcxJoiner* joiner, size_t i) {
    const UcxMessage& message = sent.all[i];
    return joiner->Take(message.kind, message.front, Payload::Own(message.data), buffers.get());
  };
  const auto is_refused = StatusIs(absl::StatusCode::kInvalidArgument);
  UcxJoiner joiner;
  EXPECT_THAT(take(&joiner, 1), is_refused);
  // Without the last piece, but with one in the middle twice.
  ASSERT_TRUE(take(&joiner, 0).ok());
  ASSERT_TRUE(take(&joiner, 1).ok());
  EXPECT_THAT(take(&joiner, 1), is_refused);
  joiner.Forget();
  EXPECT_THAT(take(&joiner, 2), is_refused);
}

// --- seal

TEST(UcxSeal, BothEndsGetTheSame) {
  UcxSeal out(Key(), UcxSeal::Direction::kFromDialler);
  UcxSeal in(Key(), UcxSeal::Direction::kFromDialler);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(SumOf(&out, 2, {"a", "bc"}), SumOf(&in, 2, {"a", "bc"}));
}

TEST(UcxSeal, AnythingElseGivesAnother) {
  std::set<UcxSum> sums;
  const auto first = [](const std::string& key, UcxSeal::Direction direction, uint8_t kind,
                        const std::vector<absl::string_view>& parts) {
    UcxSeal seal(key, direction);
    return SumOf(&seal, kind, parts);
  };
  const auto dialler = UcxSeal::Direction::kFromDialler;
  sums.insert(first(Key(), dialler, 2, {"a", "bc"}));
  sums.insert(first(Key(), UcxSeal::Direction::kFromAcceptor, 2, {"a", "bc"}));
  sums.insert(first(Key(), dialler, 3, {"a", "bc"}));
  sums.insert(first(Key(), dialler, 2, {"a", "bd"}));
  sums.insert(first(Key(), dialler, 2, {"b", "bc"}));
  sums.insert(first(Key(), dialler, 2, {"a"}));
  sums.insert(first(std::string(kUcxKeyBytes, 'l'), dialler, 2, {"a", "bc"}));
  UcxSeal later(Key(), dialler);
  SumOf(&later, 2, {"a", "bc"});
  sums.insert(SumOf(&later, 2, {"a", "bc"}));
  EXPECT_EQ(sums.size(), 8u);
}

TEST(UcxSecrets, AreNeverTheSameAndCompareByTheirBytes) {
  const auto a = UcxSecret(32);
  const auto b = UcxSecret(32);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->size(), 32u);
  EXPECT_FALSE(UcxSecretsEqual(*a, *b));
  EXPECT_TRUE(UcxSecretsEqual(*a, std::string(*a)));
  EXPECT_FALSE(UcxSecretsEqual(*a, a->substr(1)));
}

// --- tickets

class UcxTicketsTest : public ::testing::Test {
 protected:
  absl::StatusOr<UcxTicket> Give() {
    return tickets_.Give(
        "192.0.2.1:80", {.ticket_timeout_ms = 1000},
        [](const wire::Hello&) -> absl::StatusOr<AcceptedLink> {
          return absl::AbortedError("the one that was given");
        },
        now_);
  }
  UcxTickets tickets_;
  UcxTickets::Time now_;
};

TEST_F(UcxTicketsTest, AreTakenOnceWithTheirOptions) {
  const auto ticket = Give();
  ASSERT_TRUE(ticket.ok());
  EXPECT_EQ(ticket->address, "192.0.2.1:80");
  auto taken = tickets_.Take(ticket->token, now_);
  ASSERT_TRUE(taken.ok());
  EXPECT_EQ(taken->key, ticket->key);
  EXPECT_THAT(std::move(taken->accept)(wire::Hello()), StatusIs(absl::StatusCode::kAborted));
  EXPECT_THAT(tickets_.Take(ticket->token, now_), StatusIs(absl::StatusCode::kUnauthenticated));
}

TEST_F(UcxTicketsTest, ExpireAndAreUsedUpByATryAfterThat) {
  const auto ticket = Give();
  ASSERT_TRUE(ticket.ok());
  EXPECT_THAT(tickets_.Take(ticket->token, now_ + std::chrono::milliseconds(1000)),
              StatusIs(absl::StatusCode::kUnauthenticated));
  EXPECT_THAT(tickets_.Take(ticket->token, now_), StatusIs(absl::StatusCode::kUnauthenticated));
}

TEST_F(UcxTicketsTest, AreBoundedAndOldOnesMakeRoom) {
  for (size_t i = 0; i < kUcxTicketsMax; ++i) ASSERT_TRUE(Give().ok());
  EXPECT_THAT(Give(), StatusIs(absl::StatusCode::kResourceExhausted));
  now_ += std::chrono::milliseconds(1000);
  EXPECT_TRUE(Give().ok());
}

// --- buffers

TEST(UcxBuffers, AreAlignedAndUsedAgain) {
  const auto buffers = UcxBuffers::Make();
  auto first = buffers->Get(5000);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first.get()) % kUcxBufferAlign, 0u);
  std::memset(first.get(), 7, 5000);
  char* const bytes = first.get();
  auto second = buffers->Get(5000);
  EXPECT_NE(second.get(), bytes);
  first.reset();
  EXPECT_EQ(buffers->Get(5000).get(), bytes);
}

TEST(UcxBuffers, MayBeGivenBackAfterTheirMaker) {
  auto buffers = UcxBuffers::Make();
  auto bytes = buffers->Get(100);
  buffers.reset();
  bytes.get()[99] = 1;  // still there; the sanitizers look at the rest
}

// --- addresses

TEST(UcxAddress, IsReadAndWritten) {
  for (const char* text : {"192.0.2.1:80", "[2001:db8::1]:65535"}) {
    const auto address = ParseUcxAddress(text);
    ASSERT_TRUE(address.ok()) << text;
    EXPECT_EQ(UcxAddressText(address->bytes), text);
  }
  for (const char* text : {"", "host:80", "192.0.2.1", "192.0.2.1:", "192.0.2.1:65536",
                           "2001:db8::1:80", "[2001:db8::1]", "192.0.2.1:-1", "[192.0.2.1]:80"}) {
    EXPECT_THAT(ParseUcxAddress(text), StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
}

TEST(UcxDevices, AreTheInterfaceAndTheRdmaDevicesOnIt) {
  const std::string sys = MakeTestFolder();
  const auto add = [&sys](const std::string& port, const std::string& interface) {
    const std::string folder = sys + "/" + port + "/gid_attrs/ndevs";
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/0") << interface << "\n";
    std::ofstream(folder + "/1") << interface << "\n";
  };
  add("rxe0/ports/1", "eth0");
  add("mlx5_0/ports/1", "eth1");
  add("mlx5_0/ports/2", "eth2");
  EXPECT_EQ(UcxDevices("eth0", sys), "eth0,rxe0:1");
  EXPECT_EQ(UcxDevices("eth2", sys), "eth2,mlx5_0:2");
  EXPECT_EQ(UcxDevices("eth3", sys), "eth3");
  EXPECT_EQ(UcxDevices("eth0", sys + "/nothing"), "eth0");
}

}  // namespace
}  // namespace strata
