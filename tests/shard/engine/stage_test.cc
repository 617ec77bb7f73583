#include "shard/engine/stage.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shard/device/engine.h"
#include "shard/model/model_file.h"
#include "shard/model/slice.h"
#include "tests/shard/engine/stage_chain.h"
#include "tests/support/random_model.h"
#include "transport/rpc/status_details.h"

namespace strata {
namespace {

using ::strata::testing::RandomModelSpec;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

// Bit for bit: distinguishes 0 from -0, and compares NaNs by their bits.
void ExpectSame(const absl::StatusOr<Logits>& chained, const absl::StatusOr<Logits>& whole) {
  ASSERT_TRUE(chained.ok()) << chained.status();
  ASSERT_TRUE(whole.ok()) << whole.status();
  ASSERT_EQ(chained->size(), whole->size());
  for (size_t i = 0; i < whole->size(); ++i) {
    ASSERT_EQ((*whole)[i].size(), kVocab);
    ASSERT_EQ((*chained)[i].size(), kVocab);
    constexpr auto kBits = [](float value) { return std::bit_cast<uint32_t>(value); };
    EXPECT_TRUE(std::ranges::equal((*chained)[i], (*whole)[i], {}, kBits, kBits))
        << "output " << i << ": " << (*chained)[i][0] << " and " << (*whole)[i][0];
    EXPECT_NE((*whole)[i][0], (*whole)[i][1]);
  }
}

// The same rows through the chain and the whole model, and the same continuation.
class Pair {
 public:
  Pair(const RandomModelSpec& spec, const std::vector<uint32_t>& cuts, const StageOptions& options)
      : model_(OpenModel(spec)),
        whole_(model_, {0, model_->n_layer()}, options),
        chain_(model_, cuts, options) {}

  Logits Decode(const Rows& rows) {
    absl::StatusOr<Logits> whole = whole_.Decode(rows);
    ExpectSame(chain_.Decode(rows), whole);
    return whole.ok() ? *whole : Logits();
  }

  void Apply(wire::KvEdit::Kind kind, int32_t slot, int32_t begin = 0, int32_t delta = 0,
             int32_t from_slot = 0) {
    absl::Status status = whole_.Apply(kind, slot, begin, delta, from_slot);
    EXPECT_TRUE(status.ok()) << status;
    status = chain_.Apply(kind, slot, begin, delta, from_slot);
    EXPECT_TRUE(status.ok()) << status;
  }

  void Save(int32_t slot, int32_t length, uint32_t checkpoint) {
    Checkpoint(wire::KvEdit::SAVE, slot, length, checkpoint);
  }
  void Restore(int32_t slot, int32_t length, uint32_t checkpoint) {
    Checkpoint(wire::KvEdit::RESTORE, slot, length, checkpoint);
  }

  // `n` greedy tokens of `slot` from `position` on, starting with `token`.
  void Generate(int32_t slot, int32_t position, int32_t token, int n) {
    for (int i = 0; i < n && !::testing::Test::HasFailure(); ++i) {
      const Logits logits = Decode({{slot, position + i, token, true}});
      if (logits.size() == 1) token = LikeliestOf(logits[0]);
    }
  }

 private:
  void Checkpoint(wire::KvEdit::Kind kind, int32_t slot, int32_t length, uint32_t checkpoint) {
    for (Chain* each : {&whole_, &chain_}) {
      const absl::Status status = each->Checkpoint(kind, slot, length, checkpoint);
      EXPECT_TRUE(status.ok()) << status;
    }
  }

