// Drafts: what stages compute while they would be idle, for one request that is faster than its
// stages take one after the other.
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/scheduler/drafter.h"
#include "coordinator/scheduler/scheduler.h"
#include "gtest/gtest.h"
#include "tests/coordinator/scheduler/scheduler_sim.h"

namespace strata {
namespace {

// Knows what comes, or is always wrong.
class FixedDrafter final : public Drafter {
 public:
  FixedDrafter(const PipelineFacts& facts, const GenerationRequest& request, bool is_right)
      : text_(FakeStages::Alone(facts, request, request.tokens_max)), is_right_(is_right) {}

  bool Serves(wire::Speculation) const override { return true; }
  void Begin(const Sequence&) override { n_ = 1; }
  void Append(uint64_t, int32_t) override { ++n_; }
  std::optional<int32_t> Draft(uint64_t, absl::Span<const int32_t> drafts) override {
    const size_t at = n_ + drafts.size();
    if (!is_right_ || at >= text_.size()) return is_right_ ? std::nullopt : std::optional(0);
    return text_[at];
  }
  void End(uint64_t) override {}

 private:
  const std::vector<int32_t> text_;
  const bool is_right_;
  size_t n_ = 0;  // tokens of the text that are known
};

PipelineFacts RewindFacts(uint32_t n_stages) {
  PipelineFacts facts = Facts(n_stages);
  facts.cache.rewind = true;
  return facts;
}

struct Timed {
  int64_t us = 0;  // for all tokens but the first
  SchedulerStats stats;
};

// `drafter` null: no drafts.
Timed RunOne(const PipelineFacts& facts, const FakeCosts& costs, std::unique_ptr<Drafter> drafter,
             uint32_t n_tokens = 100) {
  SchedulerPolicy policy;
  if (drafter == nullptr) policy.speculation = wire::SPECULATION_OFF;
  SchedulerSim sim(facts, policy, costs, std::move(drafter));
  const uint64_t id = *sim.Add(MakeRequest(Tokens(10, 20), n_tokens));
  sim.RunToEnd();
  EXPECT_EQ(sim.seen[id].tokens.size(), n_tokens);
  sim.ExpectRequestsAsAlone();
  EXPECT_EQ(sim.stages->mismatches(), 0);
  return {sim.seen[id].token_us.back() - sim.seen[id].token_us.front(), sim.scheduler.Stats()};
}

std::unique_ptr<Drafter> MakeDrafter(const PipelineFacts& facts, bool is_right) {
  return std::make_unique<FixedDrafter>(facts, MakeRequest(Tokens(10, 20), 100), is_right);
}

TEST(SchedulerDrafts, RightOnesKeepAllStagesBusy) {
  for (const uint32_t n_stages : {2u, 3u, 4u, 8u}) {
    SCOPED_TRACE(n_stages);
    const PipelineFacts facts = RewindFacts(n_stages);
    const Timed plain = RunOne(facts, {}, nullptr);
    const Timed drafted = RunOne(facts, {}, MakeDrafter(facts, /*is_right=*/true));
    EXPECT_EQ(plain.stats.draft_tokens(), 0u);
    // All but those of a trial without.
    EXPECT_GE(drafted.stats.accepted_tokens(), 75u);
    EXPECT_EQ(drafted.stats.accepted_tokens(), drafted.stats.draft_tokens());
    const DraftsByDepth& by_depth = drafted.stats.drafts[0];
    EXPECT_GT(by_depth[0].accepted + by_depth[1].accepted, 0u);
    EXPECT_EQ(by_depth[1].accepted > 0, n_stages > 2);  // the second draft needs a third stage
    EXPECT_EQ(by_depth[4].accepted > 0, n_stages > 4);
    EXPECT_LT(drafted.us * n_stages, plain.us * (1.1 + 0.15 * n_stages));
  }
}

TEST(SchedulerDrafts, WrongOnesCostNoTime) {
  for (const uint32_t n_stages : {2u, 4u}) {
    SCOPED_TRACE(n_stages);
    const PipelineFacts facts = RewindFacts(n_stages);
    const Timed plain = RunOne(facts, {}, nullptr);
    const Timed drafted = RunOne(facts, {}, MakeDrafter(facts, /*is_right=*/false));
    EXPECT_EQ(drafted.stats.accepted_tokens(), 0u);
    EXPECT_GT(drafted.stats.draft_tokens(), 70u);
    EXPECT_EQ(drafted.us, plain.us);
  }
}

// Stages on one core compute nothing at the same time: each wrong draft delays a row that is waited
// for. That is noticed, and tried again now and then.
TEST(SchedulerDrafts, EndWhereTheyDoNotPay) {
  const PipelineFacts facts = RewindFacts(2);
  const FakeCosts costs = {.one_core = true};
  const Timed plain = RunOne(facts, costs, nullptr, 230);
  const Timed drafted = RunOne(facts, costs, MakeDrafter(facts, /*is_right=*/false), 230);
  EXPECT_GT(drafted.us, plain.us);
  EXPECT_LT(drafted.us, plain.us * 1.2);
  EXPECT_GT(drafted.stats.draft_tokens(), 10u);
  EXPECT_LT(drafted.stats.draft_tokens(), 60u);
}

TEST(SchedulerDrafts, NoneWhereNoStageIsIdleOrTheCacheCannotForget) {
  const PipelineFacts one = RewindFacts(1);
  EXPECT_EQ(RunOne(one, {}, MakeDrafter(one, true)).stats.draft_tokens(), 0u);
  const PipelineFacts fixed = Facts(3);
  EXPECT_EQ(RunOne(fixed, {}, MakeDrafter(fixed, true)).stats.draft_tokens(), 0u);
  // As many requests as stages.
  const PipelineFacts two = RewindFacts(2);
  SchedulerSim sim(two, {}, {}, MakeDrafter(two, false));
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(sim.Add(MakeRequest(Tokens(10, 20), 100)).ok());
  while (!sim.seen[1].end && !sim.seen[2].end && sim.Next()) {
  }
  EXPECT_EQ(sim.scheduler.Stats().draft_tokens(), 0u);
}

TEST(SchedulerDrafts, ARequestMayForbidThem) {
  const PipelineFacts facts = RewindFacts(2);
  GenerationRequest request = MakeRequest(Tokens(10, 20), 100);
  request.speculation = wire::SPECULATION_OFF;
  SchedulerSim sim(facts, {}, {}, MakeDrafter(facts, true));
  ASSERT_TRUE(sim.Add(request).ok());
  sim.RunToEnd();
  EXPECT_EQ(sim.scheduler.Stats().draft_tokens(), 0u);
}

// Its first step waits for the one that the first stage computes, and for no others.
TEST(SchedulerDrafts, ANewcomerWaitsForOneStepAtMost) {
  const PipelineFacts facts = RewindFacts(4);
  const FakeCosts costs;
  const auto first_us = [&](std::unique_ptr<Drafter> drafter) {
    SchedulerPolicy policy;
    if (drafter == nullptr) policy.speculation = wire::SPECULATION_OFF;
    SchedulerSim sim(facts, policy, costs, std::move(drafter));
    EXPECT_TRUE(sim.Add(MakeRequest(Tokens(10, 20), 100)).ok());
    while (sim.seen[1].tokens.size() < 50 && sim.Next()) {
    }
    const int64_t came_us = sim.now_us;
    const uint64_t id = *sim.Add(MakeRequest(Tokens(500, 4), 3));
    sim.RunToEnd();
    return sim.seen[id].token_us.front() - came_us;
  };
  EXPECT_LE(first_us(MakeDrafter(facts, true)),
            first_us(nullptr) + costs.step_us + costs.row_us * 4);
}

TEST(SchedulerDrafts, KeptSequencesHaveNone) {
  const PipelineFacts facts = RewindFacts(3);
  SchedulerSim sim(facts, {.prefix_tokens_min = 1}, {}, MakeDrafter(facts, false));
  const uint64_t id = *sim.Add(MakeRequest(Tokens(10, 20), 100));
  while (sim.seen[id].tokens.size() < 50 && sim.Next()) {
  }
  sim.scheduler.Cancel(id, Scheduler::Leave::kKeep, sim.now_us);
  sim.RunToEnd();
  GenerationRequest next = MakeRequest(Tokens(10, 20), 5);
  next.prompt.insert(next.prompt.end(), sim.seen[id].tokens.begin(), sim.seen[id].tokens.end());
  const uint64_t more = *sim.Add(next);
  sim.RunToEnd();
  EXPECT_GE(sim.seen[more].end->usage.cached_tokens, 20u + 50u - 2u);
  sim.ExpectRequestsAsAlone();
  EXPECT_EQ(sim.stages->mismatches(), 0);
}

// A draft leaves room for what others are about to feed, so it neither preempts them nor takes the
// place of kept sequences.
TEST(SchedulerDrafts, TakeOnlyCellsThatNobodyNeeds) {
  for (const bool drafts : {false, true}) {
    PipelineFacts facts = RewindFacts(3);
    facts.n_slots = 3;
    facts.kv_cells = 200;
    SchedulerSim sim(facts, {}, {}, drafts ? MakeDrafter(facts, false) : nullptr);
    ASSERT_TRUE(sim.Add(MakeRequest(Tokens(700, 20), 4)).ok());
    sim.RunToEnd();
    const uint64_t kept = sim.scheduler.Stats().kv_cells_kept;
    ASSERT_GT(kept, 0u);
    // Together they fill what is left to the last cell.
    const auto left = static_cast<uint32_t>(200 - kept);
    ASSERT_TRUE(sim.Add(MakeRequest(Tokens(10, 20), left / 2 - 19)).ok());
    ASSERT_TRUE(sim.Add(MakeRequest(Tokens(300, 20), left - left / 2 - 19)).ok());
    sim.RunToEnd();
    EXPECT_EQ(sim.scheduler.Stats().preemptions, 0u);
    EXPECT_EQ(sim.scheduler.Stats().kv_cells_kept, 200u);
    EXPECT_EQ(sim.scheduler.Stats().draft_tokens() > 50, drafts);
    sim.ExpectRequestsAsAlone();
    EXPECT_EQ(sim.stages->mismatches(), 0);
  }
}

// A request that waits for cells gets those of drafts.
TEST(SchedulerDrafts, NoneWhileARequestWaits) {
  PipelineFacts facts = RewindFacts(3);
  facts.n_slots = 2;
  facts.kv_cells = 150;
  SchedulerSim sim(facts, {.keep_prefixes = false}, {}, MakeDrafter(facts, false));
  ASSERT_TRUE(sim.Add(MakeRequest(Tokens(10, 20), 100)).ok());
  while (sim.seen[1].tokens.size() < 30 && sim.Next()) {
  }
  const uint64_t waits = *sim.Add(MakeRequest(Tokens(300, 82), 3));
  sim.RunToEnd();
  EXPECT_LT(sim.seen[waits].token_us.front(), sim.seen[1].token_us.back());
  sim.ExpectRequestsAsAlone();
}

TEST(SchedulerDrafts, EndWhereTheirStepsFail) {
  const PipelineFacts facts = RewindFacts(3);
  SchedulerSim sim(facts, {}, {}, MakeDrafter(facts, false));
  int failed = 0;
  sim.make_fault = [&](const wire::Step& step) -> std::optional<FakeFault> {
    if (step.draft_rows().empty()) return std::nullopt;
    ++failed;
    return FakeFault{.stage = 1};
  };
  const uint64_t id = *sim.Add(MakeRequest(Tokens(10, 20), 100));
  sim.RunToEnd();
  EXPECT_EQ(sim.seen[id].tokens.size(), 100u);
  EXPECT_GE(failed, 3);
  EXPECT_LE(failed, 6);  // some were in flight
  sim.ExpectRequestsAsAlone();
}

// A request ends while its draft is in flight, behind a step that copied its slot's contents there
// and fails: the stages behind have never seen the copy, and hold another sequence.
TEST(SchedulerDrafts, ASlotWhoseCopyFailedIsResetThoughItsRequestEnded) {
  PipelineFacts facts = RewindFacts(3);
  facts.n_slots = 2;
  SchedulerSim sim(facts, {.prefix_tokens_min = 1}, {}, MakeDrafter(facts, false));
  ASSERT_TRUE(sim.Add(MakeRequest(Tokens(700, 100), 2)).ok());  // kept, and replaced by the copy
  sim.RunToEnd();
  GenerationRequest source = MakeRequest(Tokens(10, 40), 60);
  source.speculation = wire::SPECULATION_OFF;
  ASSERT_TRUE(sim.Add(source).ok());
  while (sim.seen[2].tokens.size() < 5 && sim.Next()) {
  }
  GenerationRequest begun = MakeRequest(Tokens(10, 40), 60);
  begun.prompt.push_back(900);
  begun.generated = FakeStages::Alone(facts, begun, 3);
  const uint64_t id = *sim.Add(begun);
  bool copies = false, drafts = false;
  sim.make_fault = [&](const wire::Step& step) -> std::optional<FakeFault> {
    drafts = drafts || (copies && step.draft_rows_size() > 0 && step.slots(0) == 0);
    if (CountEdits(step, wire::KvEdit::COPY) == 0) return std::nullopt;
    copies = true;
    return FakeFault{.stage = 1};
  };
  sim.Submit();
  for (int i = 0; i < 3 && !drafts; ++i) {  // steps before the copy
    ASSERT_TRUE(sim.TakeNext());
    sim.Submit();
  }
  ASSERT_TRUE(drafts);
  sim.scheduler.Cancel(id, Scheduler::Leave::kKeep, sim.now_us);
  sim.make_fault = nullptr;
  sim.RunToEnd();
  GenerationRequest next = MakeRequest(begun.prompt, 5);
  ASSERT_TRUE(sim.Add(next).ok());
  sim.RunToEnd();
  // Not ExpectRequestsAsAlone(): what was begun elsewhere has tokens before its own.
  EXPECT_EQ(sim.seen.rbegin()->second.tokens, FakeStages::Alone(facts, next, 5));
}

}  // namespace
}  // namespace strata
