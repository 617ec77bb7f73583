// The choice of a transport for a link between two workers, and the fallback when UCX fails.
#include "shard/serving/link_selector.h"

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "grpcpp/support/server_callback.h"
#include "gtest/gtest.h"
#include "proto/node.grpc.pb.h"
#include "tests/support/recorder.h"
#include "tests/transport/rpc/grpc_server.h"
#include "transport/base/mutex.h"
#include "transport/link/grpc_link.h"
#include "transport/rpc/process_security.h"

namespace strata {
namespace {

using absl_testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kOtherHost[] = "another host";

// A worker's server that takes every link, and makes its selector's offer or the test's.
class Acceptor final : public wire::Worker::CallbackService {
 public:
  explicit Acceptor(LinkSelectorOptions options)
      : grpc_selector_({}, [this](const wire::Hello&) { return Take(/*over_ucx=*/false); }),
        links_({}, [this](const wire::Hello& peer) { return grpc_selector_.Accept(peer); }),
        ucx_selector_(std::in_place, std::move(options),
                      [this](const wire::Hello&) { return Take(/*over_ucx=*/true); }) {
    server_.emplace(ServiceServer::Served{.service = this, .others = links_.service()});
  }
  ~Acceptor() override {
    std::vector<std::unique_ptr<End>> taken;
    {
      MutexLock lock(&mu_);
      taken.swap(taken_);
    }
    taken.clear();
    grpc_selector_.Stop();
    server_->Stop();
  }

