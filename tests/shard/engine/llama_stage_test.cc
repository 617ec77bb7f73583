// The slots after a batch on which libllama fails: as before, or dropped and named. Also what a
// step costs beside the contents of other slots.
#include "shard/engine/llama_stage.h"

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shard/device/engine.h"
#include "shard/model/model_file.h"
#include "shard/model/slice.h"
#include "tests/support/random_model.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::strata::testing::RandomModelSpec;
using ::strata::testing::WriteRandomModel;
using ::testing::AllOf;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pointwise;
using Code = absl::StatusCode;

constexpr uint32_t kCtx = 128;
constexpr uint32_t kSlots = 4;

RandomModelSpec Llama() {
  return {.name = "llama_stage_test_llama", .architecture = "llama", .n_layer = 4};
}

RandomModelSpec Mamba() {
  RandomModelSpec spec = {.name = "llama_stage_test_mamba", .architecture = "mamba", .n_layer = 4};
  spec.metadata = {{"ssm.conv_kernel", 4u},      {"ssm.inner_size", 128u},
                   {"ssm.state_size", 16u},      {"ssm.time_step_rank", 4u},
                   {"attention.head_count", 0u}, {"attention.head_count_kv", 0u}};
  return spec;
}

RandomModelSpec Windowed() {
  RandomModelSpec spec = {
      .name = "llama_stage_test_windowed", .architecture = "gemma3", .n_layer = 6};
  spec.metadata = {{"attention.sliding_window", 8u},
                   {"attention.key_length", 16u},
                   {"attention.value_length", 16u}};
  return spec;
}

struct Row {
  int32_t slot;
  int32_t position;
};
using Rows = std::vector<Row>;

Rows SlotRows(int32_t slot, int32_t begin, int32_t n) {
  Rows rows;
  for (int32_t i = 0; i < n; ++i) rows.push_back({slot, begin + i});
  return rows;
}

