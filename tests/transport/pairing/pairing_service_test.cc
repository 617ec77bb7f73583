#include "transport/pairing/pairing_service.h"

#include <array>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "proto/cluster.grpc.pb.h"
#include "proto/pairing.grpc.pb.h"
#include "tests/transport/pairing/pairing_fixture.h"

namespace strata {
namespace {

using absl_testing::IsOk;
using absl_testing::StatusIs;
using ::testing::AllOf;
using testing::Anna;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kKnownKeyId;
using testing::KnownKey;
using testing::TestGuest;

// Any service on loopback, as a guest would serve unknown callers.
class Server {
 public:
  explicit Server(grpc::Service* service) {
    grpc::ServerBuilder builder;
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.SetMaxReceiveMessageSize(kPairingMessageBytesMax);
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(service);
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
  }
  const std::string& address() const { return address_; }
  void Stop() { server_->Shutdown(); }

 private:
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

// A guest on loopback whose clock stands still.
struct ServedGuest {
  PairWithOptions Options() const {
    return {.address = server.address(), .self = Anna(), .clock = &guest.fake_clock};
  }
  absl::Status Pair(AskPersonFn ask) const {
    return PairWith(Options(), std::move(ask), KnownKey());
  }

  TestGuest guest;
  std::unique_ptr<grpc::Service> service = MakePairingService(&guest.guest);
  Server server{service.get()};
};

absl::StatusOr<bool> Yes(const std::string&) { return true; }

TEST(PairWith, GivesTheKeyWhenThePersonConfirms) {
  ServedGuest t;
  EXPECT_THAT(t.Pair([&](const std::string& code) -> absl::StatusOr<bool> {
    EXPECT_THAT(t.guest.codes, ElementsAre(code));
    EXPECT_THAT(t.guest.admitted, IsEmpty());
    return true;
  }),
              IsOk());
  ASSERT_EQ(t.guest.admitted.size(), 1u);
  EXPECT_EQ(t.guest.admitted[0].cluster_id, kKnownKeyId);
  EXPECT_EQ(t.guest.admitted[0].from.name, "anna");
}

TEST(PairWith, GivesNothingWhenThePersonRefuses) {
  ServedGuest t;
  EXPECT_THAT(t.Pair([](const std::string&) { return false; }),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr(t.server.address())));
  EXPECT_THAT(t.guest.ends, ElementsAre(StatusIs(absl::StatusCode::kCancelled)));
  EXPECT_THAT(t.guest.admitted, IsEmpty());
  t.guest.fake_clock.AdvanceMs(1000);
  EXPECT_THAT(t.Pair(Yes), IsOk());
}

TEST(PairWith, GivesNothingWhenThePersonCannotBeAsked) {
  ServedGuest t;
  EXPECT_THAT(t.Pair([](const std::string&) { return absl::InternalError("no terminal"); }),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("no terminal")));
  EXPECT_THAT(t.guest.ends, ElementsAre(StatusIs(absl::StatusCode::kCancelled)));
}

TEST(PairWith, GivesNothingWhenThePersonTakesTooLong) {
  ServedGuest t;
  EXPECT_THAT(t.Pair([&](const std::string&) -> absl::StatusOr<bool> {
    t.guest.fake_clock.AdvanceMs(120'000);
    return true;
  }),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(t.guest.admitted, IsEmpty());
}

TEST(PairWith, ReportsThatAnotherMemberPairs) {
  ServedGuest t;
  EXPECT_THAT(t.Pair([&](const std::string&) -> absl::StatusOr<bool> {
    EXPECT_THAT(t.Pair(Yes), StatusIs(absl::StatusCode::kResourceExhausted,
                                      AllOf(HasSubstr("another"), HasSubstr("60 s"))));
    return true;
  }),
              IsOk());
}

TEST(PairWith, ReportsThatTheGuestHasAKey) {
  ServedGuest t;
  EXPECT_THAT(t.Pair(Yes), IsOk());
  EXPECT_THAT(t.Pair(Yes),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("key already")));
}

TEST(PairWith, OneOfManyConcurrentPairingsSucceeds) {
  ServedGuest t;
  std::array<absl::Status, 4> statuses;
  std::vector<std::thread> threads;
  for (absl::Status& status : statuses) {
    threads.emplace_back([&t, &status] { status = t.Pair(Yes); });
  }
  for (std::thread& thread : threads) thread.join();
  int admitted = 0;
  for (const absl::Status& status : statuses) {
    admitted += status.ok();
    EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status) ||
                absl::IsFailedPrecondition(status))
        << status;
  }
  EXPECT_EQ(admitted, 1);
  EXPECT_EQ(t.guest.admitted.size(), 1u);
}

