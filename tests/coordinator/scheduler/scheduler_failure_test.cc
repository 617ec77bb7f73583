// Steps that fail, pipelines that are lost, and requests that were begun elsewhere: each request
// gets the tokens that it would get alone, or ends with the reason.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "coordinator/scheduler/scheduler.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/scheduler/scheduler_sim.h"

namespace strata {
namespace {

using ::absl_testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Code = absl::StatusCode;

TEST(SchedulerFailure, ARequestThatAlwaysFailsAtOnePlaceEnds) {
  SchedulerSim sim(Facts(), {.chunk_tokens = 16});
  const uint64_t bad = *sim.Add(MakeRequest(Tokens(0, 60), 10));
  const uint64_t good = *sim.Add(MakeRequest(Tokens(500, 60), 40));
  sim.make_fault = [](const wire::Step& step) -> std::optional<FakeFault> {
    if (std::ranges::find(step.tokens(), 40) == step.tokens().end()) return std::nullopt;
    return FakeFault{.stage = 1, .kind = FakeFault::kBatch};
  };
  for (int i = 0; i < 1000 && sim.Next(); ++i) {
  }
  ASSERT_TRUE(sim.seen[bad].end.has_value());
  EXPECT_THAT(sim.seen[bad].end->status, StatusIs(Code::kInternal));
  ASSERT_TRUE(sim.seen[good].end.has_value());
  EXPECT_TRUE(sim.seen[good].end->status.ok());
  sim.ExpectRequestsAsAlone();
}

TEST(SchedulerFailure, AShiftedSequenceIsFedAgainAfterAFailure) {
  PipelineFacts facts = Facts();
  facts.n_ctx = 64;
  SchedulerSim sim(facts, {});
  GenerationRequest request = MakeShiftingRequest(Tokens(0, 20), 300, 4);
  const uint64_t id = *sim.Add(request);
  sim.make_fault = [&](const wire::Step& step) -> std::optional<FakeFault> {
    if (step.step_id() % 50 != 0) return std::nullopt;
    return FakeFault{.stage = 1, .kind = FakeFault::kDataLoss};
  };
  sim.RunToEnd();
  EXPECT_EQ(sim.seen[id].tokens.size(), 300);
  EXPECT_TRUE(sim.seen[id].end->status.ok());
  sim.ExpectRequestsAsAlone();
}

TEST(SchedulerFailure, AShiftedSequenceGoesOnUnchangedInAnotherPipeline) {
  PipelineFacts facts = Facts();
  facts.n_ctx = 64;
  for (const uint32_t kv_cells : {0u, 64u, 100u}) {
    facts.kv_cells = kv_cells;
    SchedulerSim sim(facts, {.chunk_tokens = 16});
    for (uint32_t keep : {0, 4, 20}) {
      sim.Add(MakeShiftingRequest(Tokens(static_cast<int32_t>(keep), 20), 300, keep)).IgnoreError();
    }
    for (int i = 0; sim.Next(); ++i) {
      if (i % 150 == 149) sim.Restart(facts);
    }
    for (const auto& [id, s] : sim.seen) EXPECT_EQ(s.tokens.size(), 300);
    EXPECT_EQ(sim.scheduler.Stats().steps_failed, 0);
    sim.ExpectRequestsAsAlone();
  }
}

TEST(SchedulerFailure, AShiftedSequenceThatWasBegunElsewhereGoesOnUnchanged) {
  PipelineFacts facts = Facts();
  facts.n_ctx = 64;
  GenerationRequest request = MakeShiftingRequest(Tokens(0, 20), 300, 4);
  const std::vector<int32_t> whole = FakeStages::Alone(facts, request, 300);
  for (const int64_t n : {1, 44, 45, 46, 200, 299}) {
    SCOPED_TRACE(n);
    SchedulerSim sim(facts, {.chunk_tokens = 16});
    request.generated.assign(whole.begin(), whole.begin() + n);
    const uint64_t id = *sim.Add(request);
    sim.RunToEnd();
    EXPECT_EQ(sim.seen[id].tokens, std::vector<int32_t>(whole.begin() + n, whole.end()));
    EXPECT_EQ(sim.scheduler.Stats().steps_failed, 0);
  }
}

TEST(SchedulerFailure, ARequestThatFilledItsContextElsewhereEndsWithLength) {
  PipelineFacts facts = Facts();
  facts.n_ctx = 64;
  SchedulerSim sim(facts, {});
  GenerationRequest request = MakeRequest(Tokens(0, 20), 300);
  request.generated = Tokens(100, 45);
  const uint64_t id = *sim.Add(request);
  sim.RunToEnd();
  EXPECT_TRUE(sim.seen[id].end->status.ok());
  EXPECT_EQ(sim.seen[id].end->reason, FinishReason::kLength);
  EXPECT_THAT(sim.seen[id].tokens, IsEmpty());
  request.generated.push_back(1);
  EXPECT_THAT(sim.Add(request), StatusIs(Code::kInvalidArgument, HasSubstr("66 tokens")));
}

TEST(SchedulerFailure, ACopyOfALostSlotIsFedAgain) {
  SchedulerSim sim(Facts(3), {});
  const uint64_t lost = *sim.Add(MakeRequest(Tokens(0, 60), 40));
  const uint64_t other = *sim.Add(MakeRequest(Tokens(500, 60), 40));
  while (sim.seen[lost].tokens.size() < 5 || sim.seen[other].tokens.size() < 5) sim.Next();
  bool has_failed = false;
  sim.make_fault = [&](const wire::Step& step) -> std::optional<FakeFault> {
    if (has_failed || step.slots_size() != 1 || step.tokens(0) != sim.seen[lost].tokens.back()) {
      return std::nullopt;
    }
    has_failed = true;
    return FakeFault{.stage = 2, .kind = FakeFault::kDataLoss};
  };
  while (!has_failed) sim.Next();
  const uint64_t copy = *sim.Add(MakeRequest(Tokens(0, 50), 10));
  sim.RunToEnd();
  EXPECT_EQ(sim.seen[copy].end->usage.cached_tokens, 49);
  for (const auto& [id, s] : sim.seen) EXPECT_TRUE(s.end->status.ok()) << s.end->status;
  sim.ExpectRequestsAsAlone();
}

TEST(SchedulerFailure, AFailedStepInAnyStageIsRecoveredUnnoticed) {
  for (const CacheAbility& cache :
       {CacheAbility{}, CacheAbility{.trim = false, .copy = true, .shift = false},
        CacheAbility{.copy = false, .shift = false, .window_tokens = 8}}) {
    for (const auto kind :
         {FakeFault::kBatch, FakeFault::kDataLoss, FakeFault::kEdits, FakeFault::kFull}) {
      for (uint32_t stage = 0; stage < 3; ++stage) {
        for (uint64_t at : {1u, 2u, 9u, 20u}) {
          SCOPED_TRACE(testing::Message() << "trim " << cache.trim << " kind " << kind << " stage "
                                          << stage << " step " << at);
          PipelineFacts facts = Facts(3);
          facts.cache = cache;
          SchedulerSim sim(facts, {.chunk_tokens = 8});
          std::vector<uint64_t> ids;
          for (int i = 0; i < 5; ++i) ids.push_back(*sim.Add(MakeRequest(Tokens(i * 50, 20), 12)));
          sim.make_fault = [&](const wire::Step& step) -> std::optional<FakeFault> {
            if (step.step_id() != at) return std::nullopt;
            return FakeFault{.stage = stage, .kind = kind};
          };
          sim.RunToEnd();
          sim.ExpectRequestsAsAlone();
          for (uint64_t id : ids) {
            EXPECT_EQ(sim.seen[id].tokens.size(), 12);
            EXPECT_TRUE(sim.seen[id].end->status.ok()) << sim.seen[id].end->status;
          }
          EXPECT_GE(sim.scheduler.Stats().steps_failed, 1);
        }
      }
    }
  }
}

TEST(SchedulerFailure, OnlyTheRequestThatNoStageCanServeEnds) {
  SchedulerSim sim(Facts(3), {});
  std::vector<uint64_t> good;
  for (int i = 0; i < 4; ++i) good.push_back(*sim.Add(MakeRequest(Tokens(i * 50, 20), 12)));
  const uint64_t bad = *sim.Add(MakeRequest({1, 2, FakeStages::kBadToken, 3}, 12));
  for (int i = 0; i < 3; ++i) good.push_back(*sim.Add(MakeRequest(Tokens(i * 60, 20), 12)));
  sim.RunToEnd();
  EXPECT_THAT(sim.seen[bad].end->status, StatusIs(Code::kInvalidArgument, HasSubstr("bad token")));
  for (uint64_t id : good) EXPECT_TRUE(sim.seen[id].end->status.ok());
  sim.ExpectRequestsAsAlone();
}

TEST(SchedulerFailure, ASequenceThatDoesNotOpenEndsAndNoOtherIsAffected) {
  SchedulerSim sim(Facts(2), {});
  const uint64_t good = *sim.Add(MakeRequest(Tokens(0, 20), 12));
  GenerationRequest request = MakeRequest(Tokens(50, 20), 12);
  request.sampler.set_seed(FakeStages::kBadSeed);
  const uint64_t bad = *sim.Add(request);
  sim.RunToEnd();
  EXPECT_THAT(sim.seen[bad].end->status, StatusIs(Code::kInvalidArgument, HasSubstr("seed")));
  EXPECT_TRUE(sim.seen[good].end->status.ok());
  EXPECT_EQ(sim.scheduler.Stats().steps_failed, 0);
}

TEST(SchedulerFailure, AStageThatAlwaysFailsEndsAllRequestsWithItsStatus) {
  SchedulerSim sim(Facts(2), {});
  std::vector<uint64_t> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(*sim.Add(MakeRequest(Tokens(i * 50, 20), 12)));
  sim.make_fault = [](const wire::Step&) { return FakeFault{.stage = 1}; };
  sim.RunToEnd(10'000);
  for (uint64_t id : ids) EXPECT_THAT(sim.seen[id].end->status, StatusIs(Code::kInternal));
  EXPECT_TRUE(sim.scheduler.idle());
  // The stage works again.
  sim.make_fault = nullptr;
  const uint64_t id = *sim.Add(MakeRequest(Tokens(0, 20), 12));
  sim.RunToEnd();
  EXPECT_TRUE(sim.seen[id].end->status.ok());
  sim.ExpectRequestsAsAlone();
}

TEST(SchedulerFailure, GoesOnInAnotherPipelineFromTheLastTokens) {
  SchedulerSim sim(Facts(2), {.chunk_tokens = 16});
  std::vector<uint64_t> ids;
  for (int i = 0; i < 12; ++i) ids.push_back(*sim.Add(MakeRequest(Tokens(i * 50, 40), 40)));
  while (sim.seen[ids[3]].tokens.size() < 7) sim.Next();
  PipelineFacts facts = Facts(3);
  sim.Restart(facts);
  // Fake stages hash by their number, so another pipeline generates other tokens. The rest must be
  // the ones that follow the tokens so far.
  std::map<uint64_t, size_t> before;
  for (uint64_t id : ids) before[id] = sim.seen[id].tokens.size();
  sim.RunToEnd();
  for (uint64_t id : ids) {
    EXPECT_EQ(sim.seen[id].tokens.size(), 40);
    GenerationRequest rest = sim.seen[id].request;
    rest.prompt.insert(rest.prompt.end(), sim.seen[id].tokens.begin(),
                       sim.seen[id].tokens.begin() + static_cast<int64_t>(before[id]));
    const std::vector<int32_t> expected = FakeStages::Alone(facts, rest, 40 - before[id]);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(),
                           sim.seen[id].tokens.begin() + static_cast<int64_t>(before[id])));
  }
}

TEST(SchedulerFailure, GoesOnInAnotherPipelineThatHasTheCachesWithoutFeedingAgain) {
  SchedulerSim sim(Facts(2), {.chunk_tokens = 16});
  std::vector<uint64_t> ids;
  for (int i = 0; i < 12; ++i) ids.push_back(*sim.Add(MakeRequest(Tokens(i * 50, 40), 40)));
  while (sim.seen[ids[3]].tokens.size() < 7) sim.Next();
  while (sim.TakeNext()) {
  }
  const SchedulerStats before = sim.scheduler.Stats();
  size_t tokens_before = 0;
  for (uint64_t id : ids) tokens_before += sim.seen[id].tokens.size();
  ASSERT_TRUE(sim.Move());
  sim.RunToEnd();
  sim.ExpectRequestsAsAlone();
  EXPECT_EQ(sim.stages->mismatches(), 0);
  // Each prompt was fed once, and each generated token but the last.
  EXPECT_GT(before.rows, 0u);
  EXPECT_GT(tokens_before, 0u);
  EXPECT_EQ(sim.scheduler.Stats().rows, 12u * (40 + 39));
}

TEST(SchedulerFailure, FeedsAgainWhereStepsWereInFlightThoughTheCachesHaveMoved) {
  SchedulerSim sim(Facts(2), {.chunk_tokens = 16});
  std::vector<uint64_t> ids;
  for (int i = 0; i < 12; ++i) ids.push_back(*sim.Add(MakeRequest(Tokens(i * 50, 40), 40)));
  while (sim.seen[ids[3]].tokens.size() < 7) sim.Next();
  sim.Submit();
  ASSERT_FALSE(sim.Move());
  sim.RunToEnd();
  sim.ExpectRequestsAsAlone();
  EXPECT_EQ(sim.stages->mismatches(), 0);
}

TEST(SchedulerFailure, EndsRequestsThatDoNotFitIntoAnotherPipeline) {
  SchedulerSim sim(Facts(2), {});
  const uint64_t big = *sim.Add(MakeRequest(Tokens(0, 200), 40));
  const uint64_t small = *sim.Add(MakeRequest(Tokens(0, 20), 10));
  sim.Next();
  PipelineFacts facts = Facts(1);
  facts.n_ctx = 64;
  sim.Restart(facts);
  sim.RunToEnd();
  EXPECT_THAT(sim.seen[big].end->status, StatusIs(Code::kResourceExhausted, HasSubstr("64")));
  EXPECT_TRUE(sim.seen[small].end->status.ok());
}

TEST(SchedulerFailure, GivesUpARequestWhosePipelinesBreakAgainAndAgain) {
  Scheduler scheduler(Facts(2), {});
  const uint64_t suspect = *scheduler.Add(MakeRequest(Tokens(0, 20), 10), 0);
  for (int broken = 0; broken < 3; ++broken) {
    EXPECT_TRUE(scheduler.TakeEvents().empty());
    EXPECT_TRUE(scheduler.NextStep(0).has_value());
    scheduler.Restart(Facts(2), SlotContents::kNothing, /*broke=*/true, 0);
  }
  const std::vector<SchedulerEvent> events = scheduler.TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].request, suspect);
  ASSERT_TRUE(events[0].end.has_value());
  EXPECT_THAT(events[0].end->status, StatusIs(Code::kAborted));
}

