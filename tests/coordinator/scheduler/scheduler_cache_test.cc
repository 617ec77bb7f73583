// How the scheduler uses the caches: shared prefixes, checkpoints, and the cells that all sequences
// share.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "coordinator/scheduler/scheduler.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/scheduler/scheduler_sim.h"

namespace strata {
namespace {

using ::testing::IsEmpty;

// The next turn of a conversation, after `before`.
std::vector<int32_t> NextTurn(const SchedulerSim::Record& before, size_t n) {
  std::vector<int32_t> prompt = before.request.prompt;
  prompt.insert(prompt.end(), before.tokens.begin(), before.tokens.end());
  const std::vector<int32_t> more = Tokens(700, n);
  prompt.insert(prompt.end(), more.begin(), more.end());
  return prompt;
}

TEST(SchedulerCache, TheNextTurnOfAConversationIsFedOnlyWhatIsNew) {
  for (const CacheAbility& cache :
       {CacheAbility{}, CacheAbility{.trim = false, .copy = false, .shift = false},
        CacheAbility{.copy = false, .shift = false, .window_tokens = 8}}) {
    PipelineFacts facts = Facts();
    facts.cache = cache;
    SchedulerSim sim(facts, {});
    const uint64_t first = *sim.Add(MakeRequest(Tokens(0, 40), 10));
    sim.RunToEnd();
    const uint64_t second = *sim.Add(MakeRequest(NextTurn(sim.seen[first], 20), 10));
    sim.RunToEnd();
    // The last token of the first turn was never fed.
    EXPECT_EQ(sim.seen[second].end->usage.cached_tokens, 49);
    sim.ExpectRequestsAsAlone();
  }
}

TEST(SchedulerCache, WhatNeedsEveryRowReusesNothingAndOthersReuseIt) {
  const auto scored = [] {
    GenerationRequest request = MakeRequest(Tokens(0, 60), 10);
    request.sampler.set_prompt_logprobs(true);
    return request;
  };
  const auto embedded = [] {
    GenerationRequest request = MakeRequest(Tokens(0, 60), 1);
    request.sampler.set_pooling(wire::POOLING_MEAN);
    return request;
  };
  SchedulerSim sim(Facts(), {.chunk_tokens = 16});
  ASSERT_TRUE(sim.Add(MakeRequest(Tokens(0, 60), 10)).ok());
  sim.RunToEnd();
  const uint64_t first = *sim.Add(scored());
  const uint64_t second = *sim.Add(embedded());
  const uint64_t third = *sim.Add(scored());
  sim.RunToEnd();
  for (const uint64_t id : {first, second, third}) {
    EXPECT_EQ(sim.seen[id].end->status, absl::OkStatus());
    EXPECT_EQ(sim.seen[id].end->usage.cached_tokens, 0);
  }
  EXPECT_EQ(sim.seen[first].prompts, 1);
  EXPECT_EQ(sim.seen[second].embeddings, 1);
  EXPECT_EQ(sim.seen[third].prompts, 1);
  const uint64_t next = *sim.Add(MakeRequest(Tokens(0, 60), 10));
  sim.RunToEnd();
  EXPECT_EQ(sim.seen[next].end->usage.cached_tokens, 59);
  sim.ExpectRequestsAsAlone();
}

TEST(SchedulerCache, WhatNeedsEveryRowBeginsAnewWhereItsCachesMoved) {
  for (const bool embeds : {true, false}) {
    SchedulerSim sim(Facts(), {.chunk_tokens = 16});
    GenerationRequest request = MakeRequest(Tokens(0, 60), 3);
    if (embeds) {
      request.sampler.set_pooling(wire::POOLING_MEAN);
    } else {
      request.sampler.set_prompt_logprobs(true);
    }
    const uint64_t id = *sim.Add(request);
    for (int i = 0; i < 2; ++i) sim.Next();
    while (sim.TakeNext()) {
    }
    EXPECT_TRUE(sim.Move());
    sim.RunToEnd();
    EXPECT_EQ(sim.seen[id].end->status, absl::OkStatus());
    EXPECT_EQ(sim.seen[id].embeddings + sim.seen[id].prompts, 1);
    sim.ExpectRequestsAsAlone();
  }
}

TEST(SchedulerCache, AnotherPromptReusesTheBeginningByTrim) {
  SchedulerSim sim(Facts(), {});
  std::vector<int32_t> prompt = Tokens(0, 60);
  ASSERT_TRUE(sim.Add(MakeRequest(prompt, 10)).ok());
  sim.RunToEnd();
  prompt[50] = 5;
  const uint64_t second = *sim.Add(MakeRequest(prompt, 10));
  sim.RunToEnd();
  EXPECT_EQ(sim.seen[second].end->usage.cached_tokens, 50);
  const uint64_t same = *sim.Add(MakeRequest(prompt, 10));
  sim.RunToEnd();
  EXPECT_EQ(sim.seen[same].end->usage.cached_tokens, 59);  // one row gives the logits
  sim.ExpectRequestsAsAlone();
}

TEST(SchedulerCache, RequestsThatRunAtTheSameTimeShareTheirBeginningByCopy) {
  SchedulerSim sim(Facts(), {});
  const uint64_t first = *sim.Add(MakeRequest(Tokens(0, 60), 100));
  while (sim.seen[first].tokens.size() < 3) sim.Next();
  std::vector<int32_t> prompt = Tokens(0, 40);
  prompt.push_back(700);
  const uint64_t second = *sim.Add(MakeRequest(prompt, 10));
  sim.RunToEnd();
  EXPECT_EQ(sim.seen[second].end->usage.cached_tokens, 40);
  sim.ExpectRequestsAsAlone();
}

// Eight prompts with the same first 150 tokens, and one token of their own each.
std::vector<uint64_t> AddEightThatBeginAlike(SchedulerSim* sim, uint32_t tokens_max) {
  std::vector<uint64_t> ids;
  for (int i = 0; i < 8; ++i) {
    std::vector<int32_t> prompt = Tokens(0, 150);
    prompt.push_back(300 + i);
    ids.push_back(*sim->Add(MakeRequest(prompt, tokens_max)));
  }
  return ids;
}

TEST(SchedulerCache, TheContextBehindEachRowIsCounted) {
  SchedulerSim sim(Facts(), {.chunk_tokens = 32});
  ASSERT_TRUE(sim.Add(MakeRequest(Tokens(0, 40), 20)).ok());
  sim.RunToEnd();
  // Behind a row are its own position and all before it. The last token is not fed.
  EXPECT_EQ(sim.scheduler.Stats().rows, 59u);
  EXPECT_EQ(sim.scheduler.Stats().cells, 59u * 60 / 2);
}

TEST(SchedulerCache, RequestsThatComeTogetherFeedTheirBeginningOnce) {
  SchedulerSim sim(Facts(), {.chunk_tokens = 32});
  const std::vector<uint64_t> ids = AddEightThatBeginAlike(&sim, 20);
  const uint64_t other = *sim.Add(MakeRequest(Tokens(400, 40), 20, "other client"));
  while (sim.seen[other].tokens.empty()) sim.Next();
  EXPECT_THAT(sim.seen[ids.front()].tokens, IsEmpty())
      << "a request with another beginning does not wait";
  sim.RunToEnd();
  sim.ExpectRequestsAsAlone();
  for (size_t i = 1; i < ids.size(); ++i) {
    EXPECT_EQ(sim.seen[ids[i]].end->usage.cached_tokens, 150);
  }
  // The last token of each request is not fed.
  EXPECT_EQ(sim.scheduler.Stats().rows, 150u + 8 * (1 + 19) + 40 + 19);
}

TEST(SchedulerCache, RequestsThatShareTheirBeginningFeedItOnceInAnotherPipeline) {
  SchedulerSim sim(Facts(2), {.chunk_tokens = 32});
  const std::vector<uint64_t> ids = AddEightThatBeginAlike(&sim, 40);
  while (sim.seen[ids[7]].tokens.size() < 7) sim.Next();
  const uint64_t rows_before = sim.scheduler.Stats().rows;
  sim.Restart(Facts(2));
  sim.RunToEnd();
  sim.ExpectRequestsAsAlone();
  EXPECT_LE(sim.scheduler.Stats().rows - rows_before, 150u + 8 * (1 + 39));
}

TEST(SchedulerCache, ACancelledRequestWhoseBeginningIsAwaitedBlocksNoOther) {
  SchedulerSim sim(Facts(), {.chunk_tokens = 16});
  const uint64_t first = *sim.Add(MakeRequest(Tokens(0, 150), 20));
  const uint64_t second = *sim.Add(MakeRequest(Tokens(0, 140), 20));
  sim.Submit();
  sim.scheduler.Cancel(first, Scheduler::Leave::kDrop, sim.now_us);
  sim.RunToEnd();
  EXPECT_EQ(sim.seen[second].tokens.size(), 20);
  sim.ExpectRequestsAsAlone();
}

TEST(SchedulerCache, ACacheThatCannotTrimGoesOnFromCheckpoints) {
  for (const bool copies : {true, false}) {
    PipelineFacts facts = Facts();
    facts.cache = {.trim = false, .copy = copies, .shift = false, .checkpoint = true};
    facts.n_checkpoints = 4;
    SchedulerSim sim(facts, {});
    const std::vector<int32_t> system = Tokens(0, 50);
    const auto prompt_of = [&](int32_t question) {
      std::vector<int32_t> prompt = system;
      for (int32_t i = 0; i < 30; ++i) prompt.push_back(question + i);
      return prompt;
    };
    const auto cached = [&](const std::vector<int32_t>& prompt) {
      const uint64_t id = *sim.Add(MakeRequest(prompt, 10));
      sim.RunToEnd();
      return sim.seen[id].end->usage.cached_tokens;
    };
    EXPECT_EQ(cached(prompt_of(100)), 0);
    EXPECT_EQ(cached(prompt_of(100)), 64);  // saved before the end of every prompt
    EXPECT_EQ(cached(prompt_of(200)), 0);   // the second shows where prompts part, and saves it
    EXPECT_EQ(cached(prompt_of(300)), 50);
    EXPECT_EQ(cached(prompt_of(400)), 50);
    sim.ExpectRequestsAsAlone();
  }
}

TEST(SchedulerCache, TheLeastRecentlyUsedCheckpointIsReplaced) {
  PipelineFacts facts = Facts();
  facts.cache = {.copy = false, .shift = false, .window_tokens = 8, .checkpoint = true};
  facts.n_checkpoints = 3;
  SchedulerSim sim(facts, {});
  const auto cached = [&](int32_t first) {
    const uint64_t id = *sim.Add(MakeRequest(Tokens(first, 80), 3));
    sim.RunToEnd();
    return sim.seen[id].end->usage.cached_tokens;
  };
  EXPECT_EQ(cached(0), 0);
  for (int32_t i = 1; i < 6; ++i) {
    EXPECT_EQ(cached(100 * i), 0);
    EXPECT_EQ(cached(0), 64);
  }
  EXPECT_EQ(cached(500), 64);
  EXPECT_EQ(cached(100), 0);
  EXPECT_EQ(sim.scheduler.Stats().checkpoints, 3);
  sim.ExpectRequestsAsAlone();
}

TEST(SchedulerCache, ACheckpointThatOneStageLostIsNotRestored) {
  PipelineFacts facts = Facts();
  facts.cache = {.trim = false, .copy = true, .shift = false, .checkpoint = true};
  facts.n_checkpoints = 4;
  for (uint32_t stage = 0; stage < facts.n_stages; ++stage) {
    for (const auto kind : {FakeFault::kBatch, FakeFault::kDataLoss, FakeFault::kEdits}) {
      for (int nth = 1; nth < 8; ++nth) {
        SchedulerSim sim(facts, {.chunk_tokens = 32});
        sim.make_fault = [&](const wire::Step& step) -> std::optional<FakeFault> {
          if (static_cast<int>(step.step_id()) != nth) return std::nullopt;
          return FakeFault{.stage = stage, .kind = kind};
        };
        std::vector<int32_t> prompt = Tokens(0, 80);
        for (int32_t i = 0; i < 3; ++i) {
          prompt.back() = i;
          ASSERT_TRUE(sim.Add(MakeRequest(prompt, 5)).ok());
          sim.RunToEnd();
        }
        for (const auto& [id, s] : sim.seen) EXPECT_TRUE(s.end && s.end->status.ok()) << id;
        sim.ExpectRequestsAsAlone();
      }
    }
  }
}

TEST(SchedulerCache, AFullWindowIsNeverTrimmed) {
  PipelineFacts facts = Facts();
  facts.cache = {.copy = false, .shift = false, .window_tokens = 64};
  SchedulerSim sim(facts, {});
  std::vector<int32_t> prompt = Tokens(0, 40);
  const auto cached = [&] {
    const uint64_t id = *sim.Add(MakeRequest(prompt, 10));
    sim.RunToEnd();
    return sim.seen[id].end->usage.cached_tokens;
  };
  EXPECT_EQ(cached(), 0);
  prompt[30] = 7;
  EXPECT_EQ(cached(), 30);  // the window is not full yet
  prompt = Tokens(0, 60);
  EXPECT_EQ(cached(), 30);
  prompt[50] = 7;
  EXPECT_EQ(cached(), 0);
  sim.ExpectRequestsAsAlone();
}

TEST(SchedulerCache, KeptSequencesMakeRoomTheLeastRecentlyUsedFirst) {
  PipelineFacts facts = Facts();
  facts.n_slots = 3;
  SchedulerSim sim(facts, {});
  const auto cached = [&](int32_t first) {
    const uint64_t id = *sim.Add(MakeRequest(Tokens(first, 40), 1));
    sim.RunToEnd();
    return sim.seen[id].end->usage.cached_tokens;
  };
  for (int32_t first : {0, 100, 200}) cached(first);
  EXPECT_EQ(sim.scheduler.Stats().slots_kept, 3);
  EXPECT_EQ(cached(0), 39);
  cached(300);  // instead of 100
  EXPECT_EQ(cached(0), 39);
  EXPECT_EQ(cached(200), 39);
  EXPECT_EQ(cached(100), 0);
}

TEST(SchedulerCache, CountsTheCellsOfAllSlotsTogether) {
  PipelineFacts facts = Facts();
  facts.kv_cells = 300;  // of 8 × 256
  SchedulerSim sim(facts, {});
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(sim.Add(MakeRequest(Tokens(100 * i, 100), 60)).ok());
  sim.Submit();
  EXPECT_EQ(sim.scheduler.Stats().running, 2);
  sim.RunToEnd();
  sim.ExpectRequestsAsAlone();
  EXPECT_EQ(sim.scheduler.Stats().steps_failed, 0);
  EXPECT_LE(sim.scheduler.Stats().kv_cells_used, 300);
}

TEST(SchedulerCache, SequencesThatGrowBeyondTheCellsAreFedAgainLater) {
  PipelineFacts facts = Facts();
  facts.kv_cells = 260;
  SchedulerSim sim(facts, {});
  std::vector<uint64_t> ids;
  for (int i = 0; i < 6; ++i) ids.push_back(*sim.Add(MakeRequest(Tokens(100 * i, 10), 200)));
  sim.RunToEnd();
  EXPECT_GT(sim.scheduler.Stats().preemptions, 0);
  EXPECT_EQ(sim.scheduler.Stats().steps_failed, 0);
  for (uint64_t id : ids) EXPECT_EQ(sim.seen[id].tokens.size(), 200);
  sim.ExpectRequestsAsAlone();
}

TEST(SchedulerCache, ShiftsTheContextOnlyWhereRequestedAndPossible) {
  PipelineFacts facts = Facts();
  facts.n_ctx = 64;
  SchedulerSim sim(facts, {});
  GenerationRequest request = MakeShiftingRequest(Tokens(0, 20), 300, 4);
  const uint64_t shifted = *sim.Add(request);
  request.shift_context = false;
  const uint64_t plain = *sim.Add(request);
  sim.RunToEnd();
  EXPECT_EQ(sim.seen[shifted].tokens.size(), 300);
  EXPECT_EQ(sim.seen[plain].tokens.size(), 44);
  EXPECT_EQ(sim.scheduler.Stats().steps_failed, 0);

  facts.cache.shift = false;
  SchedulerSim cannot(facts, {});
  request.shift_context = true;
  const uint64_t id = *cannot.Add(request);
  cannot.RunToEnd();
  EXPECT_EQ(cannot.seen[id].tokens.size(), 44);
  EXPECT_EQ(cannot.seen[id].end->reason, FinishReason::kLength);
}

TEST(SchedulerCache, ARequestThatMayShiftSharesNoCellsButReusesKeptSequences) {
  PipelineFacts facts = Facts();
  facts.n_ctx = 128;
  SchedulerSim sim(facts, {});
  const GenerationRequest request = MakeShiftingRequest(Tokens(0, 80), 200, 0);
  const uint64_t shifted = *sim.Add(request);
  while (sim.seen[shifted].tokens.empty()) sim.Next();
  const uint64_t plain = *sim.Add(MakeRequest(Tokens(0, 80), 10));
  const uint64_t shifted_too = *sim.Add(request);
  sim.RunToEnd();
  EXPECT_EQ(sim.seen[plain].end->usage.cached_tokens, 0);
  EXPECT_EQ(sim.seen[shifted_too].end->usage.cached_tokens, 0);
  const uint64_t next = *sim.Add(request);
  sim.RunToEnd();
  EXPECT_EQ(sim.seen[next].end->usage.cached_tokens, 79);
  sim.ExpectRequestsAsAlone();
  EXPECT_EQ(sim.scheduler.Stats().steps_failed, 0);
}

}  // namespace
}  // namespace strata
