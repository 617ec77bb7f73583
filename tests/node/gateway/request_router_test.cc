#include "node/gateway/request_router.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "coordinator/request/request_status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Leader = RequestRunner::Leader;

class Client final : public GenerationListener {
 public:
  void OnStarted(const std::vector<int32_t>&) override { ++started; }
  void OnToken(const wire::SampledToken& token) override { tokens.push_back(token.token()); }
  void OnEnd(absl::Status status, FinishReason why, const GenerationUsage& total) override {
    ends.push_back(std::move(status));
    reason = why;
    usage = total;
  }

  int started = 0;
  std::vector<int32_t> tokens;
  std::vector<absl::Status> ends;
  FinishReason reason = FinishReason::kCancelled;
  GenerationUsage usage;
};

class Source final : public GenerationHandle {
 public:
  void Cancel() override { ++cancelled; }
  void Finish() override { ++finished; }
  int cancelled = 0, finished = 0;
};

// Notes what the router tells it to do.
class Runner final : public RequestRunner {
 public:
  Leader FindLeader(const std::string& model) override {
    models.push_back(model);
    return leader;
  }
  void RunHere(const wire::GenerateRequest& request,
               std::shared_ptr<GenerationCall> call) override {
    requests.push_back(request);
    calls.push_back(std::move(call));
  }
  void RunElsewhere(const std::string& address, std::shared_ptr<RequestAttempt> attempt) override {
    requests.push_back(attempt->request());
    addresses.push_back(address);
    sources.push_back(std::make_shared<Source>());
    attempt->SetSource(sources.back());
    attempts.push_back(std::move(attempt));
  }
  void DispatchSoon() override { ++dispatches; }
  void TickSoon() override { ++ticks; }

  void SetHere(absl::Status status = absl::OkStatus(), bool may_reload = false) {
    leader = {.place = Leader::Place::kHere,
              .address = "",
              .may_reload = may_reload,
              .status = std::move(status)};
  }
  void SetElsewhere(const std::string& address = "beta") {
    leader = {.place = Leader::Place::kElsewhere,
              .address = address,
              .may_reload = false,
              .status = absl::OkStatus()};
  }
  void SetNobody(absl::Status why = absl::OkStatus()) {
    leader = {.place = Leader::Place::kNone,
              .address = "",
              .may_reload = false,
              .status = std::move(why)};
  }

  Leader leader;
  std::vector<std::string> models, addresses;
  std::vector<wire::GenerateRequest> requests;
  std::vector<std::shared_ptr<GenerationCall>> calls;
  std::vector<std::shared_ptr<RequestAttempt>> attempts;
  std::vector<std::shared_ptr<Source>> sources;
  int dispatches = 0, ticks = 0;
};

wire::SampledToken TokenAt(int32_t position, int32_t id) {
  wire::SampledToken token;
  token.set_position(position);
  token.set_token(id);
  return token;
}

const absl::Status kGone = absl::UnavailableError("the node does not answer");

class RequestRouterTest : public ::testing::Test {
 protected:
  std::shared_ptr<GenerationHandle> Generate(bool pass_on = true, const std::string& user = "") {
    wire::GenerateRequest request;
    request.set_model("tiny");
    request.set_prompt("Once upon");
    request.set_tokens_max(9);
    request.set_client(user);
    clients_.push_back(std::make_shared<Client>());
    auto handle = router_.Generate(request, clients_.back(), pass_on);
    router_.Dispatch();
    return handle;
  }
  Client& client() { return *clients_.back(); }
  RequestAttempt& attempt() { return *runner_.attempts.back(); }
  void TickAfter(absl::Duration time) {
    now_ += time;
    router_.Tick();
  }
  // A request that has the tokens 10 and 11 at positions 3 and 4, from the source elsewhere.
  std::shared_ptr<GenerationHandle> Begun() {
    runner_.SetElsewhere();
    auto handle = Generate();
    attempt().OnStarted({1, 2, 3});
    attempt().OnToken(TokenAt(3, 10));
    attempt().OnToken(TokenAt(4, 11));
    return handle;
  }

  SteadyTime now_;
  Runner runner_;
  std::vector<std::shared_ptr<Client>> clients_;
  RequestRouter router_{&runner_, {.now = [this] { return now_; }}};
};

