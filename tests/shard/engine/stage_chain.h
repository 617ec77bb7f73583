// Stages one after the other, as the links between them would run them, and models for them.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "shard/device/engine.h"
#include "shard/engine/stage.h"
#include "shard/model/model_file.h"
#include "shard/model/slice.h"
#include "tests/support/random_model.h"
#include "tests/support/temp_folder.h"

namespace strata {

inline constexpr uint32_t kVocab = 96;
inline constexpr uint32_t kEmbd = 64;

inline testing::RandomModelSpec Llama() {
  testing::RandomModelSpec spec;
  spec.name = "stage_test_llama";
  spec.architecture = "llama";
  spec.n_layer = 6;
  spec.n_vocab = kVocab;
  return spec;
}

inline testing::RandomModelSpec Mamba() {
  testing::RandomModelSpec spec = Llama();
  spec.name = "stage_test_mamba";
  spec.architecture = "mamba";
  spec.n_layer = 4;
  spec.metadata = {{"ssm.conv_kernel", 4u},      {"ssm.inner_size", 128u},
                   {"ssm.state_size", 16u},      {"ssm.time_step_rank", 4u},
                   {"attention.head_count", 0u}, {"attention.head_count_kv", 0u}};
  return spec;
}

// Five windowed layers to one that sees everything.
inline testing::RandomModelSpec Windowed() {
  testing::RandomModelSpec spec = Llama();
  spec.name = "stage_test_windowed";
  spec.architecture = "gemma3";
  spec.n_layer = 12;
  spec.metadata = {{"attention.sliding_window", 16u},
                   {"attention.key_length", 16u},
                   {"attention.value_length", 16u}};
  return spec;
}

// Two sets of rope factors, so that every slot has a cache of its own.
inline testing::RandomModelSpec TwoRanges() {
  testing::RandomModelSpec spec = Llama();
  spec.name = "stage_test_two_ranges";
  spec.architecture = "phi3";
  spec.metadata = {{"rope.scaling.original_context_length", 256u}, {"rope.dimension_count", 16u}};
  return spec;
}

inline std::shared_ptr<const ModelFile> OpenModel(const testing::RandomModelSpec& spec) {
  StartEngine();
  absl::StatusOr<std::string> path = testing::WriteRandomModel(spec, testing::MakeTestFolder());
  EXPECT_TRUE(path.ok()) << path.status();
  absl::StatusOr<std::shared_ptr<const ModelFile>> model = ModelFile::Open(*path);
  EXPECT_TRUE(model.ok()) << model.status();
  return *model;
}

inline absl::StatusOr<std::unique_ptr<Stage>> TryLoad(const std::shared_ptr<const ModelFile>& model,
                                                      LayerRange layers,
                                                      const StageOptions& options,
                                                      Stage::Progress progress = nullptr) {
  absl::StatusOr<Slice> slice = Slice::Make(model, layers, {});
  if (!slice.ok()) return slice.status();
  return Stage::Load(*slice, options, std::move(progress));
}

inline std::unique_ptr<Stage> LoadStage(const std::shared_ptr<const ModelFile>& model,
                                        LayerRange layers, const StageOptions& options) {
  absl::StatusOr<std::unique_ptr<Stage>> stage = TryLoad(model, layers, options);
  EXPECT_TRUE(stage.ok()) << stage.status();
  return *std::move(stage);
}

struct Row {
  int32_t slot;
  int32_t position;
  int32_t token;
  bool wants_logits = false;
};
using Rows = std::vector<Row>;
using Logits = std::vector<std::vector<float>>;  // [outputs][n_vocab]

class Chain {
 public:
  Chain(const std::shared_ptr<const ModelFile>& model, const std::vector<uint32_t>& cuts,
        const StageOptions& options) {
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      stages_.push_back(LoadStage(model, {cuts[i], cuts[i + 1]}, options));
    }
  }

  absl::StatusOr<Logits> Decode(const Rows& rows) {
    std::vector<int32_t> tokens, positions, slots;
    std::vector<uint32_t> outputs;
    for (size_t i = 0; i < rows.size(); ++i) {
      tokens.push_back(rows[i].token);
      positions.push_back(rows[i].position);
      slots.push_back(rows[i].slot);
      if (rows[i].wants_logits) outputs.push_back(static_cast<uint32_t>(i));
    }
    Payload activations;
    for (const std::unique_ptr<Stage>& stage : stages_) {
      Stage::Batch batch;
      batch.positions = positions;
      batch.slots = slots;
      if (stage->facts().is_first) batch.tokens = tokens;
      if (!stage->facts().is_first) batch.activations = activations.floats();
      if (stage->facts().is_last) batch.output_rows = outputs;
      absl::Status status = stage->Decode(batch);
      if (!status.ok()) return status;
      if (!stage->facts().is_last) activations = stage->TakeActivations();
    }
    Logits logits;
    for (size_t i = 0; i < outputs.size(); ++i) {
      absl::Span<const float> row = stages_.back()->Logits(i);
      logits.emplace_back(row.begin(), row.end());
    }
    return logits;
  }

  absl::Status Apply(wire::KvEdit::Kind kind, int32_t slot, int32_t begin = 0, int32_t delta = 0,
                     int32_t from_slot = 0) {
    wire::KvEdit edit;
    edit.set_kind(kind);
    edit.set_slot(slot);
    edit.set_begin(begin);
    edit.set_end(-1);
    edit.set_delta(delta);
    edit.set_from_slot(from_slot);
    absl::Status status;
    for (const std::unique_ptr<Stage>& stage : stages_) status.Update(stage->Apply(edit));
    return status;
  }

  absl::Status Checkpoint(wire::KvEdit::Kind kind, int32_t slot, int32_t length,
                          uint32_t checkpoint) {
    wire::KvEdit edit;
    edit.set_kind(kind);
    edit.set_slot(slot);
    edit.set_begin(length);
    edit.set_checkpoint(checkpoint);
    absl::Status status;
    for (const std::unique_ptr<Stage>& stage : stages_) status.Update(stage->Apply(edit));
    return status;
  }

  Stage& stage(size_t i) { return *stages_[i]; }

 private:
  std::vector<std::unique_ptr<Stage>> stages_;
};

inline Rows Prompt(int32_t slot, int32_t begin, int32_t n) {
  Rows rows;
  for (int32_t i = begin; i < begin + n; ++i) {
    rows.push_back({slot, i, (7 * i + 13 * slot + 5) % static_cast<int32_t>(kVocab)});
  }
  rows.back().wants_logits = true;
  return rows;
}

inline Rows operator+(Rows a, const Rows& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline int32_t LikeliestOf(const std::vector<float>& logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

inline StageOptions Options(uint32_t n_seq_max = 4, uint32_t n_threads = 1) {
  StageOptions options;
  options.n_ctx = 128;
  options.n_seq_max = n_seq_max;
  options.n_batch = 64;
  options.n_threads = n_threads;
  return options;
}

}  // namespace strata