TEST(SchedulerFailure, BlamesNoRequestForMoves) {
  Scheduler scheduler(Facts(2), {});
  ASSERT_TRUE(scheduler.Add(MakeRequest(Tokens(0, 20), 10), 0).ok());
  for (int moves = 0; moves < 5; ++moves) {
    EXPECT_TRUE(scheduler.NextStep(0).has_value());
    scheduler.Restart(Facts(2), SlotContents::kNothing, /*broke=*/false, 0);
  }
  EXPECT_TRUE(scheduler.TakeEvents().empty());
}

TEST(SchedulerFailure, BlamesNoRequestThatWasNotInTheStepsOfABrokenPipeline) {
  Scheduler scheduler(Facts(2), {});
  ASSERT_TRUE(scheduler.Add(MakeRequest(Tokens(0, 20), 10), 0).ok());
  for (int restarts = 0; restarts < 5; ++restarts)
    scheduler.Restart(Facts(2), SlotContents::kNothing, /*broke=*/true, 0);
  EXPECT_TRUE(scheduler.TakeEvents().empty());
}

TEST(SchedulerFailure, GoesOnWithARequestThatWasBegunElsewhere) {
  SchedulerSim sim(Facts(2), {});
  GenerationRequest request = MakeRequest(Tokens(0, 20), 30);
  const std::vector<int32_t> whole = FakeStages::Alone(Facts(2), request, 30);
  request.generated.assign(whole.begin(), whole.begin() + 12);
  const uint64_t id = *sim.Add(request);
  sim.RunToEnd();
  EXPECT_EQ(sim.seen[id].tokens, std::vector<int32_t>(whole.begin() + 12, whole.end()));
}

TEST(SchedulerFailure, AResultWithoutItsTokenIsAFailedStep) {
  Scheduler scheduler(Facts(1), {});
  ASSERT_TRUE(scheduler.Add(MakeRequest(Tokens(0, 20), 5), 0).ok());
  for (int i = 0; i < 20 && !scheduler.idle(); ++i) {
    const auto step = scheduler.NextStep(i);
    ASSERT_TRUE(step.has_value());
    wire::Result result;
    result.set_step_id(step->step_id());
    scheduler.OnResult(result, i);
  }
  const auto events = scheduler.TakeEvents();
  ASSERT_EQ(events.size(), 1);
  EXPECT_THAT(events[0].end->status, StatusIs(Code::kInternal));
}

}  // namespace
}  // namespace strata