TEST_F(RequestRouterTest, ARequestRunsWhereANodeCoordinates) {
  runner_.SetElsewhere();
  Generate();
  EXPECT_THAT(runner_.addresses, ElementsAre("beta"));
  runner_.SetHere();
  Generate();
  EXPECT_THAT(runner_.calls, SizeIs(1));
  EXPECT_THAT(runner_.models, ElementsAre("tiny", "tiny"));
  EXPECT_EQ(runner_.dispatches, 2);
  EXPECT_EQ(runner_.ticks, 0);
  EXPECT_EQ(router_.waiting(), 0u);
  runner_.calls[0]->Refuse(absl::NotFoundError("no model"));
}

TEST_F(RequestRouterTest, OneDispatchIsAskedForAllThatCome) {
  router_.Generate({}, std::make_shared<Client>(), true);
  router_.Generate({}, std::make_shared<Client>(), true);
  EXPECT_EQ(runner_.dispatches, 1);
}

TEST_F(RequestRouterTest, TheClientGetsTheSourcesOutput) {
  Begun();
  attempt().OnEnd(absl::OkStatus(), FinishReason::kLength, {.cached_tokens = 2});
  EXPECT_EQ(client().started, 1);
  EXPECT_THAT(client().tokens, ElementsAre(10, 11));
  EXPECT_THAT(client().ends, ElementsAre(IsOk()));
  EXPECT_EQ(client().reason, FinishReason::kLength);
  EXPECT_EQ(client().usage.tokens, 2u);
  EXPECT_EQ(client().usage.cached_tokens, 2u);
}

TEST_F(RequestRouterTest, ARequestThatRunsHereEndsThroughItsCall) {
  runner_.SetHere();
  Generate();
  runner_.calls[0]->Refuse(absl::NotFoundError("no model"));
  EXPECT_THAT(client().ends, ElementsAre(StatusIs(absl::StatusCode::kNotFound)));
}

// Doubled and late messages.
TEST_F(RequestRouterTest, EachTokenIsForwardedOnce) {
  Begun();
  attempt().OnStarted({1, 2, 3});
  attempt().OnToken(TokenAt(3, 10));
  attempt().OnToken(TokenAt(5, 12));
  attempt().OnToken(TokenAt(4, 11));
  EXPECT_EQ(client().started, 1);
  EXPECT_THAT(client().tokens, ElementsAre(10, 11, 12));
}

// As the coordinator gets it from the node that resumes it.
TEST_F(RequestRouterTest, ARequestThatWasBegunElsewhereGoesOnBehindItsTokens) {
  runner_.SetElsewhere();
  wire::GenerateRequest rest;
  rest.mutable_tokens()->Add(1);
  rest.mutable_generated()->Add(10);
  const auto client = std::make_shared<Client>();
  router_.Generate(rest, client, true);
  router_.Dispatch();
  attempt().OnStarted({1});
  attempt().OnToken(TokenAt(1, 10));  // its caller has it
  attempt().OnToken(TokenAt(2, 11));
  EXPECT_THAT(client->tokens, ElementsAre(11));
  attempt().OnBroken(kGone);
  TickAfter(kRequestTick);
  EXPECT_THAT(runner_.requests.back().generated(), ElementsAre(10, 11));
}

TEST_F(RequestRouterTest, AnAttemptThatHasEndedIsNotListenedTo) {
  Begun();
  const std::shared_ptr<RequestAttempt> before = runner_.attempts[0];
  before->OnBroken(kGone);
  TickAfter(kRequestTick);
  ASSERT_THAT(runner_.attempts, SizeIs(2));
  before->OnStarted({1, 2, 3});
  before->OnToken(TokenAt(5, 99));
  before->OnEnd(absl::OkStatus(), FinishReason::kLength, {});
  before->OnBroken(kGone);
  EXPECT_THAT(client().ends, IsEmpty());
  EXPECT_EQ(router_.waiting(), 0u);
  attempt().OnStarted({1, 2, 3});
  attempt().OnToken(TokenAt(5, 12));
  attempt().OnEnd(absl::OkStatus(), FinishReason::kLength, {});
  attempt().OnEnd(absl::OkStatus(), FinishReason::kLength, {});
  EXPECT_THAT(client().tokens, ElementsAre(10, 11, 12));
  EXPECT_THAT(client().ends, SizeIs(1));
}