TEST(PairWith, ReportsAnUnreachableGuest) {
  ServedGuest t;
  t.server.Stop();
  EXPECT_THAT(t.Pair(Yes), StatusIs(absl::StatusCode::kUnavailable, HasSubstr(t.server.address())));
}

TEST(PairWith, ReportsThatAMemberTakesNoPairings) {
  wire::Cluster::Service member;
  const Server server(&member);
  EXPECT_THAT(PairWith({.address = server.address(), .self = Anna()}, Yes, KnownKey()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("takes no pairings")));
}

TEST(PairWith, RefusesAnInvalidIdentity) {
  ServedGuest t;
  PairWithOptions options = t.Options();
  options.self.node_id = "anna";
  EXPECT_THAT(PairWith(options, Yes, KnownKey()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("node id")));
  EXPECT_THAT(t.guest.codes, IsEmpty());
}

// Answers with arbitrary responses.
class Liar final : public wire::Pairing::Service {
 public:
  grpc::Status Begin(grpc::ServerContext*, const wire::PairingBeginRequest*,
                     wire::PairingBeginResponse* response) override {
    *response = begun;
    return grpc::Status::OK;
  }
  grpc::Status Disclose(grpc::ServerContext*, const wire::PairingDiscloseRequest*,
                        wire::PairingDiscloseResponse* response) override {
    *response = disclosed;
    return grpc::Status::OK;
  }
  grpc::Status Refuse(grpc::ServerContext*, const wire::PairingRefuseRequest* request,
                      wire::PairingRefuseResponse*) override {
    refused.push_back(request->pairing());
    return grpc::Status::OK;
  }

  wire::PairingBeginResponse begun;
  wire::PairingDiscloseResponse disclosed;
  std::vector<std::string> refused;
};

absl::StatusOr<bool> Never(const std::string&) {
  ADD_FAILURE() << "the person must not be asked";
  return true;
}

TEST(PairWith, ShowsNoCodeForAWrongCommitment) {
  Liar liar;
  const std::string id(kPairingIdBytes, 'i');
  liar.begun.set_pairing(id);
  liar.begun.set_guest_key(PairingKeyPair::New()->public_key());
  liar.begun.set_commitment(std::string(kPairingHashBytes, 'c'));
  liar.disclosed.set_guest_nonce(std::string(kPairingNonceBytes, 'n'));
  const Server server(&liar);
  EXPECT_THAT(PairWith({.address = server.address(), .self = Anna()}, Never, KnownKey()),
              StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("in the middle")));
  EXPECT_THAT(liar.refused, ElementsAre(id));
}

TEST(PairWith, ReadsNoLargerMessageThanAPairings) {
  Liar liar;
  liar.begun.set_commitment(std::string(1 << 20, 'c'));
  const Server server(&liar);
  EXPECT_THAT(PairWith({.address = server.address(), .self = Anna()}, Never, KnownKey()),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(PairingService, ReadsNoLargerMessageThanAPairings) {
  ServedGuest t;
  const auto stub = wire::Pairing::NewStub(
      grpc::CreateChannel(t.server.address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  wire::PairingBeginRequest request;
  request.set_member_key(std::string(1 << 20, 'k'));
  wire::PairingBeginResponse response;
  EXPECT_EQ(stub->Begin(&context, request, &response).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
}

}  // namespace
}  // namespace strata