  std::shared_ptr<const ModelFile> model_;
  Chain whole_;
  Chain chain_;
};

TEST(Stage, ThreeInARowEqualTheWholeBitForBit) {
  for (uint32_t n_threads : {1u, 2u}) {
    Pair pair(Llama(), {0, 2, 5, 6}, Options(4, n_threads));
    pair.Decode(Prompt(0, 0, 37));
    pair.Generate(0, 37, 11, 20);
  }
}

TEST(Stage, MixedBatchesOfSeveralSequencesEqualTheWhole) {
  Pair pair(Llama(), {0, 1, 3, 6}, Options());
  pair.Decode(Prompt(2, 0, 20));
  pair.Decode(Prompt(0, 0, 5) + Prompt(2, 20, 1) + Prompt(1, 0, 17));
  // Rows of the sequences in turn.
  Rows rows;
  for (int32_t i = 0; i < 9; ++i) {
    rows = rows + Prompt(1, 17 + i, 1);
    if (i < 4) rows = rows + Prompt(2, 21 + i, 1);
    if (i < 7) rows = rows + Prompt(0, 5 + i, 1);
  }
  pair.Decode(rows);
  pair.Generate(1, 26, 3, 5);
}

TEST(Stage, RecurrentRowsComeOutInBatchOrder) {
  Pair pair(Mamba(), {0, 1, 3, 4}, Options());
  pair.Decode(Prompt(2, 0, 20));
  pair.Decode(Prompt(0, 0, 5) + Prompt(2, 20, 1) + Prompt(1, 0, 17));
  Rows rows;
  for (int32_t i = 0; i < 9; ++i) {
    rows = rows + Prompt(1, 17 + i, 1);
    if (i < 4) rows = rows + Prompt(2, 21 + i, 1);
    if (i < 7) rows = rows + Prompt(0, 5 + i, 1);
  }
  pair.Decode(rows);
  pair.Generate(2, 25, 3, 5);
}

TEST(Stage, SlidingWindowsEqualTheWhole) {
  Pair pair(Windowed(), {0, 6, 12}, Options());
  pair.Decode(Prompt(0, 0, 40));
  pair.Decode(Prompt(1, 0, 30) + Prompt(0, 40, 1));
  pair.Generate(1, 30, 9, 30);
}

TEST(Stage, WindowedCacheIsTrimmedWithinItsWindow) {
  Pair pair(Windowed(), {0, 6, 12}, Options());
  pair.Decode(Prompt(0, 0, 60));
  pair.Decode(Prompt(1, 0, 30));
  pair.Apply(wire::KvEdit::TRIM, 0, 57);
  pair.Decode(Prompt(0, 57, 4) + Prompt(1, 30, 1));
  pair.Generate(0, 61, 9, 5);
}

TEST(Stage, WindowedCacheRefusesToGoBackBeforeItsWindow) {
  StageOptions options = Options();
  options.n_ctx = 1024;
  Chain chain(OpenModel(Windowed()), {0, 6, 12}, options);
  // More than the windowed layers' cache has cells for.
  for (int32_t i = 0; i < 10; ++i) ASSERT_TRUE(chain.Decode(Prompt(0, 60 * i, 60)).ok());
  EXPECT_EQ(chain.Apply(wire::KvEdit::TRIM, 0, 30).code(), Code::kUnimplemented);
  EXPECT_TRUE(chain.Apply(wire::KvEdit::TRIM, 0, 598).ok());
  EXPECT_TRUE(chain.Decode(Prompt(0, 598, 3)).ok());
  EXPECT_TRUE(chain.Apply(wire::KvEdit::TRIM, 0, 0).ok());
  EXPECT_TRUE(chain.Decode(Prompt(0, 0, 60)).ok());
}

// A copy's cells belong to two sequences, and a cache of windows reuses only cells of one: it would
// fill up with cells that no window sees.
TEST(Stage, WindowedCacheRefusesToCopySoThatEverySlotHasRoom) {
  StageOptions options = Options();
  options.n_ctx = 512;
  Chain chain(OpenModel(Windowed()), {0, 6, 12}, options);
  for (int32_t i = 0; i < 4; ++i) ASSERT_TRUE(chain.Decode(Prompt(0, 60 * i, 60)).ok());
  EXPECT_EQ(chain.Apply(wire::KvEdit::COPY, 1, 0, 0, 0).code(), Code::kUnimplemented);
  for (int32_t i = 0; i < 8; ++i) EXPECT_TRUE(chain.Decode(Prompt(2, 60 * i, 60)).ok());
}

TEST(Stage, CachesOfTheirOwnForEachSlotEqualTheWhole) {
  Pair pair(TwoRanges(), {0, 1, 3, 6}, Options());
  pair.Decode(Prompt(2, 0, 20));
  pair.Decode(Prompt(0, 0, 5) + Prompt(2, 20, 1) + Prompt(1, 0, 17));
  pair.Apply(wire::KvEdit::COPY, 3, 0, 0, 2);
  pair.Decode(Prompt(3, 21, 2) + Prompt(0, 5, 1) + Prompt(2, 21, 1));
  pair.Apply(wire::KvEdit::TRIM, 3, 9);
  pair.Generate(3, 9, 4, 3);
  pair.Apply(wire::KvEdit::DROP, 1);
  pair.Decode(Prompt(1, 0, 3) + Prompt(3, 12, 4));
}

TEST(Stage, EditsOfTheCacheEqualTheWhole) {
  Pair pair(Llama(), {0, 2, 5, 6}, Options());
  pair.Decode(Prompt(0, 0, 30));
  pair.Apply(wire::KvEdit::COPY, 1, 0, 0, 0);
  pair.Generate(1, 30, 4, 3);
  pair.Apply(wire::KvEdit::TRIM, 1, 12);
  pair.Decode(Prompt(1, 12, 8) + Prompt(0, 30, 2));
  pair.Apply(wire::KvEdit::SHIFT, 0, 16, -10);  // positions 6 to 15 go
  pair.Generate(0, 22, 4, 3);
  pair.Apply(wire::KvEdit::DROP, 0);
  pair.Decode(Prompt(0, 0, 10));
}

TEST(Stage, RecurrentStatesAreCopiedAndDropped) {
  Pair pair(Mamba(), {0, 2, 4}, Options());
  pair.Decode(Prompt(0, 0, 12));
  pair.Apply(wire::KvEdit::COPY, 3, 0, 0, 0);
  pair.Decode(Prompt(3, 12, 4) + Prompt(0, 12, 2));
  pair.Apply(wire::KvEdit::DROP, 0);
  pair.Decode(Prompt(0, 0, 3) + Prompt(3, 16, 1));
}

TEST(Stage, TrimmedSequenceGivesTheLogitsOfTheRest) {
  Chain chain(OpenModel(Llama()), {0, 3, 6}, Options());
  const absl::StatusOr<Logits> once = chain.Decode(Prompt(0, 0, 20));
  ASSERT_TRUE(chain.Decode(Prompt(1, 0, 20) + Rows{{1, 20, 1}, {1, 21, 2}}).ok());
  ASSERT_TRUE(chain.Apply(wire::KvEdit::TRIM, 0, 19).ok());
  const absl::StatusOr<Logits> again = chain.Decode({Prompt(0, 0, 20).back()});
  ASSERT_TRUE(once.ok() && again.ok());
  for (uint32_t i = 0; i < kVocab; ++i) EXPECT_NEAR((*once)[0][i], (*again)[0][i], 1e-3);
}

// 32 is a block of the quantised types.
RandomModelSpec WideHeads(RandomModelSpec spec, uint32_t width = 32) {
  spec.name += "_" + std::to_string(width);
  spec.metadata.emplace_back("attention.key_length", width);
  spec.metadata.emplace_back("attention.value_length", width);
  if (spec.architecture == "llama") spec.metadata.emplace_back("rope.dimension_count", width);
  return spec;
}

TEST(Stage, EveryTypeOfCacheAndFlashAttentionEqualTheWhole) {
  struct Kind {
    const char* type_k;
    const char* type_v;
    const char* flash;
  };
  for (const Kind& kind :
       {Kind{"f32", "f32", "on"}, Kind{"f32", "f32", "off"}, Kind{"f16", "f16", "off"},
        Kind{"f16", "f16", "on"}, Kind{"q8_0", "q8_0", "auto"}, Kind{"q4_0", "q4_0", "on"},
        Kind{"q8_0", "f16", "off"}, Kind{"q4_0", "q8_0", ""}}) {
    SCOPED_TRACE(::testing::Message() << kind.type_k << ", " << kind.type_v << ", " << kind.flash);
    StageOptions options = Options();
    options.cache = {.type_k = kind.type_k, .type_v = kind.type_v, .flash_attention = kind.flash};
    {
      Pair llama(WideHeads(Llama()), {0, 2, 5, 6}, options);
      llama.Decode(Prompt(0, 0, 20));
      llama.Decode(Prompt(1, 0, 9) + Prompt(0, 20, 1));
      llama.Generate(0, 21, 4, 3);
    }
    {
      Pair shifted(WideHeads(Llama(), 64), {0, 2, 6}, options);
      shifted.Decode(Prompt(0, 0, 24));
      shifted.Apply(wire::KvEdit::SHIFT, 0, 12, -8);
      shifted.Generate(0, 16, 4, 2);
    }
    Pair windowed(WideHeads(Windowed()), {0, 6, 12}, options);
    windowed.Decode(Prompt(0, 0, 40));
    windowed.Decode(Prompt(1, 0, 9) + Prompt(0, 40, 1));
    windowed.Generate(0, 41, 4, 3);
  }
}

TEST(Stage, QuantisedKeysOfNarrowHeadsAreNotShifted) {
  StageOptions options = Options();
  options.cache.type_k = "q8_0";
  for (const uint32_t width : {32u, 64u}) {
    Chain chain(OpenModel(WideHeads(Llama(), width)), {0, 6}, options);
    EXPECT_EQ(chain.stage(0).facts().cache.shift, width == 64);
    ASSERT_TRUE(chain.Decode(Prompt(0, 0, 24)).ok());
    const absl::Status status = chain.Apply(wire::KvEdit::SHIFT, 0, 12, -8);
    EXPECT_EQ(status.code(), width == 64 ? Code::kOk : Code::kUnimplemented) << status;
    EXPECT_TRUE(chain.Decode(Prompt(0, width == 64 ? 16 : 24, 1)).ok());
  }
}

TEST(Stage, SlotsThatDoNotDivideABatchEqualTheWhole) {
  for (const uint32_t n_seq_max : {3u, 5u, 7u, 100u}) {
    for (const uint32_t n_batch : {64u, 63u, 2u}) {
      SCOPED_TRACE(::testing::Message() << n_seq_max << " slots, batches of " << n_batch);
      StageOptions options = Options(n_seq_max);
      options.n_batch = n_batch;
      Pair pair(Llama(), {0, 3, 6}, options);
      pair.Decode(Prompt(0, 0, 2));
      pair.Decode(Prompt(2, 0, 1) + Prompt(0, 2, 1));
      pair.Generate(0, 3, 4, 2);
    }
  }
  // A batch that fills the context.
  StageOptions options = Options(3);
  options.n_batch = options.n_ctx = 256;
  options.cache.kv_cells = 256;
  Pair pair(Llama(), {0, 3, 6}, options);
  pair.Decode(Prompt(0, 0, 250));
}

TEST(Stage, FewCellsAreSharedByAllSlots) {
  StageOptions options = Options();
  options.cache.kv_cells = 256;  // of 4 x 128
  Pair pair(Llama(), {0, 3, 6}, options);
  Chain roomy(OpenModel(Llama()), {0, 3, 6}, Options());
  Chain full(OpenModel(Llama()), {0, 3, 6}, options);
  EXPECT_EQ(full.stage(0).facts().kv_cells, 256u);
  EXPECT_LT(full.stage(0).facts().kv_bytes, roomy.stage(0).facts().kv_bytes * 6 / 10);
  for (int32_t slot = 0; slot < 4; ++slot) {
    ASSERT_TRUE(full.Decode(Prompt(slot, 0, 60)).ok());
    pair.Decode(Prompt(slot, 0, 60));
  }
  // 240 are there: 16 more, and not one of 17.
  const absl::Status refused = full.Decode(Prompt(1, 60, 17)).status();
  EXPECT_EQ(refused.code(), Code::kResourceExhausted) << refused;
  pair.Decode(Prompt(1, 60, 16));
  EXPECT_TRUE(full.Decode(Prompt(1, 60, 16)).ok());
  pair.Apply(wire::KvEdit::DROP, 2);
  pair.Decode(Prompt(3, 60, 40) + Prompt(2, 0, 10));
  pair.Generate(3, 100, 4, 2);
}

// A sequence continues from its saved state, with the same logits as without the restore.
void ExpectGoesBack(const RandomModelSpec& spec, const std::vector<uint32_t>& cuts) {
  StageOptions options = Options();
  options.cache.checkpoints = 2;
  Pair pair(spec, cuts, options);
  Chain fresh(OpenModel(spec), cuts, options);
  pair.Decode(Prompt(2, 0, 30));  // another sequence
  pair.Decode(Prompt(0, 0, 50));
  pair.Save(0, 50, 1);
  pair.Decode(Prompt(0, 50, 30) + Prompt(2, 30, 5));
  pair.Generate(0, 80, 4, 3);
  pair.Save(0, 83, 0);
  for (int round = 0; round < 3; ++round) {
    pair.Restore(0, 50, 1);
    Rows rows = Prompt(0, 50, 9);
    rows[3].token = round;
    const Logits again = pair.Decode(rows + Prompt(2, 35 + round, 1));
    ASSERT_TRUE(fresh.Apply(wire::KvEdit::DROP, 0).ok());
    ASSERT_TRUE(fresh.Decode(Prompt(0, 0, 50)).ok());
    const auto once = fresh.Decode(rows);
    ASSERT_TRUE(once.ok() && again.size() == 2);
    for (uint32_t i = 0; i < kVocab; ++i) EXPECT_NEAR((*once)[0][i], again[0][i], 1e-2) << i;
    pair.Generate(0, 59, 4, 2);
  }
}

TEST(Stage, StatesGoBackToCheckpoints) { ExpectGoesBack(Mamba(), {0, 2, 4}); }

TEST(Stage, WindowsGoBackToCheckpoints) { ExpectGoesBack(Windowed(), {0, 6, 12}); }

TEST(Stage, CheckpointsThatAreNotThereAreRefusedAndNothingChanges) {
  for (const RandomModelSpec& spec : {Mamba(), Windowed()}) {
    SCOPED_TRACE(spec.architecture);
    StageOptions options = Options();
    options.cache.checkpoints = 2;
    Chain chain(OpenModel(spec), {0, spec.n_layer}, options);
    Chain calm(OpenModel(spec), {0, spec.n_layer}, options);
    for (Chain* each : {&chain, &calm}) ASSERT_TRUE(each->Decode(Prompt(0, 0, 40)).ok());
    EXPECT_EQ(chain.Checkpoint(wire::KvEdit::RESTORE, 0, 20, 0).code(), Code::kNotFound);
    EXPECT_EQ(chain.Checkpoint(wire::KvEdit::RESTORE, 0, 20, 2).code(), Code::kInvalidArgument);
    EXPECT_EQ(chain.Checkpoint(wire::KvEdit::SAVE, 0, 20, 2).code(), Code::kInvalidArgument);
    // Nothing is kept of a slot that does not have the expected length.
    EXPECT_TRUE(chain.Checkpoint(wire::KvEdit::SAVE, 0, 39, 0).ok());
    EXPECT_EQ(chain.Checkpoint(wire::KvEdit::RESTORE, 0, 39, 0).code(), Code::kNotFound);
    EXPECT_TRUE(chain.Checkpoint(wire::KvEdit::SAVE, 0, 40, 0).ok());
    EXPECT_EQ(chain.Checkpoint(wire::KvEdit::RESTORE, 1, 40, 0).code(), Code::kInvalidArgument);
    ExpectSame(chain.Decode(Prompt(0, 40, 3)), calm.Decode(Prompt(0, 40, 3)));
  }
}

TEST(Stage, MappedAndReadModelsAreTheSame) {
  std::shared_ptr<const ModelFile> model = OpenModel(Llama());
  StageOptions options = Options();
  Chain mapped(model, {0, 6}, options);
  options.use_mmap = false;
  Chain read(model, {0, 6}, options);
  ExpectSame(mapped.Decode(Prompt(0, 0, 20)), read.Decode(Prompt(0, 0, 20)));
}

// Overwritten between two steps, and truncated in its last page, which then reads as zeros.
TEST(Stage, AMappedFileThatChangesStopsTheStage) {
  const std::shared_ptr<const ModelFile> model = OpenModel(Llama());
  const std::string& path = model->paths().front();
  Chain mapped(model, {0, 6}, Options());
  Chain pieces(model, {0, 3, 6}, Options());
  StageOptions options = Options();
  options.use_mmap = false;
  Chain read(model, {0, 6}, options);
  ExpectSame(mapped.Decode(Prompt(0, 0, 20)), read.Decode(Prompt(0, 0, 20)));
  ASSERT_TRUE(pieces.Decode(Prompt(0, 0, 20)).ok());
  std::filesystem::resize_file(path, model->part_bytes(0) - 1);
  const absl::Status status = mapped.Decode(Prompt(0, 20, 1)).status();
  EXPECT_EQ(status.code(), Code::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(path), HasSubstr("load the model")));
  // The data that was read is not in the file any more.
  EXPECT_TRUE(read.Decode(Prompt(0, 20, 1)).ok());
  EXPECT_TRUE(pieces.Decode(Prompt(0, 20, 1)).ok());
}

TEST(Stage, StepWithoutOutputsIsRun) {
  Pair pair(Llama(), {0, 3, 6}, Options());
  Rows rows = Prompt(0, 0, 10);
  rows.back().wants_logits = false;
  EXPECT_TRUE(pair.Decode(rows).empty());
  pair.Generate(0, 10, 4, 3);
}

TEST(Stage, ActivationsAreTakenOnce) {
  Chain chain(OpenModel(Llama()), {0, 3, 6}, Options());
  ASSERT_TRUE(chain.Decode(Prompt(0, 0, 5)).ok());
  EXPECT_TRUE(chain.stage(0).TakeActivations().empty());
}

TEST(Stage, FactsDescribeTheStage) {
  Chain chain(OpenModel(Llama()), {0, 2, 5, 6}, Options());
  const Stage::Facts& first = chain.stage(0).facts();
  const Stage::Facts& middle = chain.stage(1).facts();
  const Stage::Facts& last = chain.stage(2).facts();
  EXPECT_TRUE(first.is_first && !first.is_last);
  EXPECT_TRUE(!middle.is_first && !middle.is_last);
  EXPECT_TRUE(!last.is_first && last.is_last);
  EXPECT_EQ(middle.layers, (LayerRange{2, 5}));
  EXPECT_EQ(first.n_vocab, kVocab);
  EXPECT_EQ(last.n_vocab, kVocab);
  EXPECT_EQ(middle.n_vocab, 0u);
  EXPECT_NE(chain.stage(0).vocab(), nullptr);
  EXPECT_EQ(chain.stage(1).vocab(), nullptr);
  EXPECT_NE(chain.stage(2).vocab(), nullptr);
  for (const Stage::Facts* facts : {&first, &middle, &last}) {
    EXPECT_EQ(facts->n_embd, kEmbd);
    EXPECT_EQ(facts->n_ctx, 128u);
    EXPECT_EQ(facts->n_ctx_train, 512u);
    EXPECT_EQ(facts->n_seq_max, 4u);
    EXPECT_EQ(facts->n_batch, 64u);
    // 4 sequences of 128 cells, padded to 256, keys and values of 2 heads of 16 in f16, for each
    // layer; and the data about a cell.
    EXPECT_NEAR(facts->kv_bytes, 4 * (256 * (2 * (2 * 16) * 2 * facts->layers.size()) + 128 * 48),
                6000);
    EXPECT_GT(facts->compute_bytes, 0u);
    EXPECT_GT(facts->slice_bytes, 0u);
  }
}

class StageRefusals : public ::testing::Test {
 protected:
  void SetUp() override { model_ = OpenModel(Llama()); }

