// The stages of a pipeline as the scheduler sees them, strict and without computing: a slot of a
// stage holds a hash of everything that was fed there, so that a token depends on every row before
// it, in order, and on no other. Steps take time on a clock that the test moves.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/scheduler/scheduler.h"
#include "gtest/gtest.h"
#include "shard/kv_store/kv_block.h"
#include "shard/serving/step_check.h"
#include "transport/rpc/grpc_status.h"

namespace strata {

struct FakeCosts {
  int64_t step_us = 1000;  // of each stage
  int64_t row_us = 100;
  int64_t rows_us = 0;    // more where there are 2 rows or more, as with matrix tiles
  int64_t cell_ns = 0;    // for each position that a row attends to
  int64_t load_us = 0;    // for each KV block that is loaded
  bool one_core = false;  // which computes all stages, a step of one at a time
  std::function<double()> slowness = nullptr;  // factor on the time of a step in a stage
};

// A fault that a test injects into a step.
struct FakeFault {
  enum Kind { kBatch, kDataLoss, kEdits, kFull };
  uint32_t stage = 0;
  Kind kind = kBatch;
};

class FakeStages {
 public:
  FakeStages(const PipelineFacts& facts, const FakeCosts& costs)
      : facts_(facts),
        costs_(costs),
        cells_(facts.kv_cells != 0 ? facts.kv_cells : facts.n_ctx * facts.n_slots),
        stages_(facts.n_stages, std::vector<std::vector<uint64_t>>(facts.n_slots)),
        checkpoints_(facts.n_stages, std::vector<std::vector<uint64_t>>(facts.n_checkpoints)),
        stores_(facts.n_stages),
        sequences_(facts.n_slots),
        free_us_(facts.n_stages, 0) {}

  struct Outcome {
    int64_t at_us = 0;
    std::optional<wire::Result> result;
    std::optional<wire::StepError> error;
  };

  // Takes a step at `now_us`, and returns its outcome with the time. All stages take steps in the
  // same order, so each step can be run through all of them at once.
  Outcome Submit(const wire::Step& step, int64_t now_us, std::optional<FakeFault> fault = {}) {
    EXPECT_EQ(step.step_id(), last_step_id_ + 1);
    last_step_id_ = step.step_id();
    CheckShape(step);
    Outcome outcome;
    wire::Result result;
    result.set_step_id(step.step_id());
    std::vector<uint64_t> rows(step.tokens().begin(), step.tokens().end());
    int64_t us = now_us;
    for (uint32_t k = 0; k < facts_.n_stages; ++k) {
      const bool is_last = k + 1 == facts_.n_stages;
      const int64_t took_us = is_last && IsVoid(step) ? 1 : TookUs(step);
      int64_t& free_us = free_us_[costs_.one_core ? 0 : k];
      us = free_us = std::max(us, free_us) + took_us;
      const bool fails = fault && fault->stage == k;
      absl::Status status = RunStage(k, step, &rows, fails ? fault : std::nullopt);
      if (!status.ok()) {
        has_failed_ = true;
        wire::StepError& error = outcome.error.emplace();
        error.set_step_id(step.step_id());
        error.set_stage(k);
        ToWire(status, absl::StrCat("stage ", k), error.mutable_status());
        outcome.at_us = us;
        // The stages behind pass the error on, after the steps before it.
        outcome.at_us = std::max(outcome.at_us, last_at_us_);
        last_at_us_ = outcome.at_us;
        return outcome;
      }
      wire::StageTiming* timing = result.add_timings();
      timing->set_stage(k);
      timing->set_compute_us(static_cast<uint32_t>(took_us));
    }
    SampleRows(step, rows, &result);
    result.set_lost_blocks(std::exchange(lost_blocks_, {}));
    outcome.result = std::move(result);
    outcome.at_us = last_at_us_ = std::max(us, last_at_us_);
    return outcome;
  }

  // A step that no stage has seen uses up its number, too.
  void Skip() { ++last_step_id_; }

  // KV blocks on the disk of a stage, by their names.
  using Store = std::map<KvName, std::vector<uint64_t>>;
  std::vector<Store>& stores() { return stores_; }
  // As stages report them.
  std::vector<std::vector<KvName>> StoredBlocks() const {
    std::vector<std::vector<KvName>> names;
    for (const Store& store : stores_) {
      std::vector<KvName>& of_stage = names.emplace_back();
      for (const auto& [name, block] : store) of_stage.push_back(name);
    }
    return names;
  }