TEST_F(RequestRouterTest, ASourceThatLeavesOutATokenEndsTheRequest) {
  Begun();
  attempt().OnToken(TokenAt(6, 13));
  EXPECT_THAT(client().ends, ElementsAre(StatusIs(absl::StatusCode::kDataLoss)));
  EXPECT_THAT(client().tokens, ElementsAre(10, 11));
  EXPECT_EQ(runner_.sources[0]->cancelled, 1);
  runner_.SetElsewhere();
  Generate();
  attempt().OnToken(TokenAt(0, 10));  // it has not started
  EXPECT_THAT(client().ends, ElementsAre(StatusIs(absl::StatusCode::kDataLoss)));
}

TEST_F(RequestRouterTest, ARequestWaitsForACoordinator) {
  Generate();
  EXPECT_EQ(router_.waiting(), 1u);
  EXPECT_EQ(runner_.ticks, 1);
  TickAfter(kRequestTick);
  EXPECT_EQ(runner_.ticks, 2);
  runner_.SetElsewhere("");  // one that cannot be reached
  TickAfter(kRequestTick);
  EXPECT_THAT(runner_.addresses, IsEmpty());
  runner_.SetElsewhere();
  TickAfter(kRequestTick);
  EXPECT_THAT(runner_.addresses, ElementsAre("beta"));
  EXPECT_EQ(runner_.ticks, 3);
}

TEST_F(RequestRouterTest, ARequestThatWaitsTooLongSaysWhy) {
  Generate();
  TickAfter(absl::Seconds(14));
  EXPECT_THAT(client().ends, IsEmpty());
  TickAfter(absl::Seconds(1));
  EXPECT_THAT(client().ends, ElementsAre(StatusIs(absl::StatusCode::kUnavailable,
                                                  HasSubstr("no node coordinates"))));
  EXPECT_EQ(RetryAfterMs(client().ends[0]), kRetrySoonMs);
  runner_.SetNobody(NoCoordinator("another process has its id"));
  Generate();
  TickAfter(absl::Seconds(15));
  EXPECT_THAT(client().ends,
              ElementsAre(StatusIs(absl::StatusCode::kUnavailable, "another process has its id")));
}

TEST_F(RequestRouterTest, ARequestWaitsForAModelThatANewCoordinatorMayLoad) {
  const absl::Status loading = absl::UnavailableError("it is being loaded again");
  runner_.SetHere(loading, /*may_reload=*/true);
  Generate();
  EXPECT_EQ(router_.waiting(), 1u);
  TickAfter(absl::Seconds(15));
  EXPECT_THAT(client().ends, ElementsAre(loading));
  // A model that nobody knows, and one that is not to come soon: the coordinator says so.
  runner_.SetHere(absl::NotFoundError("no model"), /*may_reload=*/true);
  Generate();
  runner_.SetHere(loading, /*may_reload=*/false);
  Generate();
  EXPECT_THAT(runner_.calls, SizeIs(2));
  for (const auto& call : runner_.calls) call->Refuse(absl::NotFoundError("no model"));
}

TEST_F(RequestRouterTest, ARequestThatHadBegunWaitsUntilItsModelIsLoaded) {
  Begun();
  attempt().OnBroken(kGone);
  runner_.SetHere(absl::NotFoundError("no model"));
  TickAfter(kRequestTick);
  EXPECT_EQ(router_.waiting(), 1u);
  TickAfter(absl::Seconds(60));
  EXPECT_THAT(client().ends, ElementsAre(StatusIs(absl::StatusCode::kNotFound)));
}

TEST_F(RequestRouterTest, TheNextSourceGetsTheTokensSoFar) {
  Begun();
  attempt().OnBroken(kGone);
  EXPECT_THAT(client().ends, IsEmpty());
  TickAfter(kRequestTick);
  const wire::GenerateRequest& rest = runner_.requests.back();
  EXPECT_THAT(rest.tokens(), ElementsAre(1, 2, 3));
  EXPECT_THAT(rest.generated(), ElementsAre(10, 11));
  EXPECT_THAT(rest.prompt(), IsEmpty());
  EXPECT_EQ(rest.model(), "tiny");
}

TEST_F(RequestRouterTest, ACallThatWasNotTakenIsTriedAgainAsItWas) {
  runner_.SetElsewhere();
  Generate();
  attempt().OnBroken(kGone);
  TickAfter(kRequestTick);
  EXPECT_EQ(runner_.requests.back().prompt(), "Once upon");
  EXPECT_THAT(runner_.attempts, SizeIs(2));
  // It waits for as long as any that has not begun.
  attempt().OnBroken(kGone);
  TickAfter(absl::Seconds(15));
  attempt().OnBroken(kGone);
  EXPECT_THAT(client().ends, ElementsAre(StatusIs(absl::StatusCode::kUnavailable,
                                                  HasSubstr("no node coordinates"))));
}