  std::string LoadError(const StageOptions& options, Code code) {
    absl::StatusOr<std::unique_ptr<Stage>> stage = TryLoad(model_, {0, 6}, options);
    EXPECT_EQ(stage.status().code(), code) << stage.status();
    return std::string(stage.status().message());
  }

  std::shared_ptr<const ModelFile> model_;
};

TEST_F(StageRefusals, UnknownDeviceIsRefusedWithThoseThereAre) {
  StageOptions options = Options();
  options.device = "Abacus0";
  EXPECT_THAT(LoadError(options, Code::kInvalidArgument), HasSubstr("CPU"));
}

TEST_F(StageRefusals, UnknownCacheTypeIsRefusedByName) {
  StageOptions options = Options();
  options.cache.type_v = "q9_9";
  EXPECT_THAT(LoadError(options, Code::kInvalidArgument), HasSubstr("type_v"));
}

TEST_F(StageRefusals, CachesThatTheModelCannotHaveAreRefusedWithTheReason) {
  StageOptions options = Options();
  options.cache.type_k = "q8_0";  // its heads are of 16
  EXPECT_THAT(LoadError(options, Code::kInvalidArgument),
              AllOf(HasSubstr("keys"), HasSubstr("32"), HasSubstr("16")));
  options.cache = {.type_v = "q4_0"};
  EXPECT_THAT(LoadError(options, Code::kInvalidArgument), HasSubstr("values"));
  options.cache = {.flash_attention = "perhaps"};
  EXPECT_THAT(LoadError(options, Code::kInvalidArgument), HasSubstr("auto, on or off"));
  options.cache = {.checkpoints = 1 << 20};
  EXPECT_THAT(LoadError(options, Code::kInvalidArgument), HasSubstr("1024"));
  options.cache = {.kv_cells = 100};
  EXPECT_THAT(LoadError(options, Code::kInvalidArgument), HasSubstr("128"));
  model_ = OpenModel(WideHeads(Llama()));
  options.cache = {.type_v = "q8_0", .flash_attention = "off"};
  EXPECT_THAT(LoadError(options, Code::kInvalidArgument), HasSubstr("flash attention"));
  model_ = OpenModel(TwoRanges());
  options.cache = {.kv_cells = 200};
  EXPECT_THAT(LoadError(options, Code::kInvalidArgument), HasSubstr("two sets of rope factors"));
}

TEST_F(StageRefusals, TooManySequencesAreRefused) {
  EXPECT_THAT(LoadError(Options(100000), Code::kInvalidArgument), HasSubstr("n_seq_max"));
  EXPECT_THAT(LoadError(Options(0), Code::kInvalidArgument), HasSubstr("n_seq_max"));
}

TEST_F(StageRefusals, CacheLargerThanMemoryIsRefusedWithTheBytes) {
  RandomModelSpec spec = Llama();
  spec.name = "stage_test_wide_heads";
  spec.metadata = {{"attention.head_count_kv", 4u},
                   {"attention.key_length", 256u},
                   {"attention.value_length", 256u}};
  model_ = OpenModel(spec);
  StageOptions options = Options(64);
  options.n_ctx = 1 << 17;  // 384 GiB of keys and values in f32
  options.cache.type_k = "f32";
  options.cache.type_v = "f32";
  const std::string message = LoadError(options, Code::kResourceExhausted);
  EXPECT_THAT(message, HasSubstr("needs 4"));
  EXPECT_THAT(message, HasSubstr("MiB are free"));
}

TEST_F(StageRefusals, AShortageReportsAllNeededMemory) {
  StageOptions options = Options();
  absl::StatusOr<std::unique_ptr<Stage>> stage = TryLoad(model_, {0, 6}, options);
  ASSERT_TRUE(stage.ok()) << stage.status();
  const Stage::Facts facts = (*stage)->facts();
  // Also where the weights alone are too large.
  for (const uint64_t free_bytes : {facts.slice_bytes / 2, facts.slice_bytes + 1}) {
    options.memory_bytes_max = free_bytes;
    stage = TryLoad(model_, {0, 6}, options);
    EXPECT_EQ(stage.status().code(), Code::kResourceExhausted) << stage.status();
    const auto shortage = ShortageOf(stage.status());
    ASSERT_TRUE(shortage) << stage.status();
    EXPECT_EQ(shortage->free_bytes, free_bytes);
    EXPECT_EQ(shortage->needed_bytes, facts.slice_bytes + facts.kv_bytes + facts.compute_bytes);
  }
}

TEST_F(StageRefusals, LoadStopsWhenProgressReturnsFalse) {
  absl::StatusOr<std::unique_ptr<Stage>> stage =
      TryLoad(model_, {0, 3}, Options(), [](uint64_t, uint64_t) { return false; });
  EXPECT_EQ(stage.status().code(), Code::kCancelled) << stage.status();
}

TEST_F(StageRefusals, ProgressReachesTheSlice) {
  uint64_t last_done = 0;
  uint64_t last_total = 0;
  absl::StatusOr<std::unique_ptr<Stage>> stage =
      TryLoad(model_, {0, 3}, Options(), [&](uint64_t done, uint64_t total) {
        EXPECT_GE(done, last_done);
        last_done = done;
        last_total = total;
        return true;
      });
  ASSERT_TRUE(stage.ok()) << stage.status();
  EXPECT_EQ(last_done, last_total);
  EXPECT_EQ(last_total, (*stage)->facts().slice_bytes);
}

class StageErrors : public ::testing::Test {
 protected:
  StageErrors() : chain_(OpenModel(Llama()), {0, 3, 6}, Options()) {}