  // Another pipeline, whose stages take over the slots' contents, their disks and nothing else.
  void Carry() {
    last_step_id_ = 0;
    lost_blocks_.clear();
    for (auto& stage : checkpoints_) stage.assign(stage.size(), {});
    sequences_.assign(sequences_.size(), {});
  }

  // The tokens of a request that has the stages for itself, until it ends or has `n` tokens.
  static std::vector<int32_t> Alone(const PipelineFacts& facts, const GenerationRequest& request,
                                    size_t n) {
    const size_t n_ctx = facts.kv_cells != 0 ? std::min(facts.n_ctx, facts.kv_cells) : facts.n_ctx;
    const size_t keep = std::min<size_t>(request.keep_tokens, request.prompt.size());
    std::vector<std::vector<uint64_t>> states(facts.n_stages);
    std::vector<int32_t> sequence = request.prompt;
    std::vector<int32_t> tokens;
    size_t fed = 0;
    while (tokens.size() < n) {
      uint64_t value = 0;
      for (; fed < sequence.size(); ++fed) {
        for (auto& stage : states) {
          if (stage.size() == n_ctx) Shift(keep, (n_ctx - keep) / 2, &stage);
        }
        value = static_cast<uint64_t>(sequence[fed]);
        for (uint32_t k = 0; k < facts.n_stages; ++k) value = Push(k, value, &states[k]);
      }
      const int32_t token = Choose(value, sequence, request.sampler.seed());
      if (token == kEnd) break;
      tokens.push_back(token);
      sequence.push_back(token);
    }
    return tokens;
  }

  static constexpr int32_t kVocabulary = 1000;
  static constexpr int32_t kEnd = 999;
  static constexpr int32_t kBadToken = 998;    // no stage takes a batch with it
  static constexpr uint64_t kBadSeed = 12345;  // no sampler opens with it
  static constexpr uint64_t kEndlessSeed = 1;  // generations that never end by themselves

  int64_t mismatches() const { return mismatches_; }
  size_t length(uint32_t stage, int32_t slot) const { return stages_[stage][slot].size(); }
  bool is_open(int32_t slot) const { return sequences_[slot].open; }
  const std::vector<wire::Step>& steps() const { return steps_; }
  void KeepSteps() { keeps_steps_ = true; }

 private:
  struct Sequence {
    bool open = false;
    std::vector<int32_t> tokens;
    int32_t offset = 0;
    uint64_t seed = 0;
    bool embeds = false;
    // Of one that needs every row: the rows from the first one on that were fed since it was
    // opened.
    std::optional<int32_t> rows;
  };

  static uint64_t Mix(uint64_t a, uint64_t b) {
    uint64_t h = a * 0x9e3779b97f4a7c15ull ^ (b + 0x7f4a7c15) * 0xbf58476d1ce4e5b9ull;
    h ^= h >> 29;
    h *= 0x94d049bb133111ebull;
    return h ^ (h >> 32);
  }
  static uint64_t Push(uint32_t stage, uint64_t value, std::vector<uint64_t>* states) {
    states->push_back(Mix(Mix(states->empty() ? 7 : states->back(), value), stage));
    return states->back();
  }
  // The rows behind were fed with the dropped ones in sight, and now have other positions.
  static void Shift(size_t keep, size_t discard, std::vector<uint64_t>* states) {
    const auto begin = states->begin() + static_cast<std::ptrdiff_t>(keep);
    states->erase(begin, begin + static_cast<std::ptrdiff_t>(discard));
    states->back() = Mix(states->back(), keep + states->size());
  }
  static int32_t Choose(uint64_t value, const std::vector<int32_t>& sequence, uint64_t seed) {
    uint64_t h = Mix(Mix(value, seed), sequence.size());
    for (int32_t token : sequence) h = Mix(h, static_cast<uint64_t>(token));
    if (seed != kEndlessSeed && h % 61 == 0) return kEnd;
    return static_cast<int32_t>(h % (kVocabulary - 10));
  }

  int64_t LoadUs(const wire::Step& step) const {
    int64_t us = 0;
    for (const wire::KvEdit& edit : step.edits()) {
      if (edit.kind() != wire::KvEdit::LOAD) continue;
      us += costs_.load_us * static_cast<int64_t>(edit.blocks().size() / kKvNameBytes);
    }
    return us;
  }

  int64_t TookUs(const wire::Step& step) const {
    const int rows = step.tokens_size();
    if (rows == 0) return 1 + LoadUs(step);
    int64_t cells = 0;
    for (const int32_t position : step.positions()) cells += position + 1;
    const int64_t us = costs_.step_us + costs_.row_us * rows + (rows > 1 ? costs_.rows_us : 0) +
                       costs_.cell_ns * cells / 1000 + LoadUs(step);
    return costs_.slowness ? static_cast<int64_t>(static_cast<double>(us) * costs_.slowness()) : us;
  }