Rows operator+(Rows a, const Rows& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct StageKind {
  RandomModelSpec spec;
  bool is_unified = true;          // one cache for all slots
  bool has_equal_graphs = false;   // as LlamaStage::Config
  bool has_streams = false;        // as LlamaStage::Config
  bool is_first_half = false;      // ends in the middle, at output_tensor
  std::string output_tensor = "";  // as LlamaStage::Config
  uint32_t n_outputs_max = kCtx;   // as LlamaStage::Config
};

// A stage whose graphs a test can abort after a number of nodes.
class FailingStage {
 public:
  explicit FailingStage(const StageKind& kind) {
    StartEngine();
    absl::StatusOr<std::string> path = WriteRandomModel(kind.spec, testing::ProcessTempFolder());
    EXPECT_TRUE(path.ok()) << path.status();
    absl::StatusOr<std::shared_ptr<const ModelFile>> file = ModelFile::Open(*path);
    EXPECT_TRUE(file.ok()) << file.status();
    const uint32_t n_layer = (*file)->n_layer();
    absl::StatusOr<Slice> slice =
        Slice::Make(*file, {0, kind.is_first_half ? n_layer / 2 : n_layer}, {});
    EXPECT_TRUE(slice.ok()) << slice.status();

    ggml_backend_dev_t no_devices[] = {nullptr};
    llama_model_params model_params = llama_model_default_params();
    model_params.devices = no_devices;
    model_params.load_mode = LLAMA_LOAD_MODE_NONE;
    absl::StatusOr<FILE*> stream = slice->Open();
    EXPECT_TRUE(stream.ok()) << stream.status();
    LlamaModelPtr model(llama_model_load_from_file_ptr(*stream, model_params));
    std::fclose(*stream);

    LlamaStage::Config config;
    config.ability = CacheAbilityFor((*file)->header());
    config.output_tensor = kind.output_tensor;
    config.n_outputs_max = kind.n_outputs_max;
    config.has_equal_graphs = kind.has_equal_graphs;
    config.has_streams = kind.has_streams;
    config.facts.kv_bytes = 1 << 20;
    config.facts.slice_bytes = 1 << 20;
    config.has_vocabulary = true;
    config.facts.layers = slice->layers();
    config.facts.is_first = true;
    config.facts.is_last = !kind.is_first_half;
    config.facts.n_embd = static_cast<uint32_t>(llama_model_n_embd(model.get()));
    config.facts.n_embd_out = config.facts.n_embd;
    n_vocab_ = static_cast<uint32_t>(llama_vocab_n_tokens(llama_model_get_vocab(model.get())));
    config.facts.n_vocab = n_vocab_;
    config.facts.n_ctx = kCtx;
    config.facts.n_seq_max = kSlots;
    config.facts.n_batch = kCtx;
    is_last_ = config.facts.is_last;
    stage_ = std::make_unique<LlamaStage>(std::move(config), std::move(model));

    llama_context_params params = llama_context_default_params();
    params.n_ctx = kCtx * kSlots;
    params.n_seq_max = kSlots;
    params.n_batch = kCtx;
    params.n_ubatch = kCtx;
    params.n_threads = 1;
    params.n_threads_batch = 1;
    params.kv_unified = kind.is_unified;
    params.swa_full = false;
    params.n_outputs_max = kind.n_outputs_max;
    params.pooling_type = LLAMA_POOLING_TYPE_NONE;
    params.abort_callback = &FailingStage::WantsAbort;
    params.abort_callback_data = this;
    params.cb_eval = &FailingStage::CountCells;
    params.cb_eval_user_data = this;
    if (stage_->watches_tensors()) {
      params.embeddings = true;
      params.pooling_type = LLAMA_POOLING_TYPE_MEAN;
      params.cb_eval = LlamaStage::OnTensor;
      params.cb_eval_user_data = stage_.get();
    }
    stage_->SetContext(LlamaContextPtr(llama_init_from_model(stage_->model(), params)));
  }

  // With the logits of the last row. `scored`, `embedded`: rows whose outputs go to observed(),
  // too.
  absl::Status Decode(const Rows& rows, const std::vector<uint32_t>& scored = {},
                      const std::vector<uint32_t>& embedded = {}) {
    std::vector<int32_t> tokens, positions, slots;
    for (const Row& row : rows) {
      tokens.push_back((37 * row.position + 11 + 5 * row.slot) % static_cast<int32_t>(n_vocab_));
      positions.push_back(row.position);
      slots.push_back(row.slot);
    }
    std::vector<uint32_t> outputs;
    const auto last = static_cast<uint32_t>(rows.size()) - 1;
    if (is_last_ && (embedded.empty() || embedded.back() != last)) outputs.push_back(last);
    n_checks_ = n_graphs_ = 0;
    cells_walked_ = 0;
    observed_.clear();
    return stage_->Decode({.tokens = tokens,
                           .positions = positions,
                           .slots = slots,
                           .output_rows = outputs,
                           .scored_rows = scored,
                           .embedded_rows = embedded,
                           .observe = [this](uint32_t row, absl::Span<const float> output) {
                             observed_.push_back({row, {output.begin(), output.end()}});
                           }});
  }

  // As Decode(), but libllama is stopped before the last node of the last graph.
  absl::Status DecodeAndAbort(const Rows& rows, int n_checks) {
    abort_at_ = n_checks;
    absl::Status status = Decode(rows);
    abort_at_ = 0;
    return status;
  }

  // Logits of the last row of the batch before.
  std::vector<float> Logits() {
    const absl::Span<const float> logits = stage_->Logits(0);
    return {logits.begin(), logits.end()};
  }

  struct Observed {
    uint32_t row = 0;
    std::vector<float> output;
  };
  const std::vector<Observed>& observed() const { return observed_; }

  // Of the last batch: graphs, and the cells over which attention walked in them, of all layers.
  // Not counted where the stage is a first half.
  int n_graphs() const { return n_graphs_; }
  int64_t cells_walked() const { return cells_walked_; }

  // How often libllama called the abort callback in the last batch.
  int n_checks() const { return n_checks_; }

 private:
  static bool WantsAbort(void* data) {
    auto* self = static_cast<FailingStage*>(data);
    return ++self->n_checks_ == self->abort_at_;
  }

  static bool CountCells(ggml_tensor* tensor, bool ask, void* data) {
    auto* self = static_cast<FailingStage*>(data);
    if (!ask || tensor->op != GGML_OP_FLASH_ATTN_EXT) return false;
    const ggml_tensor &queries = *tensor->src[0], &keys = *tensor->src[1];
    self->n_graphs_ += self->first_attention_.empty() || self->first_attention_ == tensor->name;
    if (self->first_attention_.empty()) self->first_attention_ = tensor->name;
    self->cells_walked_ += queries.ne[1] * keys.ne[1] * queries.ne[3];
    return false;
  }

  std::unique_ptr<LlamaStage> stage_;
  uint32_t n_vocab_ = 0;
  bool is_last_ = false;
  int n_checks_ = 0;
  int abort_at_ = 0;  // 0: never
  int n_graphs_ = 0;
  int64_t cells_walked_ = 0;
  std::vector<Observed> observed_;
  std::string first_attention_;  // the name of a graph's first attention
};

// Runs `before`, then `batch`, aborted at its end and run again: the result is the same as without
// the abort.
void ExpectNothingHappened(const StageKind& kind, const std::vector<Rows>& before,
                           const Rows& batch) {
  FailingStage calm(kind);
  FailingStage stage(kind);
  for (const Rows& rows : before) {
    ASSERT_TRUE(calm.Decode(rows).ok());
    ASSERT_TRUE(stage.Decode(rows).ok());
  }
  ASSERT_TRUE(calm.Decode(batch).ok());
  const absl::Status aborted = stage.DecodeAndAbort(batch, calm.n_checks() - 1);
  EXPECT_EQ(aborted.code(), Code::kInternal) << aborted;
  const absl::Status again = stage.Decode(batch);
  ASSERT_TRUE(again.ok()) << again;
  EXPECT_EQ(stage.Logits(), calm.Logits());
}

TEST(LlamaStage, AbortedBatchLeavesTheCacheAsItWas) {
  ExpectNothingHappened({.spec = Llama()}, {SlotRows(0, 0, 20), SlotRows(2, 0, 7)},
                        SlotRows(0, 20, 3) + SlotRows(1, 0, 9) + SlotRows(2, 7, 1));
}

TEST(LlamaStage, AbortedBatchLeavesAWindowAsItWas) {
  ExpectNothingHappened({.spec = Windowed()}, {SlotRows(0, 0, 100), SlotRows(0, 100, 9)},
                        SlotRows(1, 0, 60) + SlotRows(0, 109, 3));
}

TEST(LlamaStage, GraphsBeforeTheAbortedOneAreRolledBack) {
  // The first graph takes as many rows of each slot, the second what is left of slot 0.
  ExpectNothingHappened({.spec = Llama(), .is_unified = false, .has_equal_graphs = true},
                        {SlotRows(0, 0, 20)}, SlotRows(1, 0, 2) + SlotRows(0, 20, 9));
}

TEST(LlamaStage, RecurrentSlotsOfAnAbortedBatchAreDroppedAndNamed) {
  const StageKind kind = {.spec = Mamba(), .has_equal_graphs = true};
  FailingStage calm(kind);
  FailingStage stage(kind);
  for (FailingStage* each : {&calm, &stage}) {
    ASSERT_TRUE(each->Decode(SlotRows(0, 0, 12)).ok());
    ASSERT_TRUE(each->Decode(SlotRows(3, 0, 5)).ok());
  }
  ASSERT_TRUE(calm.Decode(SlotRows(3, 5, 1)).ok());
  const absl::Status aborted = stage.DecodeAndAbort(SlotRows(3, 5, 1), calm.n_checks() - 1);
  EXPECT_EQ(aborted.code(), Code::kDataLoss) << aborted;
  EXPECT_THAT(aborted.message(), AllOf(HasSubstr("slots 3"), Not(HasSubstr("0,"))));
  EXPECT_EQ(stage.Decode(SlotRows(3, 5, 1)).code(), Code::kInvalidArgument);

  // The dropped slot starts again, and the other one continues.
  ASSERT_TRUE(stage.Decode(SlotRows(3, 0, 5)).ok());
  ASSERT_TRUE(stage.Decode(SlotRows(3, 5, 1)).ok());
  EXPECT_EQ(stage.Logits(), calm.Logits());
  ASSERT_TRUE(calm.Decode(SlotRows(0, 12, 2)).ok());
  ASSERT_TRUE(stage.Decode(SlotRows(0, 12, 2)).ok());
  EXPECT_EQ(stage.Logits(), calm.Logits());
}

TEST(LlamaStage, LogitsAreThoseOfTheirRowsInAnyOrderOfSlots) {
  const StageKind kind = {.spec = Mamba(), .has_equal_graphs = true};
  FailingStage rising(kind);
  FailingStage falling(kind);
  for (FailingStage* each : {&rising, &falling}) {
    ASSERT_TRUE(each->Decode(SlotRows(0, 0, 12)).ok());
    ASSERT_TRUE(each->Decode(SlotRows(3, 0, 5)).ok());
  }
  // The last row's logits: of slot 3 at first, then of slot 0.
  ASSERT_TRUE(rising.Decode(SlotRows(0, 12, 1) + SlotRows(3, 5, 1)).ok());
  ASSERT_TRUE(rising.Decode(SlotRows(0, 13, 1)).ok());
  ASSERT_TRUE(falling.Decode(SlotRows(0, 12, 1) + SlotRows(3, 5, 1)).ok());
  ASSERT_TRUE(falling.Decode(SlotRows(3, 6, 1) + SlotRows(0, 13, 1)).ok());
  const std::vector<float> alone = rising.Logits();
  const std::vector<float> last = falling.Logits();
  ASSERT_EQ(alone.size(), last.size());
  for (size_t i = 0; i < alone.size(); ++i) EXPECT_NEAR(alone[i], last[i], 1e-3);
}

StageKind Streams() {
  return {.spec = Llama(), .is_unified = false, .has_equal_graphs = true, .has_streams = true};
}

TEST(LlamaStage, RowsAreObservedWhereTheirOutputsExceedAGraph) {
  const StageKind mamba = {.spec = Mamba(), .has_equal_graphs = true};
  for (StageKind kind :
       {StageKind{.spec = Llama()}, Streams(), mamba, StageKind{.spec = Windowed()}}) {
    SCOPED_TRACE(kind.spec.name);
    FailingStage by_row(kind);
    kind.n_outputs_max = 4;
    FailingStage stage(kind);
    // Of slot 0 and 3 all rows, of slot 2 the first one and the last, which is no observed row.
    const Rows rows = SlotRows(0, 0, 11) + SlotRows(3, 0, 9) + SlotRows(2, 0, 6);
    const std::vector<uint32_t> scored = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20};
    const std::vector<uint32_t> embedded = {11, 12, 13, 14, 15, 16, 17, 18, 19};
    ASSERT_TRUE(stage.Decode(rows, scored, embedded).ok());
    std::vector<std::vector<float>> outputs(rows.size());
    for (uint32_t i = 0; i < rows.size(); ++i) {
      const bool is_embedded = rows[i].slot == 3;
      ASSERT_TRUE(by_row
                      .Decode({rows[i]}, {},
                              is_embedded ? std::vector<uint32_t>{0} : std::vector<uint32_t>{})
                      .ok());
      outputs[i] = is_embedded ? by_row.observed().at(0).output : by_row.Logits();
    }
    int32_t last[kSlots] = {-1, -1, -1, -1};
    for (const FailingStage::Observed& seen : stage.observed()) {
      EXPECT_EQ(rows[seen.row].position, ++last[rows[seen.row].slot]);
      EXPECT_THAT(seen.output, Pointwise(FloatNear(1e-3f), outputs[seen.row])) << seen.row;
    }
    EXPECT_EQ(last[0], 10);
    EXPECT_EQ(last[2], 0);
    EXPECT_EQ(last[3], 8);
    EXPECT_THAT(stage.Logits(), Pointwise(FloatNear(1e-3f), outputs.back()));
    // The caches are as if no row had been observed, and plain graphs follow.
    for (const int32_t slot : {3, 0}) {
      const Rows next = SlotRows(slot, last[slot] + 1, 1);
      ASSERT_TRUE(by_row.Decode(next).ok());
      ASSERT_TRUE(stage.Decode(next).ok());
      EXPECT_THAT(stage.Logits(), Pointwise(FloatNear(1e-3f), by_row.Logits())) << slot;
    }
  }
}

