#include "coordinator/scheduler/scheduler.h"

#include <algorithm>
#include <random>
#include <vector>

#include "absl/status/status_matchers.h"
#include "coordinator/request/request_status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/scheduler/scheduler_sim.h"

namespace strata {
namespace {

using ::absl_testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Code = absl::StatusCode;

TEST(Scheduler, GeneratesTheTokensOfARequestThatRunsAlone) {
  SchedulerSim sim(Facts(), {});
  const uint64_t id = *sim.Add(MakeRequest(Tokens(10, 30), 20));
  sim.RunToEnd();
  EXPECT_EQ(sim.seen[id].tokens.size(), 20);
  ASSERT_TRUE(sim.seen[id].end.has_value());
  EXPECT_TRUE(sim.seen[id].end->status.ok());
  EXPECT_EQ(sim.seen[id].end->reason, FinishReason::kLength);
  sim.ExpectRequestsAsAlone();
  const GenerationUsage& usage = sim.seen[id].end->usage;
  EXPECT_EQ(usage.prompt_tokens, 30);
  EXPECT_EQ(usage.tokens, 20);
  EXPECT_EQ(usage.cached_tokens, 0);
  EXPECT_GT(usage.prompt_us, 0);
  EXPECT_GT(usage.decode_us, 0);
  ASSERT_EQ(usage.prompt_stages.size(), 2);
  EXPECT_EQ(usage.prompt_stages[0].steps, 1);
  EXPECT_EQ(usage.decode_stages[1].steps, 19);
}

// The tokens of the prompt that each report says are done.
std::vector<uint32_t> DoneOf(const SchedulerSim::Record& record) {
  std::vector<uint32_t> done;
  for (const PromptProgress& progress : record.progress) {
    EXPECT_EQ(progress.prompt_tokens, record.request.prompt.size());
    EXPECT_EQ(progress.cached_tokens, record.progress[0].done_tokens);
    done.push_back(progress.done_tokens);
  }
  return done;
}

TEST(Scheduler, SaysHowFarAPromptIsToThoseThatAsk) {
  PipelineFacts facts = Facts(1);
  facts.n_batch = 16;
  SchedulerSim sim(facts, {.chunk_tokens = 16});
  GenerationRequest request = MakeRequest(Tokens(10, 40), 3);
  const uint64_t silent = *sim.Add(request);
  sim.RunToEnd();
  EXPECT_THAT(sim.seen[silent].progress, IsEmpty());
  request.with_progress = true;
  request.prompt = Tokens(60, 40);
  const uint64_t id = *sim.Add(request);
  sim.RunToEnd();
  EXPECT_THAT(DoneOf(sim.seen[id]), ::testing::ElementsAre(0, 16, 32, 40));
}

TEST(Scheduler, AReportedPromptDoesNotGoBackWhereItIsFedAgain) {
  PipelineFacts facts = Facts(1);
  facts.n_batch = 16;
  SchedulerSim sim(facts, {.chunk_tokens = 16});
  GenerationRequest request = MakeRequest(Tokens(10, 64), 3);
  request.with_progress = true;
  const uint64_t id = *sim.Add(request);
  ASSERT_TRUE(sim.Next());
  ASSERT_TRUE(sim.Next());
  sim.Restart(facts);
  sim.RunToEnd();
  const std::vector<uint32_t> done = DoneOf(sim.seen[id]);
  EXPECT_EQ(done.front(), 0);
  EXPECT_EQ(done.back(), 64);
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(std::adjacent_find(done.begin(), done.end()), done.end());
  sim.ExpectRequestsAsAlone();
}

TEST(Scheduler, EndsAtTheEndOfGenerationWithoutShowingItsToken) {
  SchedulerSim sim(Facts(), {});
  int n_ended = 0;
  for (uint64_t seed = 2; seed < 10; ++seed) {
    GenerationRequest request = MakeRequest(Tokens(10, 5), 200);
    request.sampler.set_seed(seed);
    const uint64_t id = *sim.Add(request);
    sim.RunToEnd();
    n_ended += sim.seen[id].end->reason == FinishReason::kEndOfGeneration;
    EXPECT_THAT(sim.seen[id].tokens, testing::Not(testing::Contains(FakeStages::kEnd)));
  }
  EXPECT_GT(n_ended, 4);
  sim.ExpectRequestsAsAlone();
}

TEST(Scheduler, FillsTheContextAndNoMore) {
  PipelineFacts facts = Facts();
  facts.n_ctx = 16;
  SchedulerSim sim(facts, {});
  const uint64_t id = *sim.Add(MakeRequest(Tokens(0, 10), 1000));
  const uint64_t full = *sim.Add(MakeRequest(Tokens(0, 16), 1000));
  EXPECT_THAT(sim.Add(MakeRequest(Tokens(0, 17), 1)),
              StatusIs(Code::kInvalidArgument, HasSubstr("17")));
  sim.RunToEnd();
  EXPECT_EQ(sim.seen[id].tokens.size(), 6);
  EXPECT_EQ(sim.seen[full].tokens.size(), 0);
  EXPECT_EQ(sim.seen[full].end->reason, FinishReason::kLength);
  EXPECT_EQ(sim.seen[id].end->reason, FinishReason::kLength);
}

TEST(Scheduler, RefusesWhatThePipelineCannotServe) {
  PipelineFacts facts = Facts();
  facts.n_vocab = FakeStages::kVocabulary;
  SchedulerSim sim(facts, {});
  EXPECT_THAT(sim.Add(MakeRequest({}, 1)), StatusIs(Code::kInvalidArgument, HasSubstr("empty")));
  EXPECT_THAT(sim.Add(MakeRequest({-1}, 1)), StatusIs(Code::kInvalidArgument, HasSubstr("-1")));
  EXPECT_THAT(sim.Add(MakeRequest({1000}, 1)), StatusIs(Code::kInvalidArgument, HasSubstr("1000")));
}

TEST(Scheduler, KeepsEveryStageBusyWithGroupsOfSequences) {
  for (uint32_t n_stages : {1u, 2u, 4u}) {
    SchedulerSim sim(Facts(n_stages), {}, {.step_us = 10'000, .row_us = 100});
    for (int i = 0; i < 8; ++i) ASSERT_TRUE(sim.Add(MakeRequest(Tokens(i, 4), 60)).ok());
    sim.stages->KeepSteps();
    const int64_t start_us = sim.now_us;
    sim.RunToEnd();
    sim.ExpectRequestsAsAlone();
    // Once all decode, each step has its share, and no stage waits.
    const auto& steps = sim.stages->steps();
    const wire::Step& middle = steps[steps.size() / 2];
    EXPECT_EQ(middle.tokens_size(), static_cast<int>(8 / n_stages));
    const double busy_us = static_cast<double>(steps.size()) * (10'000 + 800.0 / n_stages);
    EXPECT_LT(static_cast<double>(sim.now_us - start_us), 1.15 * busy_us) << n_stages;
  }
}

TEST(Scheduler, OneSequenceJustCycles) {
  SchedulerSim sim(Facts(3), {}, {.step_us = 1000, .row_us = 0});
  const uint64_t id = *sim.Add(MakeRequest({1}, 11));
  sim.RunToEnd();
  EXPECT_EQ(sim.n_steps, 11);
  EXPECT_EQ(sim.seen[id].end->usage.decode_us, 10 * 3 * 1000);
}

TEST(Scheduler, AnotherSequenceJoinsAtTheNextStep) {
  SchedulerSim sim(Facts(), {});
  const uint64_t first = *sim.Add(MakeRequest(Tokens(0, 4), 50));
  while (sim.seen[first].tokens.size() < 5) sim.Next();
  const uint64_t second = *sim.Add(MakeRequest(Tokens(50, 4), 50));
  while (sim.seen[second].tokens.empty()) sim.Next();
  EXPECT_LE(sim.seen[first].tokens.size(), 8);
  sim.RunToEnd();
  sim.ExpectRequestsAsAlone();
}

TEST(Scheduler, FeedsAPromptInChunksThatFollowEachOther) {
  PipelineFacts facts = Facts(2);
  facts.n_ctx = 257;  // with the token that is written
  SchedulerSim sim(facts, {.chunk_tokens = 32}, {.step_us = 0, .row_us = 1000});
  const uint64_t id = *sim.Add(MakeRequest(Tokens(0, 256), 1));
  sim.stages->KeepSteps();
  sim.Submit();
  EXPECT_EQ(sim.stages->steps().size(), 3);  // one more than stages
  sim.RunToEnd();
  EXPECT_EQ(sim.stages->steps().size(), 8);
  EXPECT_EQ(sim.seen[id].end->usage.prompt_us, (8 + 1) * 32 * 1000);
}

// A prompt must not block other requests (users miss it elsewhere: exo #1908).
TEST(Scheduler, NobodysNextTokenWaitsLongBehindAPrompt) {
  for (uint32_t n_decoding : {1u, 2u, 4u}) {
    PipelineFacts facts = Facts(2);
    facts.n_ctx = 4096;
    // Like a llama of 1.1 B on two slow cores.
    const FakeCosts costs = {.step_us = 27'000, .row_us = 11'000};
    SchedulerSim sim(facts, {.prompt_wait_ms = 100}, costs);
    std::vector<uint64_t> decoding;
    for (uint32_t i = 0; i < n_decoding; ++i) {
      decoding.push_back(*sim.Add(MakeRequest({static_cast<int32_t>(i) + 1}, 1000)));
    }
    while (sim.seen[decoding.back()].tokens.size() < 20) sim.Next();
    const auto gap_us = [&](uint64_t id, size_t i) {
      const auto& at = sim.seen[id].token_us;
      return at[i] - at[i - 1];
    };
    const int64_t own_us = gap_us(decoding[0], 19);
    const size_t before = sim.seen[decoding[0]].tokens.size();
    const int64_t start_us = sim.now_us;
    std::vector<int32_t> long_prompt = Tokens(0, 512);
    long_prompt.insert(long_prompt.end(), long_prompt.begin(), long_prompt.end());
    const uint64_t prompt = *sim.Add(MakeRequest(long_prompt, 1));
    while (!sim.seen[prompt].end) sim.Next();
    const double rate = 1024.0 * 1e6 / static_cast<double>(sim.now_us - start_us);
    int64_t longest_us = 0;
    for (uint64_t id : decoding) {
      for (size_t i = before + 1; i < sim.seen[id].tokens.size(); ++i) {
        longest_us = std::max(longest_us, gap_us(id, i));
      }
    }
    EXPECT_LE(longest_us, own_us + 105'000) << n_decoding;
    // Three quarters of the wait are used on average: each of a round's two steps takes half of
    // that and half of the round without prompts, less a row that does not fit; one row in ten is
    // lost at the two ends.
    const int64_t step_us = (own_us + 75'000) / 2;
    const int64_t rows = (step_us - costs.step_us) / costs.row_us;
    const double rate_max =
        1e6 * static_cast<double>(2 * rows - n_decoding) / static_cast<double>(2 * step_us);
    EXPECT_GE(rate, 0.9 * rate_max) << n_decoding << ", longest " << longest_us;
    sim.RunToEnd();
    sim.ExpectRequestsAsAlone();
  }
}

// A row of a prompt costs more and more the longer the context behind it is.
TEST(Scheduler, NobodysNextTokenWaitsLongerBehindAPromptsEndThanBehindItsBeginning) {
  PipelineFacts facts = Facts(2);
  facts.n_ctx = 8192;
  const FakeCosts costs = {.step_us = 20'000, .row_us = 2000, .cell_ns = 2000};
  SchedulerSim sim(facts, {.prompt_wait_ms = 100}, costs);
  sim.stages->KeepSteps();
  const uint64_t decoding = *sim.Add(MakeRequest({1}, 4000));
  while (sim.seen[decoding].tokens.size() < 20) sim.Next();
  const size_t before = sim.seen[decoding].tokens.size();
  const size_t steps_before = sim.stages->steps().size();
  std::vector<int32_t> long_prompt;
  for (int i = 0; i < 8; ++i) {
    const std::vector<int32_t> part = Tokens(0, 512);
    long_prompt.insert(long_prompt.end(), part.begin(), part.end());
  }
  const uint64_t prompt = *sim.Add(MakeRequest(long_prompt, 1));
  while (!sim.seen[prompt].end) sim.Next();
  int64_t longest_us = 0;
  const auto& at = sim.seen[decoding].token_us;
  for (size_t i = before + 1; i < at.size(); ++i)
    longest_us = std::max(longest_us, at[i] - at[i - 1]);
  const int64_t own_us = 2 * (costs.step_us + costs.row_us + int64_t{costs.cell_ns} * 1000 / 1000);
  EXPECT_LE(longest_us, own_us + 105'000);
  // At its end a row costs five times as much as at its beginning.
  std::vector<int> rows;
  for (size_t i = steps_before; i < sim.stages->steps().size(); ++i) {
    const int n = sim.stages->steps()[i].tokens_size();
    if (n > 1) rows.push_back(n);
  }
  ASSERT_GT(rows.size(), 20);
  EXPECT_GE(rows[10], 3 * rows[rows.size() - 2]);
  EXPECT_GE(rows[rows.size() - 2], 4);
}

TEST(Scheduler, APromptMakesProgressWhereASecondRowCostsAsMuchAsTheFirst) {
  PipelineFacts facts = Facts(2);
  facts.n_ctx = 4096;
  // Like a llama of 1.1 B on two cores with matrix tiles.
  const FakeCosts costs = {.step_us = 22'000, .row_us = 4000, .rows_us = 14'000};
  SchedulerSim sim(facts, {.prompt_wait_ms = 100}, costs);
  const uint64_t decoding = *sim.Add(MakeRequest({1}, 1000));
  while (sim.seen[decoding].tokens.size() < 20) sim.Next();
  const size_t before = sim.seen[decoding].tokens.size();
  const int64_t start_us = sim.now_us;
  const uint64_t prompt = *sim.Add(MakeRequest(Tokens(0, 512), 1));
  while (!sim.seen[prompt].end) sim.Next();
  const auto took_us = static_cast<double>(sim.now_us - start_us);
  // A round is a token's step of 26 ms and one for the prompt, which takes 75 ms more: 16 rows.
  EXPECT_GE(512e6 / took_us, 0.85 * 16e6 / 127'000);
  EXPECT_GE(static_cast<double>(sim.seen[decoding].tokens.size() - before) * 52'000 / took_us, 0.4);
}

TEST(Scheduler, ChunksFindTheirSizeThoughStepsAreNoisy) {
  double rows_sum = 0;
  double longer_sum = 0;
  constexpr int kSeeds = 20;
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    PipelineFacts facts = Facts(2);
    facts.n_ctx = 4096;
    std::mt19937 random(seed);
    // One step in ten is delayed.
    const auto slowness = [&random] {
      return random() % 10 == 0 ? 2.0 : 0.8 + 0.4 * static_cast<double>(random() % 1000) / 1000;
    };
    const FakeCosts costs = {
        .step_us = 22'000, .row_us = 4000, .rows_us = 18'000, .slowness = slowness};
    SchedulerSim sim(facts, {.prompt_wait_ms = 100}, costs);
    sim.stages->KeepSteps();
    const uint64_t decoding = *sim.Add(MakeRequest({1}, 4000));
    while (sim.seen[decoding].tokens.size() < 20) sim.Next();
    const size_t before = sim.seen[decoding].tokens.size();
    const size_t steps_before = sim.stages->steps().size();
    const int64_t start_us = sim.now_us;
    std::vector<int32_t> prompt = Tokens(0, 900);
    prompt.insert(prompt.end(), prompt.begin(), prompt.end());
    const uint64_t id = *sim.Add(MakeRequest(prompt, 1));
    while (!sim.seen[id].end) sim.Next();
    const auto n_tokens = static_cast<double>(sim.seen[decoding].tokens.size() - before);
    const auto& steps = sim.stages->steps();
    const auto n_chunks =
        std::count_if(steps.begin() + static_cast<int64_t>(steps_before), steps.end(),
                      [](const wire::Step& step) { return step.tokens_size() > 1; });
    const double rows = 1800.0 / static_cast<double>(n_chunks);
    const double gap_us = static_cast<double>(sim.now_us - start_us) / n_tokens;
    // Steps take 1.1 times as long on average. The prompt's may take (26 × 1.1 + 75) ms; a token
    // comes so much later than after 2 × 26 × 1.1 ms.
    EXPECT_GE(rows, 8.5) << "seed " << seed;
    EXPECT_LE(rows, 15) << "seed " << seed;
    EXPECT_LE(gap_us, 2 * 26'000 * 1.1 + 100'000) << "seed " << seed;
    rows_sum += rows;
    longer_sum += gap_us - 2 * 26'000 * 1.1;
  }
  // Some of the noise is taken for a cost of the context.
  EXPECT_NEAR(rows_sum / kSeeds, ((26 * 1.1 + 75) / 1.1 - 40) / 4, 2);
  EXPECT_LE(longer_sum / kSeeds, 90'000);
}

TEST(Scheduler, SequencesThatAreFedAgainDoNotWaitForThoseThatAlreadyGoOn) {
  PipelineFacts facts = Facts(2);
  facts.n_ctx = 1024;
  facts.n_slots = 9;
  SchedulerSim sim(facts, {}, {.step_us = 20'000, .row_us = 4000});
  std::vector<uint64_t> ids;
  for (int i = 0; i < 8; ++i) ids.push_back(*sim.Add(MakeRequest(Tokens(i, 300), 600)));
  const auto written = [&](uint64_t id) { return sim.seen[id].tokens.size(); };
  const auto all_have = [&](const std::vector<size_t>& n) {
    for (size_t i = 0; i < n.size(); ++i) {
      if (written(ids[i]) <= n[i]) return false;
    }
    return true;
  };
  while (!all_have(std::vector<size_t>(ids.size(), 3))) ASSERT_TRUE(sim.Next());
  std::vector<size_t> before;
  for (const uint64_t id : ids) before.push_back(written(id));

  const int64_t start_us = sim.now_us;
  sim.Restart(facts);
  // Nor for a new request.
  const uint64_t late = *sim.Add(MakeRequest(Tokens(600, 300), 10));
  std::vector<int64_t> last_us(ids.size(), start_us);
  std::vector<size_t> n_seen = before;
  int64_t longest_us = 0;  // between two tokens of a request that goes on
  while (!all_have(before)) {
    ASSERT_TRUE(sim.Next());
    EXPECT_THAT(sim.seen[late].tokens, IsEmpty());
    for (size_t i = 0; i < ids.size(); ++i) {
      if (written(ids[i]) == n_seen[i]) continue;
      if (n_seen[i] > before[i]) longest_us = std::max(longest_us, sim.now_us - last_us[i]);
      n_seen[i] = written(ids[i]);
      last_us[i] = sim.now_us;
    }
  }
  size_t rows = 0;
  for (size_t i = 0; i < ids.size(); ++i) rows += 300 + before[i];
  EXPECT_LE(sim.now_us - start_us, 1.25 * static_cast<double>(rows) * 4000);
  EXPECT_GT(longest_us, 0);
  EXPECT_LE(longest_us, 1'250'000);
  sim.RunToEnd();
  sim.ExpectRequestsAsAlone();
}

TEST(Scheduler, ARequestOfALostCoordinatorIsAdmittedBeforeNewOnes) {
  PipelineFacts facts = Facts();
  facts.n_slots = 1;
  SchedulerSim sim(facts, {.queue_max = 3});
  const uint64_t running = *sim.Add(MakeRequest(Tokens(0, 10), 5));
  ASSERT_TRUE(sim.Next());
  const uint64_t waits = *sim.Add(MakeRequest(Tokens(100, 10), 5));
  GenerationRequest begun = MakeRequest(Tokens(200, 10), 5);
  begun.generated = {7, 8};
  const uint64_t goes_on = *sim.Add(begun);
  EXPECT_TRUE(sim.Add(MakeRequest(Tokens(300, 10), 5)).ok());
  // The queue is full for these, too.
  EXPECT_THAT(sim.Add(begun), StatusIs(Code::kResourceExhausted));
  while (!sim.seen[running].end) ASSERT_TRUE(sim.Next());
  while (!sim.seen[goes_on].end) {
    ASSERT_TRUE(sim.Next());
    EXPECT_THAT(sim.seen[waits].tokens, IsEmpty());
  }
  EXPECT_EQ(sim.seen[goes_on].tokens.size(), 3);
  sim.RunToEnd();
  EXPECT_EQ(sim.seen[waits].tokens.size(), 5);
}

TEST(Scheduler, APromptMakesProgressHoweverSlowTheStagesAre) {
  SchedulerSim sim(Facts(2), {.prompt_wait_ms = 1}, {.step_us = 50'000, .row_us = 50'000});
  const uint64_t decoding = *sim.Add(MakeRequest({1}, 250));
  while (sim.seen[decoding].tokens.size() < 3) sim.Next();
  const uint64_t id = *sim.Add(MakeRequest(Tokens(0, 40), 1));
  while (!sim.seen[id].end) ASSERT_TRUE(sim.Next());
  EXPECT_FALSE(sim.seen[decoding].end);
}

TEST(Scheduler, ClientsTakeTurnsHoweverManyRequestsEachHas) {
  PipelineFacts facts = Facts();
  facts.n_slots = 2;
  SchedulerSim sim(facts, {.queue_max = 100});
  std::vector<uint64_t> greedy;
  for (int i = 0; i < 20; ++i) greedy.push_back(*sim.Add(MakeRequest(Tokens(i, 8), 8, "greedy")));
  for (int i = 0; i < 4; ++i) sim.Next();
  const uint64_t modest = *sim.Add(MakeRequest(Tokens(99, 8), 8, "modest"));
  while (!sim.seen[modest].end) ASSERT_TRUE(sim.Next());
  EXPECT_LE(std::count_if(greedy.begin(), greedy.end(),
                          [&](uint64_t id) { return sim.seen[id].end.has_value(); }),
            4);
  sim.RunToEnd();
  sim.ExpectRequestsAsAlone();
}

TEST(Scheduler, PromptsOfClientsShareTheStepsEqually) {
  SchedulerSim sim(Facts(1), {.chunk_tokens = 16});
  std::vector<uint64_t> many;
  for (int i = 0; i < 4; ++i)
    many.push_back(*sim.Add(MakeRequest(Tokens(100 * i, 200), 1, "many")));
  const uint64_t one = *sim.Add(MakeRequest(Tokens(500, 200), 1, "one"));
  while (!sim.seen[one].end) ASSERT_TRUE(sim.Next());
  // While one client had 200 tokens fed, so had the other: its first prompt and a little more.
  EXPECT_LE(std::count_if(many.begin(), many.end(),
                          [&](uint64_t id) { return sim.seen[id].end.has_value(); }),
            1);
}

TEST(Scheduler, RefusesWithARetryHintWhenTheQueueIsFull) {
  PipelineFacts facts = Facts();
  facts.n_slots = 1;
  SchedulerSim sim(facts, {.queue_max = 4});
  ASSERT_TRUE(sim.Add(MakeRequest({1}, 5, "a")).ok());
  sim.Submit();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(sim.Add(MakeRequest({1}, 5, "a")).ok());
  // The rest of the queue is for other clients.
  const auto refused = sim.Add(MakeRequest({1}, 5, "a"));
  EXPECT_THAT(refused, StatusIs(Code::kResourceExhausted));
  EXPECT_GE(RetryAfterMs(refused.status()).value_or(0), 1000);
  EXPECT_TRUE(IsClientLimit(refused.status()));
  ASSERT_TRUE(sim.Add(MakeRequest({1}, 5, "b")).ok());
  const auto full = sim.Add(MakeRequest({1}, 5, "c"));
  EXPECT_THAT(full, StatusIs(Code::kResourceExhausted));
  EXPECT_GE(RetryAfterMs(full.status()).value_or(0), 1000);
  EXPECT_FALSE(IsClientLimit(full.status()));
  EXPECT_EQ(sim.scheduler.Stats().requests_refused, 2);
  sim.RunToEnd();
  EXPECT_TRUE(sim.scheduler.idle());
  EXPECT_TRUE(sim.Add(MakeRequest({1}, 5, "c")).ok());
}

TEST(Scheduler, CancelDropsTheSlotWithTheNextStep) {
  SchedulerSim sim(Facts(), {});
  const uint64_t first = *sim.Add(MakeRequest(Tokens(0, 4), 100));
  const uint64_t second = *sim.Add(MakeRequest(Tokens(30, 4), 100));
  while (sim.seen[second].tokens.size() < 5) sim.Next();
  sim.stages->KeepSteps();
  sim.scheduler.Cancel(first, Scheduler::Leave::kDrop, sim.now_us);
  sim.TakeEvents();
  EXPECT_EQ(sim.seen[first].end->reason, FinishReason::kCancelled);
  while (sim.stages->steps().empty()) sim.Next();
  EXPECT_EQ(CountEdits(sim.stages->steps()[0], wire::KvEdit::DROP), 1);
  EXPECT_EQ(sim.scheduler.Stats().slots_kept, 0);
  sim.RunToEnd();
  sim.ExpectRequestsAsAlone();
}

TEST(Scheduler, AStepOfEditsAloneFreesTheLastCancelledSlot) {
  SchedulerSim sim(Facts(), {});
  const uint64_t id = *sim.Add(MakeRequest(Tokens(0, 100), 100));
  while (sim.seen[id].tokens.size() < 5) sim.Next();
  sim.scheduler.Cancel(id, Scheduler::Leave::kDrop, sim.now_us);
  sim.RunToEnd();
  for (uint32_t stage = 0; stage < 2; ++stage) EXPECT_EQ(sim.stages->length(stage, 0), 0);
  EXPECT_FALSE(sim.stages->is_open(0));
}

TEST(Scheduler, CancelEndsARequestThatWaits) {
  PipelineFacts facts = Facts();
  facts.n_slots = 1;
  SchedulerSim sim(facts, {});
  ASSERT_TRUE(sim.Add(MakeRequest({1}, 5)).ok());
  sim.Submit();
  const uint64_t id = *sim.Add(MakeRequest({1}, 5));
  sim.scheduler.Cancel(id, Scheduler::Leave::kDrop, sim.now_us);
  sim.scheduler.Cancel(id, Scheduler::Leave::kDrop, sim.now_us);
  sim.RunToEnd();
  EXPECT_EQ(sim.seen[id].end->reason, FinishReason::kCancelled);
  EXPECT_THAT(sim.seen[id].tokens, IsEmpty());
}

TEST(Scheduler, SequencesThatOpenTogetherFitIntoAFrame) {
  SchedulerSim sim(Facts(), {});
  for (int i = 0; i < 8; ++i) {
    GenerationRequest request = MakeRequest(Tokens(i * 10, 5), 5);
    request.sampler.set_grammar(std::string(3 << 20, 'x'));
    sim.Add(request).IgnoreError();
  }
  sim.stages->KeepSteps();
  sim.RunToEnd();
  for (const wire::Step& step : sim.stages->steps()) EXPECT_LE(step.ByteSizeLong(), 9u << 20);
  for (const auto& [id, s] : sim.seen) EXPECT_EQ(s.tokens.size(), 5);
  sim.ExpectRequestsAsAlone();
}

TEST(Scheduler, IgnoresResultsThatAreOutOfOrder) {
  SchedulerSim sim(Facts(2), {});
  ASSERT_TRUE(sim.Add(MakeRequest(Tokens(0, 20), 5)).ok());
  wire::Result result;
  result.set_step_id(0);
  sim.scheduler.OnResult(result, sim.now_us);
  sim.Submit();
  sim.scheduler.OnResult(result, sim.now_us);
  sim.RunToEnd();
  sim.ExpectRequestsAsAlone();
}

TEST(FactsOf, AreWhatAllStagesCanDo) {
  wire::StageInfo info;
  info.set_n_ctx(512);
  info.set_n_seq_max(4);
  info.set_n_batch(128);
  info.mutable_cache()->set_trim(true);
  info.mutable_cache()->set_copy(true);
  std::vector<wire::StageInfo> stages(2, info);
  stages[1].mutable_cache()->set_copy(false);
  stages[1].mutable_cache()->set_window_tokens(100);
  stages[0].set_kv_cells(3000);
  stages[1].set_kv_cells(2000);
  stages[1].set_n_batch(64);
  auto facts = FactsOf(stages);
  ASSERT_TRUE(facts.ok());
  EXPECT_EQ(facts->n_batch, 64);
  EXPECT_TRUE(facts->cache.trim);
  EXPECT_FALSE(facts->cache.copy);
  EXPECT_FALSE(facts->cache.shift);
  EXPECT_EQ(facts->cache.window_tokens, 100);
  EXPECT_FALSE(facts->cache.checkpoint);
  EXPECT_EQ(facts->kv_cells, 2000);
  stages[1].set_n_ctx(256);
  EXPECT_THAT(FactsOf(stages), StatusIs(Code::kInvalidArgument));
  stages[1].clear_n_ctx();
  EXPECT_THAT(FactsOf(stages), StatusIs(Code::kInvalidArgument));
}

}  // namespace
}  // namespace strata