  void CheckShape(const wire::Step& step) {
    if (keeps_steps_) steps_.push_back(step);
    EXPECT_LE(step.tokens_size(), static_cast<int>(facts_.n_batch));
    EXPECT_EQ(step.tokens_size(), step.positions_size());
    EXPECT_EQ(step.tokens_size(), step.slots_size());
    EXPECT_TRUE(std::is_sorted(step.sample_rows().begin(), step.sample_rows().end()));
    EXPECT_LE(step.sample_rows_size(), static_cast<int>(facts_.n_slots));
    EXPECT_TRUE(step.tokens_size() > 0 || step.edits_size() > 0);
    for (uint32_t row : step.draft_rows()) {
      EXPECT_TRUE(facts_.cache.rewind) << "a draft that the cache cannot forget";
      EXPECT_TRUE(std::ranges::binary_search(step.sample_rows(), row));
      EXPECT_LT(step.positions(static_cast<int>(row)), static_cast<int>(facts_.n_ctx));
    }
  }

  // Whether the row is the token that was sampled last.
  bool Continues(const wire::Step& step, int row) const {
    const Sequence& sequence = sequences_[step.slots(row)];
    const size_t at =
        static_cast<size_t>(step.positions(row)) + static_cast<size_t>(sequence.offset);
    return sequence.open && at + 1 == sequence.tokens.size() &&
           sequence.tokens.back() == step.tokens(row) && sequence.tokens.back() != kEnd;
  }
  // Whether the last stage leaves the step out.
  bool IsVoid(const wire::Step& step) const {
    return IsVoidStep(step, [&](uint32_t row) { return Continues(step, static_cast<int>(row)); });
  }

  absl::Status RunStage(uint32_t k, const wire::Step& step, std::vector<uint64_t>* rows,
                        std::optional<FakeFault> fault) {
    auto& slots = stages_[k];
    if (fault && fault->kind == FakeFault::kEdits) return absl::InternalError("an edit failed");
    copies_ = false;
    for (const wire::KvEdit& edit : step.edits()) {
      if (auto s = Apply(k, edit); !s.ok()) return s;
      copies_ = copies_ || edit.kind() == wire::KvEdit::COPY;
    }
    if (k + 1 == facts_.n_stages) {
      for (const wire::SequenceOpen& open : step.opens()) Open(open);
    }
    if (fault && fault->kind == FakeFault::kBatch) return absl::InternalError("the batch failed");
    if (fault && fault->kind == FakeFault::kFull) return absl::ResourceExhaustedError("no room");
    if (fault && fault->kind == FakeFault::kDataLoss) {
      for (int32_t slot : step.slots()) slots[slot].clear();
      return absl::DataLossError("the slots are lost");
    }
    if (k + 1 == facts_.n_stages && IsVoid(step)) return absl::OkStatus();
    std::vector<size_t> next;
    size_t cells = static_cast<size_t>(step.tokens_size());
    for (const auto& slot : slots) {
      next.push_back(slot.size());
      cells += slot.size();
    }
    for (int i = 0; i < step.tokens_size(); ++i) {
      if (step.tokens(i) == kBadToken) return absl::InvalidArgumentError("a bad token");
      if (static_cast<size_t>(step.positions(i)) != next[step.slots(i)]++) {
        ++mismatches_;
        return absl::InvalidArgumentError(absl::StrCat("slot ", step.slots(i), " position ",
                                                       step.positions(i), " does not follow"));
      }
      if (next[step.slots(i)] > facts_.n_ctx) return absl::ResourceExhaustedError("the context");
    }
    if (cells > cells_) return absl::ResourceExhaustedError("the cells");
    for (int i = 0; i < step.tokens_size(); ++i) {
      (*rows)[i] = Push(k, (*rows)[i], &slots[step.slots(i)]);
    }
    return absl::OkStatus();
  }