TEST(LlamaStage, ARowCostsTheSameWhateverOtherSlotsHave) {
  FailingStage alone(Streams());
  FailingStage beside(Streams());
  for (int32_t slot = 1; slot < 4; ++slot) {
    ASSERT_TRUE(beside.Decode(SlotRows(slot, 0, 100)).ok());
  }
  for (const Rows& rows : {SlotRows(0, 0, 20), SlotRows(0, 20, 1)}) {
    ASSERT_TRUE(alone.Decode(rows).ok());
    ASSERT_TRUE(beside.Decode(rows).ok());
    EXPECT_GT(alone.cells_walked(), 0);
    EXPECT_EQ(alone.cells_walked(), beside.cells_walked());
    EXPECT_EQ(alone.Logits(), beside.Logits());
  }
}

TEST(LlamaStage, SlotsThatAreComputedTogetherAreOneGraphWhateverIsBetweenThem) {
  FailingStage calm({.spec = Llama(), .is_unified = false, .has_equal_graphs = true});
  FailingStage stage(Streams());
  for (FailingStage* each : {&calm, &stage}) {
    for (int32_t slot = 0; slot < 4; ++slot) {
      ASSERT_TRUE(each->Decode(SlotRows(slot, 0, 10 + 5 * slot)).ok());
    }
  }
  for (int32_t i = 0; i < 3; ++i) {
    const Rows rows = SlotRows(3, 25 + i, 1) + SlotRows(0, 10 + i, 1);
    ASSERT_TRUE(calm.Decode(rows).ok());
    ASSERT_TRUE(stage.Decode(rows).ok());
    EXPECT_EQ(calm.n_graphs(), 2);
    EXPECT_EQ(stage.n_graphs(), 1);
  }
  // The slots that made room are as they were.
  for (const Rows& rows : {SlotRows(1, 15, 1), SlotRows(2, 20, 1), SlotRows(1, 16, 2)}) {
    ASSERT_TRUE(calm.Decode(rows).ok());
    ASSERT_TRUE(stage.Decode(rows).ok());
    EXPECT_EQ(calm.Logits(), stage.Logits());
  }
}

TEST(LlamaStage, GraphWithoutTheBoundaryIsRolledBack) {
  FailingStage stage({.spec = Llama(), .is_first_half = true, .output_tensor = "no such tensor"});
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = stage.Decode(SlotRows(0, 0, 5));
    EXPECT_EQ(status.code(), Code::kInternal) << status;
    EXPECT_THAT(status.message(), HasSubstr("no such tensor"));
  }
}

}  // namespace
}  // namespace strata