  void ExpectRefused(const Rows& rows, Code code) {
    EXPECT_EQ(chain_.Decode(rows).status().code(), code);
    // The cache is as before.
    EXPECT_TRUE(chain_.Decode({{0, next_++, 1}}).ok());
  }

  Chain chain_;
  int32_t next_ = 0;  // position in slot 0
};

TEST_F(StageErrors, RowsOutOfRangeAreRefused) {
  ExpectRefused({}, Code::kInvalidArgument);
  ExpectRefused({{0, 1, -1}}, Code::kInvalidArgument);
  ExpectRefused({{0, 2, static_cast<int32_t>(kVocab)}}, Code::kInvalidArgument);
  ExpectRefused({{-1, 0, 1}}, Code::kInvalidArgument);
  ExpectRefused({{4, 0, 1}}, Code::kInvalidArgument);
  ExpectRefused(Prompt(1, 0, 65), Code::kInvalidArgument);
}

TEST_F(StageErrors, PositionsThatDoNotFollowAreRefused) {
  ExpectRefused({{0, 1, 1}}, Code::kInvalidArgument);
  ExpectRefused({{0, 0, 1}}, Code::kInvalidArgument);
  ExpectRefused({{0, 2, 1}, {0, 4, 1}}, Code::kInvalidArgument);
  ExpectRefused({{0, 3, 1}, {0, 3, 1}}, Code::kInvalidArgument);
  ExpectRefused({{1, 5, 1}}, Code::kInvalidArgument);
}

TEST_F(StageErrors, FullSlotIsResourceExhausted) {
  ASSERT_TRUE(chain_.Decode(Prompt(1, 0, 64)).ok());
  ASSERT_TRUE(chain_.Decode(Prompt(1, 64, 64)).ok());
  ExpectRefused({{1, 128, 1}}, Code::kResourceExhausted);
}

TEST_F(StageErrors, AllSlotsCanBeFull) {
  for (int32_t slot = 0; slot < 4; ++slot) {
    ASSERT_TRUE(chain_.Decode(Prompt(slot, 0, 64)).ok());
    ASSERT_TRUE(chain_.Decode(Prompt(slot, 64, 64)).ok());
  }
}

TEST_F(StageErrors, ColumnsOfOtherLengthsAreRefused) {
  const std::vector<int32_t> none, one = {0}, two = {0, 1};
  const std::vector<float> nothing, row(kEmbd, 0.5f), short_row(kEmbd - 1, 0.5f);
  const std::vector<uint32_t> no_output, output = {0}, past_the_end = {1};
  struct Case {
    size_t stage;
    const std::vector<int32_t>& tokens;
    const std::vector<float>& activations;
    const std::vector<int32_t>& slots;
    const std::vector<uint32_t>& output_rows;
    Code code;
  };
  const Case cases[] = {
      {0, two, nothing, one, no_output, Code::kInvalidArgument},
      {0, one, nothing, two, no_output, Code::kInvalidArgument},
      {0, none, row, one, no_output, Code::kInvalidArgument},
      {0, one, row, one, no_output, Code::kInvalidArgument},
      {0, one, nothing, one, output, Code::kInvalidArgument},
      {1, one, nothing, one, no_output, Code::kInvalidArgument},
      {1, none, short_row, one, no_output, Code::kInvalidArgument},
      {1, none, row, one, past_the_end, Code::kInvalidArgument},
      {1, none, row, one, output, Code::kOk},
  };
  for (const Case& c : cases) {
    Stage::Batch batch;
    batch.positions = one;
    batch.tokens = c.tokens;
    batch.activations = c.activations;
    batch.slots = c.slots;
    batch.output_rows = c.output_rows;
    EXPECT_EQ(chain_.stage(c.stage).Decode(batch).code(), c.code) << "case " << &c - cases;
  }
}

TEST_F(StageErrors, EditsOutOfRangeAreRefused) {
  ASSERT_TRUE(chain_.Decode(Prompt(1, 0, 20)).ok());
  auto code = [this](auto... args) { return chain_.Apply(args...).code(); };
  EXPECT_EQ(code(wire::KvEdit::DROP, 4), Code::kInvalidArgument);
  EXPECT_EQ(code(wire::KvEdit::DROP, -1), Code::kInvalidArgument);
  EXPECT_EQ(code(wire::KvEdit::TRIM, 1, -1), Code::kInvalidArgument);
  EXPECT_EQ(code(wire::KvEdit::COPY, 0, 0, 0, 9), Code::kInvalidArgument);
  EXPECT_EQ(code(wire::KvEdit::SHIFT, 1, 4, -5), Code::kInvalidArgument);
  EXPECT_EQ(code(wire::KvEdit::SHIFT, 1, 4, 5), Code::kInvalidArgument);
  EXPECT_EQ(code(wire::KvEdit::SHIFT, 1, 24, -5), Code::kInvalidArgument);
  EXPECT_EQ(code(wire::KvEdit::KIND_UNSPECIFIED, 1), Code::kInvalidArgument);
  EXPECT_TRUE(chain_.Decode(Prompt(1, 20, 1)).ok());  // nothing changed
}

TEST(Stage, TrimPastTheEndChangesNothing) {
  Chain chain(OpenModel(Llama()), {0, 3, 6}, Options());
  ASSERT_TRUE(chain.Decode(Prompt(1, 0, 20)).ok());
  EXPECT_TRUE(chain.Apply(wire::KvEdit::TRIM, 1, 20).ok());
  EXPECT_TRUE(chain.Apply(wire::KvEdit::TRIM, 1, 99).ok());
  EXPECT_TRUE(chain.Decode(Prompt(1, 20, 1)).ok());
}

TEST(Stage, RecurrentCacheRefusesUnsupportedEdits) {
  Chain chain(OpenModel(Mamba()), {0, 2, 4}, Options());
  ASSERT_TRUE(chain.Decode(Prompt(1, 0, 20)).ok());
  EXPECT_EQ(chain.Apply(wire::KvEdit::TRIM, 1, 10).code(), Code::kUnimplemented);
  EXPECT_EQ(chain.Apply(wire::KvEdit::SHIFT, 1, 10, -5).code(), Code::kUnimplemented);
  EXPECT_TRUE(chain.Decode(Prompt(1, 20, 1)).ok());
  EXPECT_TRUE(chain.Apply(wire::KvEdit::TRIM, 1, 0).ok());  // the whole of it can go
  EXPECT_TRUE(chain.Decode(Prompt(1, 0, 1)).ok());
}

}  // namespace
}  // namespace strata
