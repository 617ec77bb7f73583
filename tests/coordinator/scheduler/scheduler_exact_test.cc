// Steps of an exact model: the results for a request are those that it gets alone.
#include <map>
#include <utility>
#include <vector>

#include "coordinator/scheduler/scheduler.h"
#include "gtest/gtest.h"
#include "tests/coordinator/scheduler/scheduler_sim.h"

namespace strata {
namespace {

constexpr uint32_t kChunk = 16;
constexpr SchedulerPolicy kExact = {.chunk_tokens = kChunk, .exact = true};

PipelineFacts ExactFacts(uint32_t n_stages) {
  PipelineFacts facts = Facts(n_stages);
  facts.n_slots = 6;
  return facts;
}

// The rows of the step in which each position of each slot was computed.
class Batches {
 public:
  using Rows = std::pair<int32_t, int32_t>;  // positions [first, last] of its step

  // Applies a step that reached all stages.
  void Apply(const wire::Step& step) {
    for (const wire::KvEdit& edit : step.edits()) {
      std::vector<Rows>& slot = slots_[edit.slot()];
      if (edit.kind() == wire::KvEdit::DROP) slot.clear();
      if (edit.kind() == wire::KvEdit::COPY) slot = slots_[edit.from_slot()];
      if (edit.kind() == wire::KvEdit::TRIM || edit.kind() == wire::KvEdit::RESTORE) {
        slot.resize(static_cast<size_t>(edit.begin()));
      }
    }
    for (const wire::SequenceOpen& open : step.opens()) {
      prompts_[open.slot()] = open.prompt_size();
    }
    if (step.tokens_size() == 0) return;
    const Rows rows = {step.positions(0), step.positions(step.tokens_size() - 1)};
    std::vector<Rows>& slot = slots_[step.slots(0)];
    for (int i = 0; i < step.tokens_size(); ++i) {
      EXPECT_EQ(step.slots(i), step.slots(0)) << "rows of two requests in one step";
      EXPECT_EQ(step.positions(i), static_cast<int32_t>(slot.size()));
      slot.push_back(rows);
    }
    if (step.sample_rows_size() > 0) ExpectAsAlone(step.slots(0));
  }

 private:
  void ExpectAsAlone(int32_t slot) {
    const int32_t prompt = prompts_[slot];
    const auto chunk = static_cast<int32_t>(kChunk);
    for (int32_t at = 0; at < static_cast<int32_t>(slots_[slot].size()); ++at) {
      const int32_t first = at / chunk * chunk;
      const Rows alone =
          at < prompt ? Rows(first, std::min(first + chunk, prompt) - 1) : Rows(at, at);
      ASSERT_EQ(slots_[slot][at], alone) << "slot " << slot << ", position " << at;
    }
  }

  std::map<int32_t, std::vector<Rows>> slots_;
  std::map<int32_t, int32_t> prompts_;
};

void ExpectStepsAsAlone(const SchedulerSim& sim) {
  Batches batches;
  for (const wire::Step& step : sim.stages->steps()) batches.Apply(step);
}

// Prompts that share beginnings of all lengths.
std::vector<GenerationRequest> Requests(uint32_t seed) {
  std::mt19937 random(seed);
  const auto pick = [&](uint32_t low, uint32_t high) { return low + random() % (high - low + 1); };
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 40; ++i) {
    std::vector<int32_t> prompt = Tokens(0, pick(1, 100));
    if (pick(0, 1) == 0) prompt.back() = static_cast<int32_t>(pick(0, 50));
    requests.push_back(
        MakeRequest(std::move(prompt), pick(1, 40), absl::StrCat("client ", pick(0, 2))));
  }
  return requests;
}

TEST(SchedulerExact, ResultsOfARequestDoNotDependOnOthers) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    SchedulerSim sim(ExactFacts(1 + seed % 3), kExact);
    sim.stages->KeepSteps();
    std::mt19937 random(seed);
    for (GenerationRequest& request : Requests(seed)) {
      ASSERT_TRUE(sim.Add(std::move(request)).ok());
      for (uint32_t n = random() % 12; n > 0; --n) sim.Next();
    }
    sim.RunToEnd();
    sim.ExpectRequestsAsAlone();
    ExpectStepsAsAlone(sim);
    EXPECT_GT(sim.scheduler.Stats().cached_tokens, 0u);
    if (HasFatalFailure()) return;
  }
}