  grpc::ServerUnaryReactor* OfferLink(grpc::CallbackServerContext* context,
                                      const wire::OfferLinkRequest* request,
                                      wire::OfferLinkResponse* response) override {
    ++n_offer_requests;
    *response = offer.has_value() ? *offer : ucx_selector_->Offer(*request);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  std::string address() const { return server_->address(); }
  // Simulates a fault while links over UCX are open.
  void BreakUcx() { ucx_selector_.reset(); }

  std::atomic<int> n_offer_requests = 0;
  std::optional<wire::OfferLinkResponse> offer;  // set while no request is in flight
  std::atomic<bool> refuses = false;
  // Takes a link over UCX without confirming it, and refuses the next link once because of it.
  std::atomic<bool> hangs_over_ucx = false;

 private:
  struct End {
    Recorder receiver;
    std::unique_ptr<Link> link;
  };
  absl::StatusOr<AcceptedLink> Take(bool over_ucx) {
    if (refuses) return absl::FailedPreconditionError("no such stage");
    if (hangs_over_ucx && over_ucx) {
      refused_.WaitForNotification();
      return absl::UnavailableError("too late");
    }
    if (hangs_over_ucx && !refused_.HasBeenNotified()) {
      refused_.Notify();
      return absl::UnavailableError("it has a link already");
    }
    MutexLock lock(&mu_);
    taken_.push_back(std::make_unique<End>());
    End* end = taken_.back().get();
    AcceptedLink accepted;
    accepted.hello.set_credits(2);
    accepted.receiver = &end->receiver;
    accepted.on_open = [end](std::unique_ptr<Link> link) { end->link = std::move(link); };
    return accepted;
  }

  absl::Notification refused_;
  Mutex mu_;
  std::vector<std::unique_ptr<End>> taken_ ABSL_GUARDED_BY(mu_);
  LinkSelector grpc_selector_;
  GrpcLinkAcceptor links_;
  std::optional<ServiceServer> server_;
  std::optional<LinkSelector> ucx_selector_;
};

absl::StatusOr<AcceptedLink> TakesNone(const wire::Hello&) {
  return absl::InternalError("nobody dials this one");
}

wire::OfferLinkResponse OfferTo(LinkSelector* selector, const std::string& host,
                                const std::string& trusted) {
  wire::OfferLinkRequest request;
  request.mutable_place()->set_host(host);
  if (!trusted.empty()) request.mutable_place()->add_trusted(trusted);
  return selector->Offer(request);
}

// The link that a dialler gets from `acceptor`, and the note about it.
struct DialOutcome {
  std::string transport;
  std::string note;
};
DialOutcome DialOnce(LinkSelector* selector, const Acceptor& acceptor, bool to_worker = true) {
  Recorder recorder;
  auto dialled = selector->Dial(
      {.address = acceptor.address(), .hello = {}, .to_worker = to_worker}, &recorder);
  EXPECT_TRUE(dialled.ok()) << dialled.status();
  if (!dialled.ok()) return {};
  EXPECT_TRUE(dialled->link->Send(Frame{.type = FrameType::kStep}).ok());
  return {dialled->link->wire(), dialled->note};
}

TEST(WhyNotOverUcx, IsEmptyWhereUcxIsAsFast) {
  constexpr absl::Duration kShort = absl::Microseconds(20), kLong = absl::Microseconds(90);
  EXPECT_EQ(WhyNotOverUcx({.ucx = kShort, .grpc = kLong}), "");
  EXPECT_EQ(WhyNotOverUcx({.ucx = kShort, .grpc = kShort}), "");
  EXPECT_EQ(WhyNotOverUcx({.ucx = kLong, .grpc = kShort}),
            "16 KiB and back take 90us over UCX, 20us over gRPC");
}

TEST(WhyNotOverUcx, IsNotUsedOnASlowNetworkWherePeersWouldSeemDead) {
  EXPECT_EQ(WhyNotOverUcx({.ucx = kUcxTripMax, .grpc = 2 * kUcxTripMax}), "");
  const absl::Duration longer = kUcxTripMax + absl::Microseconds(1);
  EXPECT_THAT(WhyNotOverUcx({.ucx = longer, .grpc = 2 * longer}), HasSubstr("faster networks"));
}

TEST(LinkSelector, UsesTheFasterTransportOnOneHost) {
  Acceptor acceptor({});
  LinkSelector selector({}, TakesNone);
  const DialOutcome outcome = DialOnce(&selector, acceptor);
  if (outcome.transport == "gRPC") {
    // gRPC was faster, or the build has no UCX.
    EXPECT_THAT(outcome.note,
                ::testing::AnyOf(HasSubstr("and back take"), HasSubstr("without UCX")));
  } else {
    EXPECT_THAT(outcome.transport, StartsWith("UCX "));
    EXPECT_THAT(outcome.note, IsEmpty());
  }
}

TEST(LinkSelector, LinksToTheCoordinatorStayWithGrpc) {
  Acceptor acceptor({});
  LinkSelector selector({}, TakesNone);
  EXPECT_EQ(DialOnce(&selector, acceptor, /*to_worker=*/false).transport, "gRPC");
  EXPECT_EQ(acceptor.n_offer_requests, 0);
}

TEST(LinkSelector, UsesGrpcWithoutUcxOnEitherSide) {
  Acceptor acceptor({});
  LinkSelector without({.ucx = false}, TakesNone);
  DialOutcome outcome = DialOnce(&without, acceptor);
  EXPECT_EQ(outcome.transport, "gRPC");
  EXPECT_THAT(outcome.note, HasSubstr("this worker was started with --no-ucx"));

  Acceptor acceptor_without({.ucx = false});
  LinkSelector selector({}, TakesNone);
  outcome = DialOnce(&selector, acceptor_without);
  EXPECT_EQ(outcome.transport, "gRPC");
  EXPECT_THAT(outcome.note, HasSubstr("the next worker was started with --no-ucx"));
}

TEST(LinkSelector, AnotherHostIsOfferedNothingUnlessBothTrustANetwork) {
  LinkSelector none({}, TakesNone);
  EXPECT_THAT(OfferTo(&none, kOtherHost, "127.0.0.7/8").why_not(), HasSubstr("trust"));
  LinkSelector trusting({.trusted_interfaces = {"lo"}}, TakesNone);
  EXPECT_THAT(OfferTo(&trusting, kOtherHost, "").why_not(), HasSubstr("trust"));
  EXPECT_THAT(OfferTo(&trusting, kOtherHost, "10.0.0.7/8").why_not(), HasSubstr("trust"));
  EXPECT_THAT(OfferTo(&trusting, kOtherHost, "garbage").why_not(), HasSubstr("trust"));
  EXPECT_THAT(OfferTo(&trusting, "", "").why_not(), HasSubstr("trust"));

  const wire::OfferLinkResponse offer = OfferTo(&trusting, kOtherHost, "127.0.0.7/8");
  if (absl::StrContains(offer.why_not(), "without UCX")) GTEST_SKIP() << offer.why_not();
  EXPECT_THAT(offer.address(), StartsWith("127.0.0.1:"));
  EXPECT_EQ(offer.from_host(), "127.0.0.7");
  EXPECT_FALSE(offer.token().empty());
}

TEST(LinkSelector, DoesNotListenOnAnUntrustedAddress) {
  Acceptor acceptor({});
  acceptor.offer.emplace();
  acceptor.offer->set_address("10.0.0.1:80");
  acceptor.offer->set_from_host("10.0.0.7");
  LinkSelector selector({.trusted_interfaces = {"lo"}}, TakesNone);
  const DialOutcome outcome = DialOnce(&selector, acceptor);
  EXPECT_EQ(outcome.transport, "gRPC");
  EXPECT_THAT(outcome.note, HasSubstr("not trusted"));
}

TEST(LinkSelector, FallsBackToGrpcAndAvoidsUcxWhenItFailsAtTheStart) {
  Acceptor acceptor({});
  acceptor.offer.emplace();
  acceptor.offer->set_address("127.0.0.1:1");  // nobody listens there
  acceptor.offer->set_from_host("127.0.0.1");
  acceptor.offer->set_token(std::string(32, 't'));
  acceptor.offer->set_key(std::string(32, 'k'));
  LinkSelector selector({}, TakesNone);
  DialOutcome outcome = DialOnce(&selector, acceptor);
  EXPECT_EQ(outcome.transport, "gRPC");
  EXPECT_THAT(outcome.note, Not(IsEmpty()));
  const int n_offer_requests = acceptor.n_offer_requests;
  acceptor.offer.reset();  // it would work now
  outcome = DialOnce(&selector, acceptor);
  EXPECT_EQ(outcome.transport, "gRPC");
  EXPECT_THAT(outcome.note, HasSubstr("UCX failed"));
  EXPECT_EQ(acceptor.n_offer_requests, n_offer_requests);
}

TEST(LinkSelector, ARefusedLinkIsNoFailureOfUcx) {
  Acceptor acceptor({});
  LinkSelector selector({.measure = false}, TakesNone);
  acceptor.refuses = true;
  Recorder recorder;
  EXPECT_THAT(selector.Dial({.address = acceptor.address(), .hello = {}}, &recorder).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no such stage")));
  acceptor.refuses = false;
  const DialOutcome outcome = DialOnce(&selector, acceptor);
  if (absl::StrContains(outcome.note, "without UCX")) GTEST_SKIP() << outcome.note;
  EXPECT_THAT(outcome.transport, StartsWith("UCX "));
  EXPECT_THAT(outcome.note, IsEmpty());
}

TEST(LinkSelector, GrpcWaitsForAHalfOpenLinkOverUcx) {
  const LinkSelectorOptions options = {.measure = false, .ucx_dial_ms = 200};
  Acceptor acceptor(options);
  acceptor.hangs_over_ucx = true;
  LinkSelector selector(options, TakesNone);
  const DialOutcome outcome = DialOnce(&selector, acceptor);
  if (absl::StrContains(outcome.note, "without UCX")) GTEST_SKIP() << outcome.note;
  EXPECT_EQ(outcome.transport, "gRPC");
  EXPECT_THAT(outcome.note, HasSubstr("link over UCX"));
  acceptor.hangs_over_ucx = false;
  EXPECT_THAT(DialOnce(&selector, acceptor).note, StartsWith("UCX failed: "));
  EXPECT_EQ(acceptor.n_offer_requests, 1);
}

TEST(LinkSelector, UsesGrpcToAWorkerWithoutOffers) {
  // An earlier version: OfferLink is not implemented.
  class Old final : public wire::Worker::CallbackService {};
  Old old;
  Recorder receiver;
  std::unique_ptr<Link> accepted_link;
  GrpcLinkAcceptor links({}, [&](const wire::Hello&) -> absl::StatusOr<AcceptedLink> {
    AcceptedLink accepted;
    accepted.hello.set_credits(2);
    accepted.receiver = &receiver;
    accepted.on_open = [&](std::unique_ptr<Link> link) { accepted_link = std::move(link); };
    return accepted;
  });
  ServiceServer server({.service = &old, .others = links.service()});
  {
    LinkSelector selector({}, TakesNone);
    Recorder recorder;
    auto dialled = selector.Dial({.address = server.address(), .hello = {}}, &recorder);
    ASSERT_TRUE(dialled.ok()) << dialled.status();
    EXPECT_EQ(dialled->link->wire(), "gRPC");
    EXPECT_THAT(dialled->note, Not(IsEmpty()));
  }
  accepted_link.reset();
  server.Stop();
}

TEST(LinkSelector, AClosedLinkIsNoFailureOfUcx) {
  Acceptor acceptor({});
  LinkSelector selector({.measure = false}, TakesNone);
  for (int i = 0; i < 20; ++i) {
    Recorder recorder;
    auto dialled = selector.Dial({.address = acceptor.address(), .hello = {}}, &recorder);
    ASSERT_TRUE(dialled.ok()) << dialled.status();
    if (absl::StrContains(dialled->note, "without UCX")) GTEST_SKIP() << dialled->note;
    ASSERT_THAT(dialled->link->wire(), StartsWith("UCX ")) << dialled->note;
    dialled->link->Close(absl::UnavailableError("unloaded"));
    EXPECT_FALSE(recorder.WaitForClosed().ok());
  }
}

TEST(LinkSelector, UsesGrpcForTheNextLinkAfterUcxBreaks) {
  Acceptor acceptor({});
  LinkSelector selector({.measure = false}, TakesNone);
  Recorder recorder;
  auto dialled = selector.Dial({.address = acceptor.address(), .hello = {}}, &recorder);
  ASSERT_TRUE(dialled.ok()) << dialled.status();
  if (absl::StrContains(dialled->note, "without UCX")) GTEST_SKIP() << dialled->note;
  EXPECT_THAT(dialled->link->wire(), StartsWith("UCX ")) << dialled->note;
  acceptor.BreakUcx();
  EXPECT_THAT(recorder.WaitForClosed(), StatusIs(absl::StatusCode::kUnavailable));
  const DialOutcome outcome = DialOnce(&selector, acceptor);
  EXPECT_EQ(outcome.transport, "gRPC");
  EXPECT_THAT(outcome.note, HasSubstr("UCX failed"));
}

}  // namespace
}  // namespace strata