  absl::Status Apply(uint32_t k, const wire::KvEdit& edit) {
    auto& slots = stages_[k];
    std::vector<uint64_t>& slot = slots.at(edit.slot());
    const bool is_last = k + 1 == facts_.n_stages;
    Sequence& sequence = sequences_[edit.slot()];
    const auto begin = static_cast<size_t>(edit.begin());
    switch (edit.kind()) {
      case wire::KvEdit::DROP:
        slot.clear();
        if (is_last) {
          sequence = Sequence();
          shared_.erase(edit.slot());
        }
        break;
      case wire::KvEdit::TRIM: {
        const uint32_t window = facts_.cache.window_tokens;
        if (begin < slot.size() && begin > 0) {
          EXPECT_TRUE(facts_.cache.trim && (window == 0 || slot.size() < window))
              << "a trim that the cache cannot do";
        }
        slot.resize(std::min(slot.size(), begin));
        if (is_last) sequence = Sequence();
        break;
      }
      case wire::KvEdit::REWIND:
        EXPECT_TRUE(facts_.cache.rewind) << "a rewind that the cache cannot do";
        slot.resize(std::min(slot.size(), begin));
        break;
      case wire::KvEdit::COPY:
        EXPECT_TRUE(facts_.cache.copy) << "a copy that the cache cannot do";
        EXPECT_NE(edit.slot(), edit.from_slot());
        slot = slots.at(edit.from_slot());
        if (is_last) {
          sequence = Sequence();
          shared_.insert({edit.slot(), edit.from_slot()});
        }
        break;
      case wire::KvEdit::SHIFT:
        EXPECT_TRUE(facts_.cache.shift) << "a shift that the cache cannot do";
        EXPECT_TRUE(has_failed_ || !shared_.contains(edit.slot()))
            << "cells of other slots move, too";
        EXPECT_LT(edit.delta(), 0);
        EXPECT_LE(edit.begin(), static_cast<int>(slot.size()));
        Shift(begin - static_cast<size_t>(-edit.delta()), static_cast<size_t>(-edit.delta()),
              &slot);
        if (is_last) sequence.offset -= edit.delta();
        break;
      case wire::KvEdit::SAVE:
        EXPECT_TRUE(facts_.cache.checkpoint) << "a checkpoint that the cache cannot make";
        checkpoints_[k].at(edit.checkpoint()).clear();
        if (slot.size() == begin) checkpoints_[k][edit.checkpoint()] = slot;
        break;
      case wire::KvEdit::RESTORE: {
        const std::vector<uint64_t>& saved = checkpoints_[k].at(edit.checkpoint());
        if (saved.size() != begin || slot.size() < begin) {
          EXPECT_TRUE(has_failed_) << "a checkpoint that is not there";
          return absl::NotFoundError("no such checkpoint");
        }
        // Caches that keep every position must hold the same sequence.
        EXPECT_TRUE(has_failed_ || std::equal(saved.begin(), saved.end(), slot.begin()));
        slot = saved;
        if (is_last) sequence = Sequence();
        break;
      }
      case wire::KvEdit::STORE:
        StoreBlocks(edit, slot, &stores_[k]);
        break;
      case wire::KvEdit::LOAD: {
        EXPECT_TRUE(has_failed_ || slot.empty()) << "a load into a slot that holds something";
        EXPECT_FALSE(copies_) << "a load in the same step as a copy";
        std::vector<uint64_t> loaded;
        for (const KvName& name : SplitKvNames(edit.blocks())) {
          const auto block = stores_[k].find(name);
          if (block == stores_[k].end()) return absl::NotFoundError("no such block");
          loaded.insert(loaded.end(), block->second.begin(), block->second.end());
        }
        EXPECT_FALSE(loaded.empty());
        slot = std::move(loaded);
        if (is_last) sequence = Sequence();
        break;
      }
      case wire::KvEdit::FORGET:
        for (const KvName& name : SplitKvNames(edit.blocks())) stores_[k].erase(name);
        break;
      default:
        ADD_FAILURE() << "an unknown edit";
    }
    return absl::OkStatus();
  }

  void StoreBlocks(const wire::KvEdit& edit, const std::vector<uint64_t>& slot, Store* store) {
    const bool are_states = !facts_.cache.trim || facts_.cache.window_tokens != 0;
    auto from = static_cast<size_t>(edit.begin());
    for (const KvName& name : SplitKvNames(edit.blocks())) {
      const size_t n = are_states ? KvStateLength(name) : kKvBlockTokens;
      const size_t begin = std::exchange(from, from + n);
      const bool is_there = are_states ? n == slot.size() && begin == 0 : from <= slot.size();
      const bool has_room = store->contains(name) || store->size() < facts_.kv_blocks_max;
      if (!is_there || !has_room) {
        lost_blocks_ += JoinKvNames({&name, 1});
        continue;
      }
      (*store)[name].assign(slot.begin() + static_cast<std::ptrdiff_t>(begin),
                            slot.begin() + static_cast<std::ptrdiff_t>(from));
    }
  }