TEST_F(RequestRouterTest, TheTimeAtASourceDoesNotCountAsWaiting) {
  runner_.SetElsewhere();
  Generate();
  now_ += absl::Seconds(30);
  attempt().OnBroken(kGone);
  runner_.SetNobody();
  TickAfter(absl::Seconds(14));
  EXPECT_EQ(router_.waiting(), 1u);
  TickAfter(absl::Seconds(1));
  EXPECT_THAT(client().ends, SizeIs(1));
  // But where nobody may have been there, it does.
  runner_.SetElsewhere();
  Generate();
  now_ += kRequestConnectTime;
  attempt().OnBroken(kGone);
  runner_.SetNobody();
  TickAfter(absl::Seconds(13));
  EXPECT_THAT(client().ends, SizeIs(1));
}

TEST_F(RequestRouterTest, EachSourceThatStartsTheRequestRenewsItsTime) {
  Begun();
  attempt().OnBroken(kGone);
  now_ += absl::Seconds(59);
  TickAfter(absl::ZeroDuration());
  attempt().OnStarted({1, 2, 3});
  attempt().OnBroken(kGone);
  runner_.SetNobody();
  TickAfter(absl::Seconds(59));
  EXPECT_EQ(router_.waiting(), 1u);
  // One that does not start it does not.
  runner_.SetElsewhere();
  TickAfter(absl::ZeroDuration());
  attempt().OnEnd(AsLeaderChanged(kGone), FinishReason::kCancelled, {});
  runner_.SetNobody();
  TickAfter(absl::Seconds(1));
  EXPECT_THAT(client().ends, SizeIs(1));
}

TEST_F(RequestRouterTest, ASourceThatHadNotStartedTheRequestIsAskedAgainAfterAPause) {
  runner_.SetElsewhere();
  Generate();
  attempt().OnEnd(AsLeaderChanged(kGone), FinishReason::kCancelled, {});
  TickAfter(kRequestTick);
  EXPECT_THAT(runner_.attempts, SizeIs(1));
  TickAfter(kRequestResumePause - kRequestTick);
  EXPECT_THAT(runner_.attempts, SizeIs(2));
  // One that had is asked at once: it is another one.
  attempt().OnStarted({1, 2, 3});
  attempt().OnEnd(AsLeaderChanged(kGone), FinishReason::kCancelled, {});
  TickAfter(kRequestTick);
  EXPECT_THAT(runner_.attempts, SizeIs(3));
}

