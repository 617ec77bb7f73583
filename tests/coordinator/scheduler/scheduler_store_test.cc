// Prompts whose KV blocks the stages keep on their disks: what is stored, loaded, and forgotten.
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/scheduler/kv_index.h"
#include "gtest/gtest.h"
#include "tests/coordinator/scheduler/scheduler_sim.h"

namespace strata {
namespace {

PipelineFacts StoringFacts(uint32_t kv_blocks_max = 100) {
  PipelineFacts facts = Facts();
  facts.n_ctx = 1024;
  facts.n_slots = 2;
  facts.cache = {.trim = true, .copy = true, .rewind = true};
  facts.kv_blocks_max = kv_blocks_max;
  return facts;
}

// `n` tokens, the same for the same `first`.
std::vector<int32_t> Text(int32_t first, size_t n) {
  std::vector<int32_t> tokens(n);
  std::iota(tokens.begin(), tokens.end(), first);
  for (int32_t& token : tokens) token %= 900;
  return tokens;
}

class SchedulerStore : public ::testing::Test {
 protected:
  // Runs a request; returns how many tokens of its prompt were cached.
  uint32_t Run(std::vector<int32_t> prompt, const std::string& scope = "") {
    GenerationRequest request = MakeRequest(std::move(prompt), 4);
    request.cache_scope = scope;
    request.sampler.set_seed(FakeStages::kEndlessSeed);
    const auto id = sim_.Add(std::move(request));
    EXPECT_TRUE(id.ok()) << id.status();
    sim_.RunToEnd();
    const auto& record = sim_.seen.at(*id);
    EXPECT_TRUE(record.end && record.end->status.ok());
    sim_.ExpectRequestsAsAlone();
    return record.end->usage.cached_tokens;
  }
  // Other prompts, for which the slots give up what they hold.
  void FillSlots() {
    for (int i = 0; i < 2; ++i) EXPECT_EQ(Run(Text(filler_ += 7, 40)), 0u);
  }
  size_t OnDisk(size_t stage) { return sim_.stages->stores()[stage].size(); }

