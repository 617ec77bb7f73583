// The scheduler over fake stages on a clock that jumps from one event to the next. Checks the
// invariants: each request ends once, with the same tokens as if it ran alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/scheduler/scheduler.h"
#include "gtest/gtest.h"
#include "tests/coordinator/generation/fake_stages.h"

namespace strata {

inline std::vector<int32_t> Tokens(int32_t first, size_t n) {
  std::vector<int32_t> tokens(n);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

inline GenerationRequest MakeRequest(std::vector<int32_t> prompt, uint32_t tokens_max,
                                     std::string client = "") {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.tokens_max = tokens_max;
  request.client = std::move(client);
  request.sampler.set_seed(FakeStages::kEndlessSeed);
  return request;
}

// A request that may become longer than its context.
inline GenerationRequest MakeShiftingRequest(std::vector<int32_t> prompt, uint32_t tokens_max,
                                             uint32_t keep) {
  GenerationRequest request = MakeRequest(std::move(prompt), tokens_max);
  request.shift_context = true;
  request.keep_tokens = keep;
  return request;
}

inline PipelineFacts Facts(uint32_t n_stages = 2) {
  return {.n_stages = n_stages, .n_ctx = 256, .n_slots = 8, .n_batch = 128};
}

inline int CountEdits(const wire::Step& step, wire::KvEdit::Kind kind) {
  return static_cast<int>(
      std::count_if(step.edits().begin(), step.edits().end(),
                    [kind](const wire::KvEdit& edit) { return edit.kind() == kind; }));
}

class SchedulerSim {
 public:
  struct Record {
    GenerationRequest request;
    std::vector<int32_t> tokens;
    std::vector<int64_t> token_us;
    std::vector<PromptProgress> progress;
    int embeddings = 0;
    int prompts = 0;  // whose log-probabilities came
    std::optional<SchedulerEvent::End> end;
  };

  SchedulerSim(const PipelineFacts& facts, SchedulerPolicy policy, const FakeCosts& costs = {},
               std::unique_ptr<Drafter> drafter = nullptr)
      : scheduler(facts, policy, std::move(drafter)), facts_(facts), costs_(costs) {
    stages.emplace(facts, costs);
  }

  absl::StatusOr<uint64_t> Add(GenerationRequest request) {
    auto id = scheduler.Add(request, now_us);
    if (id.ok()) seen[*id].request = std::move(request);
    return id;
  }

  // Submits all steps that there are now. `make_fault` says what goes wrong with each.
  void Submit() {
    while (auto step = scheduler.NextStep(now_us)) {
      std::optional<FakeFault> fault;
      if (make_fault) fault = make_fault(*step);
      edited_.push_back(SlotsEdited(*step));
      in_flight_.push_back(stages->Submit(*step, now_us, fault));
      ++n_steps;
    }
    TakeEvents();
  }

  // False: no step is in flight.
  bool Next() {
    Submit();
    return TakeNext();
  }
  bool TakeNext() {
    if (in_flight_.empty()) return false;
    FakeStages::Outcome outcome = std::move(in_flight_.front());
    in_flight_.pop_front();
    edited_.pop_front();
    now_us = std::max(now_us, outcome.at_us);
    if (outcome.result) {
      scheduler.OnResult(*outcome.result, now_us);
    } else {
      scheduler.OnStepError(*outcome.error, now_us);
    }
    TakeEvents();
    return true;
  }

  void RunToEnd(int steps_max = 1'000'000) {
    for (int i = 0; Next(); ++i) {
      ASSERT_LT(i, steps_max) << "it never ends";
    }
  }

  // Other stages, with the disks of those before.
  void Restart(const PipelineFacts& facts) {
    facts_ = facts;
    in_flight_.clear();
    edited_.clear();
    std::vector<FakeStages::Store> disks = std::move(stages->stores());
    stages.emplace(facts, costs_);
    disks.resize(facts.n_stages);
    stages->stores() = std::move(disks);
    facts_.kv_blocks = stages->StoredBlocks();
    scheduler.Restart(facts_, SlotContents::kNothing, /*broke=*/true, now_us);
  }
  // The caches move with the sequences. False: the sequences are fed again.
  bool Move() {
    in_flight_.clear();
    edited_.clear();
    stages->Carry();
    facts_.kv_blocks = stages->StoredBlocks();
    return scheduler.Restart(facts_, SlotContents::kAsBefore, /*broke=*/false, now_us);
  }

  void TakeEvents() {
    for (SchedulerEvent& event : scheduler.TakeEvents()) {
      Record& s = seen.at(event.request);
      ASSERT_FALSE(s.end) << "after its end";
      if (event.end) {
        s.end = std::move(event.end);
        continue;
      }
      if (event.progress) {
        ASSERT_TRUE(s.tokens.empty()) << "behind a token";
        s.progress.push_back(*event.progress);
        continue;
      }
      ASSERT_EQ(event.token.position(),
                static_cast<int32_t>(s.request.prompt.size() + s.request.generated.size() +
                                     s.tokens.size()));
      s.embeddings += event.token.embedding_size();
      if (event.token.prompt_size() > 0) {
        ++s.prompts;
        EXPECT_EQ(event.token.prompt_size(), static_cast<int>(s.request.prompt.size()));
      }
      if (event.token.end_of_generation()) continue;
      s.tokens.push_back(event.token.token());
      s.token_us.push_back(now_us);
    }
  }

  // Every request has the tokens that it would have if it ran alone.
  void ExpectRequestsAsAlone() {
    for (auto& [id, s] : seen) {
      EXPECT_EQ(s.tokens, FakeStages::Alone(facts_, s.request, s.tokens.size())) << id;
    }
  }

  Scheduler scheduler;
  std::optional<FakeStages> stages;
  std::map<uint64_t, Record> seen;
  std::function<std::optional<FakeFault>(const wire::Step&)> make_fault;
  int64_t now_us = 1'000'000;
  int n_steps = 0;

 private:
  // By the step. What stages are to store is not in doubt: no edit of it may still fail in some.
  std::set<int32_t> SlotsEdited(const wire::Step& step) {
    std::set<int32_t> slots;
    for (const wire::KvEdit& edit : step.edits()) {
      switch (edit.kind()) {
        case wire::KvEdit::STORE:
          EXPECT_FALSE(slots.contains(edit.slot()));
          for (const auto& edited : edited_) EXPECT_FALSE(edited.contains(edit.slot()));
          break;
        case wire::KvEdit::SAVE:
        case wire::KvEdit::FORGET:
          break;
        default:
          slots.insert(edit.slot());
      }
    }
    return slots;
  }

  PipelineFacts facts_;
  const FakeCosts costs_;
  std::deque<FakeStages::Outcome> in_flight_;
  std::deque<std::set<int32_t>> edited_;  // of each
};

}  // namespace strata