TEST_F(RequestRouterTest, ARequestThatHadBegunIsNotEndedByAFullQueue) {
  Begun();
  attempt().OnBroken(kGone);
  TickAfter(kRequestTick);
  const absl::Status full = WithRetryAfterMs(absl::ResourceExhaustedError("many wait"), 1'000);
  attempt().OnEnd(full, FinishReason::kCancelled, {});
  TickAfter(kRequestTick);
  EXPECT_THAT(runner_.attempts, SizeIs(2));
  TickAfter(kRequestResumePause);
  ASSERT_THAT(runner_.attempts, SizeIs(3));
  attempt().OnEnd(full, FinishReason::kCancelled, {});
  runner_.SetNobody();
  TickAfter(absl::Seconds(60));
  EXPECT_THAT(client().ends, ElementsAre(full));
}

TEST_F(RequestRouterTest, AForwardedRequestIsResumedByTheNodeThatForwardedIt) {
  runner_.SetElsewhere();
  Generate(/*pass_on=*/false);
  EXPECT_THAT(runner_.attempts, IsEmpty());
  EXPECT_TRUE(IsLeaderChanged(client().ends.at(0)));
  runner_.SetHere();
  Generate(/*pass_on=*/false);
  runner_.calls[0]->Refuse(AsLeaderChanged(kGone));
  EXPECT_TRUE(IsLeaderChanged(client().ends.at(0)));
  EXPECT_EQ(router_.waiting(), 0u);
  runner_.SetNobody();
  Generate(/*pass_on=*/false);
  EXPECT_EQ(router_.waiting(), 1u);
  router_.Stop();
  EXPECT_TRUE(IsLeaderChanged(client().ends.at(0)));
}

TEST_F(RequestRouterTest, CancelAndFinishReachTheSource) {
  Begun()->Finish();
  EXPECT_EQ(runner_.sources[0]->finished, 1);
  Begun()->Cancel();
  EXPECT_EQ(runner_.sources[1]->cancelled, 1);
  // A request that is not wanted any more does not go on elsewhere.
  attempt().OnBroken(kGone);
  EXPECT_THAT(client().ends, ElementsAre(kGone));
}

TEST_F(RequestRouterTest, AStopBeforeTheSourceIsThereReachesIt) {
  runner_.SetElsewhere();
  const auto one = router_.Generate({}, std::make_shared<Client>(), true);
  const auto other = router_.Generate({}, std::make_shared<Client>(), true);
  one->Finish();
  one->Cancel();  // the first one counts
  other->Cancel();
  router_.Dispatch();
  EXPECT_EQ(runner_.sources[0]->finished, 1);
  EXPECT_EQ(runner_.sources[0]->cancelled, 0);
  EXPECT_EQ(runner_.sources[1]->cancelled, 1);
}

TEST_F(RequestRouterTest, AWaitingRequestMayBeCancelled) {
  Generate()->Cancel();
  TickAfter(kRequestTick);
  EXPECT_THAT(client().ends, ElementsAre(StatusIs(absl::StatusCode::kCancelled)));
}

TEST_F(RequestRouterTest, StopEndsAllThatWaitAndAllThatCome) {
  Generate();
  const auto incoming = std::make_shared<Client>();
  router_.Generate({}, incoming, true);
  router_.Stop();
  EXPECT_THAT(incoming->ends, ElementsAre(StatusIs(absl::StatusCode::kUnavailable)));
  EXPECT_THAT(client().ends, ElementsAre(StatusIs(absl::StatusCode::kUnavailable)));
  Generate();
  EXPECT_THAT(client().ends,
              ElementsAre(StatusIs(absl::StatusCode::kUnavailable, "the node is stopping")));
  router_.Stop();
  EXPECT_EQ(router_.waiting(), 0u);
}

TEST_F(RequestRouterTest, ARequestWhoseSourceGoesWhileTheNodeStopsEnds) {
  Begun();
  router_.Stop();
  attempt().OnBroken(kGone);
  EXPECT_THAT(client().ends,
              ElementsAre(StatusIs(absl::StatusCode::kUnavailable, "the node is stopping")));
}

TEST_F(RequestRouterTest, ASourceThatOutlivesTheRouterEndsTheRequest) {
  auto router = std::make_unique<RequestRouter>(&runner_, RequestRouter::Options());
  runner_.SetElsewhere();
  const auto client = std::make_shared<Client>();
  router->Generate({}, client, true);
  router->Dispatch();
  router.reset();
  attempt().OnBroken(kGone);
  EXPECT_THAT(client->ends, ElementsAre(kGone));
}

TEST_F(RequestRouterTest, OneClientCannotFillTheQueue) {
  const size_t share = kRequestsWaitingMax / 4 * 3;
  for (size_t i = 0; i < share; ++i) Generate(true, "greedy");
  Generate(true, "greedy");
  EXPECT_THAT(client().ends, ElementsAre(StatusIs(absl::StatusCode::kResourceExhausted)));
  EXPECT_TRUE(IsClientLimit(client().ends[0]));
  EXPECT_GT(RetryAfterMs(client().ends[0]).value_or(0), 0);
  for (size_t i = share; i < kRequestsWaitingMax; ++i) Generate(true, "modest");
  Generate(true, "late");
  EXPECT_THAT(client().ends, ElementsAre(StatusIs(absl::StatusCode::kResourceExhausted)));
  EXPECT_FALSE(IsClientLimit(client().ends[0]));
  EXPECT_EQ(router_.waiting(), kRequestsWaitingMax);
  // One that had begun has no other error than before.
  Begun();
  attempt().OnBroken(kGone);
  EXPECT_THAT(client().ends, ElementsAre(StatusIs(absl::StatusCode::kUnavailable)));
}

TEST_F(RequestRouterTest, ClientsTakeTurnsWhenACoordinatorComes) {
  for (const char* user : {"a", "a", "b", "c"}) Generate(true, user);
  runner_.SetElsewhere();
  TickAfter(kRequestTick);
  std::vector<std::string> order;
  for (const wire::GenerateRequest& request : runner_.requests) order.push_back(request.client());
  EXPECT_THAT(order, ElementsAre("a", "b", "c", "a"));
}

}  // namespace
}  // namespace strata