  void Open(const wire::SequenceOpen& open) {
    Sequence& sequence = sequences_.at(open.slot());
    sequence = {.open = open.sampler().seed() != kBadSeed,
                .tokens = {open.prompt().begin(), open.prompt().end()},
                .offset = open.sequence_offset(),
                .seed = open.sampler().seed(),
                .embeds = open.sampler().pooling() != wire::POOLING_OFF};
    if (sequence.embeds || (open.sampler().prompt_logprobs() && open.generated_size() == 0)) {
      sequence.rows = 0;
    }
    sequence.tokens.insert(sequence.tokens.end(), open.generated().begin(), open.generated().end());
    has_failed_ |= !sequence.open;
  }

  void SampleRows(const wire::Step& step, const std::vector<uint64_t>& rows, wire::Result* result) {
    for (const wire::SequenceOpen& open : step.opens()) {
      if (open.sampler().seed() != kBadSeed) continue;
      wire::SlotError* error = result->add_errors();
      error->set_slot(open.slot());
      ToWire(absl::InvalidArgumentError("no such seed"), "the last stage", error->mutable_status());
    }
    const auto cannot_go_on = [&](int32_t slot, absl::string_view why) {
      EXPECT_TRUE(has_failed_) << "slot " << slot << ": " << why;
      wire::SlotError* error = result->add_errors();
      error->set_slot(slot);
      ToWire(absl::FailedPreconditionError(why), "the last stage", error->mutable_status());
    };
    const auto is_wrong = [&](int32_t slot) {
      return std::any_of(result->errors().begin(), result->errors().end(),
                         [slot](const wire::SlotError& error) { return error.slot() == slot; });
    };
    for (uint32_t row : step.draft_rows()) {
      if (!Continues(step, static_cast<int>(row))) result->add_void_rows(row);
    }
    const auto is_void = [&](uint32_t row) {
      return std::ranges::binary_search(result->void_rows(), row);
    };
    for (int i = 0; i < step.tokens_size(); ++i) {
      if (is_void(static_cast<uint32_t>(i))) continue;
      Sequence& sequence = sequences_[step.slots(i)];
      if (!sequence.open || is_wrong(step.slots(i))) continue;
      const size_t at =
          static_cast<size_t>(step.positions(i)) + static_cast<size_t>(sequence.offset);
      if (at >= sequence.tokens.size() || sequence.tokens[at] != step.tokens(i)) {
        cannot_go_on(step.slots(i), absl::StrCat("another sequence at ", at));
      } else if (sequence.rows == step.positions(i)) {
        ++*sequence.rows;
      }
    }
    for (uint32_t row : step.sample_rows()) {
      const int32_t slot = step.slots(static_cast<int>(row));
      Sequence& sequence = sequences_[slot];
      if (is_wrong(slot) || is_void(row)) continue;
      const int32_t position = step.positions(static_cast<int>(row)) + 1 + sequence.offset;
      if (!sequence.open || position != static_cast<int32_t>(sequence.tokens.size())) {
        cannot_go_on(slot, "a row other than the last was sampled");
        continue;
      }
      if (sequence.rows && *sequence.rows != position) {
        cannot_go_on(slot, "rows are missing of one that needs them all");
        continue;
      }
      wire::SampledToken* token = result->add_tokens();
      token->set_slot(slot);
      token->set_position(position);
      if (sequence.embeds) {
        token->add_embedding(1);
        token->set_end_of_generation(true);
        sequence = Sequence();
        continue;
      }
      for (int32_t i = 0; sequence.rows && i < position; ++i) token->add_prompt();
      sequence.rows.reset();
      token->set_token(Choose(rows[row], sequence.tokens, sequence.seed));
      token->set_end_of_generation(token->token() == kEnd);
      sequence.tokens.push_back(token->token());
    }
  }

  const PipelineFacts facts_;
  const FakeCosts costs_;
  const size_t cells_;
  std::vector<std::vector<std::vector<uint64_t>>> stages_;       // [stages][slots][positions]
  std::vector<std::vector<std::vector<uint64_t>>> checkpoints_;  // [stages][checkpoints][positions]
  std::vector<Store> stores_;                                    // [stages]
  std::string lost_blocks_;                                      // since the last result
  bool copies_ = false;                                          // the step that is being applied
  std::vector<Sequence> sequences_;                              // [slots], of the last stage
  std::set<int32_t> shared_;      // slots that were copied, from or to, since they were empty
  std::vector<int64_t> free_us_;  // [stages]
  int64_t last_at_us_ = 0;
  uint64_t last_step_id_ = 0;
  int64_t mismatches_ = 0;
  bool has_failed_ = false;  // some step: what follows may come to stages that lack something
  bool keeps_steps_ = false;
  std::vector<wire::Step> steps_;
};

}  // namespace strata