  PipelineFacts facts_ = StoringFacts();
  SchedulerSim sim_{facts_, {}};
  int32_t filler_ = 500;
};

TEST_F(SchedulerStore, ALostSlotIsLoaded) {
  EXPECT_EQ(Run(Text(1, 300)), 0u);
  EXPECT_EQ(OnDisk(0), 4u);
  EXPECT_EQ(sim_.scheduler.Stats().kv_blocks, 4u);
  FillSlots();
  EXPECT_EQ(Run(Text(1, 300)), 256u);
  EXPECT_EQ(sim_.scheduler.Stats().loaded_tokens, 256u);
  EXPECT_EQ(Run(Text(1, 300)), 299u) << "the slot has more than the disk";
  EXPECT_EQ(OnDisk(0), 4u);
}

TEST_F(SchedulerStore, OtherStagesLoadWhatWasStoredBefore) {
  Run(Text(1, 200));
  sim_.Restart(facts_);
  EXPECT_EQ(Run(Text(1, 200)), 192u);
  // The last token is fed, always.
  sim_.Restart(facts_);
  EXPECT_EQ(Run(Text(1, 192)), 128u);
}

TEST_F(SchedulerStore, APromptThatPartsFromAnEarlierOneLosesWhatFollows) {
  Run(Text(1, 300));
  std::vector<int32_t> prompt = Text(1, 300);
  prompt[150] = 899;
  FillSlots();
  EXPECT_EQ(Run(prompt), 128u);
  EXPECT_EQ(OnDisk(0), 6u) << "two blocks are shared";
}

TEST_F(SchedulerStore, ScopesDoNotShare) {
  Run(Text(1, 200), "token a");
  EXPECT_EQ(Run(Text(1, 200)), 0u) << "neither a slot";
  sim_.Restart(facts_);
  EXPECT_EQ(Run(Text(1, 200), "token b"), 0u) << "nor the disk";
  EXPECT_EQ(Run(Text(1, 200), "token a"), 192u);
}

TEST_F(SchedulerStore, ABlockThatAStageLacksIsNotLoaded) {
  Run(Text(1, 300));
  const std::vector<KvName> names = KvNamesOf("", Text(1, 300));
  sim_.stages->stores()[1].erase(names[2]);
  sim_.Restart(facts_);
  EXPECT_EQ(Run(Text(1, 300)), 128u);
  sim_.Restart(facts_);
  EXPECT_EQ(Run(Text(1, 300)), 256u) << "it was stored again";
}

TEST_F(SchedulerStore, ABlockThatIsLostUnnoticedCostsItsTokens) {
  Run(Text(1, 300));
  FillSlots();
  sim_.stages->stores()[1].erase(KvNamesOf("", Text(1, 300))[1]);
  EXPECT_EQ(Run(Text(1, 300)), 0u);
  EXPECT_EQ(sim_.scheduler.Stats().steps_failed, 1u);
  FillSlots();
  EXPECT_EQ(Run(Text(1, 300)), 256u) << "it was stored again";
  EXPECT_EQ(sim_.scheduler.Stats().steps_failed, 1u);
}

TEST_F(SchedulerStore, AStageThatClaimsToHaveLostWhatNobodyKnowsChangesNothing) {
  Run(Text(1, 300));
  ASSERT_TRUE(sim_.Add(MakeRequest(Text(1, 300), 1)).ok());
  const auto step = sim_.scheduler.NextStep(sim_.now_us);
  ASSERT_TRUE(step.has_value());
  FakeStages::Outcome outcome = sim_.stages->Submit(*step, sim_.now_us);
  outcome.result->set_lost_blocks(std::string(1000, 'x'));
  sim_.scheduler.OnResult(*outcome.result, sim_.now_us);
  sim_.TakeEvents();
  sim_.RunToEnd();
  EXPECT_EQ(sim_.scheduler.Stats().kv_blocks, 4u);
  EXPECT_EQ(OnDisk(0), 4u);
}

TEST_F(SchedulerStore, TheLeastRecentlyUsedGoFirst) {
  facts_.kv_blocks_max = 6;
  sim_.Restart(facts_);
  Run(Text(1, 200));
  Run(Text(300, 200));
  FillSlots();
  Run(Text(1, 200));    // used again
  Run(Text(600, 200));  // more than there is room for
  EXPECT_LE(OnDisk(0), 6u);
  EXPECT_EQ(sim_.stages->stores()[0].size(), sim_.stages->stores()[1].size());
  sim_.Restart(facts_);
  EXPECT_EQ(Run(Text(1, 200)), 192u);
  EXPECT_EQ(Run(Text(300, 200)), 0u);
}

TEST_F(SchedulerStore, ASequenceLongerThanTheDiskKeepsItsBeginning) {
  facts_.kv_blocks_max = 2;
  sim_.Restart(facts_);
  Run(Text(1, 500));
  EXPECT_EQ(OnDisk(0), 2u);
  sim_.Restart(facts_);
  EXPECT_EQ(Run(Text(1, 500)), 128u);
}

TEST_F(SchedulerStore, APreemptedSequenceIsLoaded) {
  facts_.kv_cells = 700;
  sim_.Restart(facts_);
  for (int32_t i = 0; i < 2; ++i) {
    GenerationRequest request = MakeRequest(Text(1 + 300 * i, 300), 150);
    request.sampler.set_seed(FakeStages::kEndlessSeed);
    ASSERT_TRUE(sim_.Add(std::move(request)).ok());
  }
  sim_.RunToEnd();
  sim_.ExpectRequestsAsAlone();
  const SchedulerStats stats = sim_.scheduler.Stats();
  EXPECT_GT(stats.preemptions, 0u);
  EXPECT_LT(stats.rows, 2 * 450 + 200u) << "the prompt was fed twice";
}

// Else all stages would feed what was there long before the loss.
TEST_F(SchedulerStore, ASequenceThatIsNotAtItsEndIsLoadedByOtherStages) {
  GenerationRequest request = MakeRequest(Text(1, 600), 300);
  request.sampler.set_seed(FakeStages::kEndlessSeed);
  ASSERT_TRUE(sim_.Add(std::move(request)).ok());
  while (sim_.scheduler.Stats().tokens < 2) ASSERT_TRUE(sim_.Next());
  EXPECT_EQ(OnDisk(0), 9u) << "the prompt";
  sim_.Restart(facts_);
  const uint64_t rows = sim_.scheduler.Stats().rows;
  while (sim_.scheduler.Stats().tokens < 4) ASSERT_TRUE(sim_.Next());
  EXPECT_LT(sim_.scheduler.Stats().rows, rows + 40);
  // What is generated is stored in growing steps.
  while (sim_.scheduler.Stats().tokens < 295) ASSERT_TRUE(sim_.Next());
  EXPECT_EQ(OnDisk(0), 13u);
  sim_.RunToEnd();
  sim_.ExpectRequestsAsAlone();
}

TEST_F(SchedulerStore, ARequestMayUseNoCache) {
  Run(Text(1, 300));
  const auto run = [this] {
    GenerationRequest request = MakeRequest(Text(1, 300), 4);
    request.no_cache = true;
    request.sampler.set_seed(FakeStages::kEndlessSeed);
    const auto id = sim_.Add(std::move(request));
    EXPECT_TRUE(id.ok()) << id.status();
    sim_.RunToEnd();
    return sim_.seen.at(*id).end->usage.cached_tokens;
  };
  for (int i = 0; i < 2; ++i) EXPECT_EQ(run(), 0u);
  EXPECT_EQ(OnDisk(0), 4u) << "nothing is added";
  EXPECT_EQ(Run(Text(1, 300)), 299u) << "nor lost";
}

TEST_F(SchedulerStore, WhatIsForgottenIsNeitherInSlotsNorOnDisks) {
  Run(Text(1, 300));
  GenerationRequest request = MakeRequest(Text(300, 300), 40);
  request.sampler.set_seed(FakeStages::kEndlessSeed);
  ASSERT_TRUE(sim_.Add(std::move(request)).ok());
  while (sim_.scheduler.Stats().tokens < 10) ASSERT_TRUE(sim_.Next());
  sim_.scheduler.ForgetKept();
  EXPECT_EQ(sim_.scheduler.Stats().slots_kept, 0u);
  sim_.RunToEnd();
  EXPECT_EQ(OnDisk(0), 5u) << "of the request that went on";
  EXPECT_EQ(Run(Text(1, 300)), 0u);
  sim_.scheduler.ForgetKept();
  sim_.RunToEnd();
  EXPECT_EQ(OnDisk(0), 0u) << "an idle pipeline does so at once";
  sim_.ExpectRequestsAsAlone();
}

TEST_F(SchedulerStore, AScopeHasItsBound) {
  GenerationRequest request = MakeRequest(Text(1, 30), 4);
  request.cache_scope = std::string(kCacheScopeBytesMax + 1, 'x');
  EXPECT_TRUE(absl::IsInvalidArgument(sim_.Add(std::move(request)).status()));
}

TEST_F(SchedulerStore, NothingIsStoredOfWhatHasNoEnd) {
  Run(Text(1, 63));
  EXPECT_EQ(OnDisk(0), 1u) << "with the tokens that were generated";
  GenerationRequest embedding = MakeRequest(Text(100, 200), 1);
  embedding.sampler.set_pooling(wire::POOLING_MEAN);
  ASSERT_TRUE(sim_.Add(std::move(embedding)).ok());
  sim_.RunToEnd();
  EXPECT_EQ(OnDisk(0), 1u);
}

// Caches that forget are stored whole, at the end of a request.
TEST(SchedulerStoreStates, ASequenceThatGoesOnIsLoaded) {
  for (const uint32_t window : {0u, 32u}) {
    PipelineFacts facts = StoringFacts();
    facts.cache = {.trim = window != 0, .window_tokens = window};
    SchedulerSim sim(facts, {});
    const auto run = [&](std::vector<int32_t> prompt) -> const SchedulerSim::Record& {
      GenerationRequest request = MakeRequest(std::move(prompt), 4);
      request.sampler.set_seed(FakeStages::kEndlessSeed);
      const auto id = sim.Add(std::move(request));
      EXPECT_TRUE(id.ok()) << id.status();
      sim.RunToEnd();
      return sim.seen.at(*id);
    };
    std::vector<int32_t> turns = Text(1, 200);
    const std::vector<int32_t> written = run(turns).tokens;
    EXPECT_EQ(sim.stages->stores()[0].size(), 1u);
    EXPECT_EQ(run(turns).end->usage.cached_tokens, 0u) << "it cannot go back in its state";
    turns.insert(turns.end(), written.begin(), written.end());
    for (int32_t token : Text(700, 30)) turns.push_back(token);
    for (int i = 0; i < 2; ++i) run(Text(500 + i, 40));  // they take both slots
    EXPECT_EQ(run(turns).end->usage.cached_tokens, 203u) << "the last token was never fed";
    // The longest one is taken.
    for (int i = 0; i < 2; ++i) run(Text(600 + i, 40));
    for (int32_t token : Text(800, 30)) turns.push_back(token);
    EXPECT_EQ(run(turns).end->usage.cached_tokens, 203u) << "another answer than was given";
    sim.ExpectRequestsAsAlone();
  }
}

// A block takes 6.4 ms and more to compute, in each of two stages.
TEST(SchedulerStoreSpeed, ADiskThatIsSlowerThanTheStagesIsNotReadAgainAtOnce) {
  for (const int64_t load_us : {1000, 20'000}) {
    SchedulerSim sim(StoringFacts(), {}, {.step_us = 1000, .row_us = 100, .load_us = load_us});
    int n_loads = 0;
    for (int i = 0; i < 40; ++i) {
      // Other prompts take both slots in between.
      for (const int32_t text : {1, 100, 200}) {
        GenerationRequest request = MakeRequest(Text(text, 300), 4);
        request.sampler.set_seed(FakeStages::kEndlessSeed);
        ASSERT_TRUE(sim.Add(std::move(request)).ok());
        sim.RunToEnd();
      }
    }
    for (const auto& [id, record] : sim.seen) n_loads += record.end->usage.cached_tokens == 256;
    if (load_us == 1000) {
      EXPECT_EQ(n_loads, 3 * 39);
    } else {
      EXPECT_GE(n_loads, 2) << "it is tried again";
      EXPECT_LE(n_loads, 10);
    }
    sim.ExpectRequestsAsAlone();
  }
}

// As agents do: each turn sends all turns before it again. Three of them take turns on one slot.
TEST(SchedulerStoreAgents, LittleMoreIsComputedThanWhatIsNew) {
  PipelineFacts facts = StoringFacts(/*kv_blocks_max=*/2000);
  facts.n_ctx = 16'384;
  facts.n_slots = 1;
  SchedulerSim sim(facts, {.speculation = wire::SPECULATION_OFF});
  constexpr int kAgents = 3, kTurns = 20;
  std::vector<std::vector<int32_t>> conversations(kAgents);
  uint64_t n_new = 0;
  for (int turn = 0; turn < kTurns; ++turn) {
    for (int agent = 0; agent < kAgents; ++agent) {
      std::vector<int32_t>& text = conversations[static_cast<size_t>(agent)];
      const std::vector<int32_t> more = Text(300 * agent + turn, 735);
      text.insert(text.end(), more.begin(), more.end());
      GenerationRequest request = MakeRequest(text, 40);
      request.sampler.set_seed(FakeStages::kEndlessSeed);
      const auto id = sim.Add(std::move(request));
      ASSERT_TRUE(id.ok()) << id.status();
      sim.RunToEnd();
      const std::vector<int32_t>& written = sim.seen.at(*id).tokens;
      ASSERT_EQ(written.size(), 40u);
      text.insert(text.end(), written.begin(), written.end());
      n_new += more.size() + written.size();
    }
  }
  EXPECT_EQ(conversations[0].size(), 15'500u);
  EXPECT_LE(static_cast<double>(sim.scheduler.Stats().rows), 1.1 * static_cast<double>(n_new));
  sim.ExpectRequestsAsAlone();
}

TEST(KvIndex, AnyNumberOfBeginningsTakesNoMoreThanItsRoom) {
  KvIndex index(StoringFacts(/*kv_blocks_max=*/500));
  size_t dropped = 0;
  for (uint32_t i = 0; i < 100'000; ++i) {
    const std::vector<KvName> names =
        KvStateNamesOf("", std::vector<int32_t>(1 + i % 70, static_cast<int32_t>(i)), {1 + i % 70});
    const KvIndex::Added added = index.Add(names);
    EXPECT_EQ(added.end, 1u);
    dropped += added.dropped.size();
    index.Confirm(names);
  }
  EXPECT_EQ(dropped, 100'000u - 500u);
  EXPECT_EQ(index.n_kept(), 500u);
  const std::vector<int32_t> last(1 + 99'999 % 70, 99'999);
  ASSERT_TRUE(index.FindState("", last).has_value());
  EXPECT_EQ(KvStateLength(*index.FindState("", last)), last.size());
  EXPECT_FALSE(index.FindState("", std::vector<int32_t>(70, 7)).has_value()) << "long gone";
  EXPECT_EQ(index.ForgetAll().size(), 500u);
  EXPECT_FALSE(index.FindState("", last).has_value());
}

TEST(SchedulerStoreOff, WhatCannotBeSharedIsNotStored) {
  for (const SchedulerPolicy& policy :
       {SchedulerPolicy{.keep_prefixes = false}, SchedulerPolicy{.exact = true}}) {
    SchedulerSim sim(StoringFacts(), policy);
    ASSERT_TRUE(sim.Add(MakeRequest(Text(1, 200), 4)).ok());
    sim.RunToEnd();
    EXPECT_TRUE(sim.stages->stores()[0].empty());
  }
}

}  // namespace
}  // namespace strata