TEST(SchedulerExact, OfKeptSequencesOnlyWholeChunksOfPromptsAreUsed) {
  SchedulerSim sim(ExactFacts(2), kExact);
  sim.stages->KeepSteps();
  const uint64_t first = *sim.Add(MakeRequest(Tokens(0, 40), 30));
  sim.RunToEnd();
  std::vector<int32_t> more = Tokens(0, 40);
  more.insert(more.end(), sim.seen[first].tokens.begin(), sim.seen[first].tokens.end());
  const uint64_t second = *sim.Add(MakeRequest(more, 5));
  sim.RunToEnd();
  EXPECT_EQ(sim.seen[second].end->usage.cached_tokens, 32u);
  ExpectStepsAsAlone(sim);
}

TEST(SchedulerExact, ASequenceIsFedAgainAsItWasGenerated) {
  SchedulerSim sim(ExactFacts(2), kExact);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(sim.Add(MakeRequest(Tokens(3 * i, 20), 60)).ok());
  for (int i = 0; i < 100; ++i) sim.Next();
  sim.Restart(ExactFacts(2));
  sim.stages->KeepSteps();
  sim.RunToEnd();
  sim.ExpectRequestsAsAlone();
  ExpectStepsAsAlone(sim);
  for (const auto& [id, seen] : sim.seen) EXPECT_EQ(seen.tokens.size(), 60u);
}

TEST(SchedulerExact, AFailedStepDoesNotChangeResults) {
  SchedulerSim sim(ExactFacts(2), kExact);
  sim.make_fault = [n = 0](const wire::Step& step) mutable -> std::optional<FakeFault> {
    // Seldom enough for a sequence that is fed again row by row to get past the failed position.
    if (step.tokens_size() == 0 || ++n % 97 != 0) return std::nullopt;
    return FakeFault{.stage = 1, .kind = FakeFault::kBatch};
  };
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(sim.Add(MakeRequest(Tokens(i, 50), 30)).ok());
  sim.RunToEnd();
  sim.ExpectRequestsAsAlone();
  for (const auto& [id, seen] : sim.seen) EXPECT_EQ(seen.tokens.size(), 30u);
}

TEST(SchedulerExact, APromptAndOtherRequestsDoNotStopEachOther) {
  PipelineFacts facts = ExactFacts(1);
  facts.n_ctx = 4096;
  SchedulerSim sim(facts, kExact);
  sim.stages->KeepSteps();
  std::vector<uint64_t> decoding;
  for (int i = 0; i < 3; ++i) decoding.push_back(*sim.Add(MakeRequest(Tokens(i, 4), 3000)));
  for (int i = 0; i < 100 && sim.seen[decoding.back()].tokens.size() < 10; ++i) sim.Next();
  std::vector<int32_t> prompt = Tokens(0, 800);
  prompt.insert(prompt.end(), prompt.begin(), prompt.begin() + 800);
  const uint64_t late = *sim.Add(MakeRequest(prompt, 1));
  const size_t before = sim.seen[decoding[0]].tokens.size();
  for (int i = 0; i < 1000 && !sim.seen[late].end; ++i) sim.Next();
  ASSERT_TRUE(sim.seen[late].end.has_value());
  const size_t meanwhile = sim.seen[decoding[0]].tokens.size() - before;
  EXPECT_TRUE(sim.seen[late].end->status.ok()) << sim.seen[late].end->status;
  EXPECT_GE(meanwhile, 95u);  // 100 chunks, a round of the others for each
  EXPECT_LE(meanwhile, 105u);
}

}  // namespace
}  // namespace strata
