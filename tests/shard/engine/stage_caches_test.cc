// The contents of slots, transferred to other stages.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "shard/engine/sequence_state.h"
#include "shard/engine/stage.h"
#include "shard/kv_store/kv_folder.h"
#include "shard/kv_store/kv_store.h"
#include "tests/shard/engine/stage_chain.h"

namespace strata {
namespace {

using ::strata::testing::RandomModelSpec;
using Code = absl::StatusCode;

// Copies a slot from one stage to another, in parts of at most n_max positions.
absl::Status Copy(Stage* from, Stage* to, int32_t slot, uint32_t begin, uint32_t n_max) {
  while (begin < from->SlotStateOf(slot).positions) {
    auto part = from->ReadCache(slot, begin, n_max);
    if (!part.ok()) return part.status();
    if (auto s = to->WriteCache(slot, *part); !s.ok()) return s;
    begin = part->end;
  }
  return absl::OkStatus();
}

struct Kind {
  const char* name;
  RandomModelSpec spec;
  CacheOptions cache;
};

class StageCaches : public ::testing::TestWithParam<Kind> {
 protected:
  static StageOptions OptionsOf(const Kind& kind) {
    StageOptions options = Options();
    options.cache = kind.cache;
    return options;
  }

  const std::shared_ptr<const ModelFile> model_ = OpenModel(GetParam().spec);
  const std::vector<uint32_t> cuts_ = {0, model_->n_layer() / 2, model_->n_layer()};
  Chain here_{model_, cuts_, OptionsOf(GetParam())}, there_{model_, cuts_, OptionsOf(GetParam())};
};

TEST_P(StageCaches, SequencesContinueInStagesThatTookThemOver) {
  ASSERT_TRUE(here_.Decode(Prompt(2, 0, 21)).ok());
  ASSERT_TRUE(here_.Decode(Prompt(0, 0, 40) + Prompt(2, 21, 1)).ok());
  const bool splits = here_.stage(0).SplitsCaches();
  // In parts while it grows, where supported; and into a slot that held another sequence.
  ASSERT_TRUE(there_.Decode(Prompt(2, 0, 11)).ok());
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(Copy(&here_.stage(i), &there_.stage(i), 2, 0, 7).ok());
    if (!splits) continue;
    ASSERT_TRUE(Copy(&here_.stage(i), &there_.stage(i), 0, 0, 9).ok());
  }
  ASSERT_TRUE(here_.Decode(Prompt(0, 40, 5)).ok());
  for (int i = 0; i < 2; ++i) {
    const auto status = Copy(&here_.stage(i), &there_.stage(i), 0, splits ? 40 : 0, 7);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(there_.stage(i).SlotStateOf(0).positions, 45u);
    EXPECT_EQ(there_.stage(i).SlotStateOf(2).positions, 22u);
  }
  for (int i = 0; i < 5; ++i) {
    const Rows rows = Prompt(0, 45 + i, 1) + Prompt(2, 22 + i, 1);
    const auto expected = here_.Decode(rows);
    const auto got = there_.Decode(rows);
    ASSERT_TRUE(expected.ok()) << expected.status();
    ASSERT_TRUE(got.ok()) << got.status();
    for (size_t row = 0; row < 2; ++row) {
      for (uint32_t k = 0; k < kVocab; ++k) {
        EXPECT_NEAR((*expected)[row][k], (*got)[row][k], 1e-2) << k;
      }
    }
  }
}

// Only the slot changes: the spare sequence is cleared after the read.
TEST_P(StageCaches, ReadingChangesNothing) {
  ASSERT_TRUE(here_.Decode(Prompt(1, 0, 30)).ok());
  ASSERT_TRUE(there_.Decode(Prompt(1, 0, 30)).ok());
  for (int i = 0; i < 2; ++i) {
    Stage& stage = here_.stage(i);
    const Stage::Held before = stage.SlotStateOf(1);
    ASSERT_TRUE(stage.ReadCache(1, 0, 9).ok());
    EXPECT_EQ(stage.ReadCache(1, 9, 5).ok(), stage.SplitsCaches());
    EXPECT_EQ(stage.SlotStateOf(1), before);
  }
  const auto expected = there_.Decode(Prompt(1, 30, 4));
  const auto got = here_.Decode(Prompt(1, 30, 4));
  ASSERT_TRUE(expected.ok() && got.ok());
  EXPECT_EQ(*expected, *got);
}

TEST_P(StageCaches, PartsThatDoNotFitAreRefusedAndTheSlotIsEmpty) {
  ASSERT_TRUE(here_.Decode(Prompt(0, 0, 20)).ok());
  Stage& stage = there_.stage(0);
  auto part = here_.stage(0).ReadCache(0, 0, 100);
  ASSERT_TRUE(part.ok()) << part.status();
  Stage::CachePart broken = *part;
  broken.bytes.resize(broken.bytes.size() / 2);
  EXPECT_EQ(stage.WriteCache(0, broken).code(), Code::kDataLoss);
  EXPECT_EQ(stage.SlotStateOf(0).positions, 0u);
  broken = *part;
  broken.end += 1;
  EXPECT_EQ(stage.WriteCache(0, broken).code(), Code::kDataLoss);
  broken = *part;
  broken.begin = 3;  // does not follow
  EXPECT_EQ(stage.WriteCache(0, broken).code(), Code::kInvalidArgument);
  broken.begin = 0;
  broken.end = 1000;  // beyond the context
  EXPECT_EQ(stage.WriteCache(0, broken).code(), Code::kInvalidArgument);
  EXPECT_EQ(stage.WriteCache(17, *part).code(), Code::kInvalidArgument);
  EXPECT_EQ(here_.stage(0).ReadCache(0, 20, 1).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(here_.stage(0).ReadCache(17, 0, 1).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(stage.WriteCache(0, *part), absl::OkStatus());
  EXPECT_EQ(stage.SlotStateOf(0).positions, 20u);
}

TEST_P(StageCaches, ANewVersionMarksEarlierReadsAsStale) {
  Stage& stage = here_.stage(0);
  const auto version = [&stage] { return stage.SlotStateOf(3).version; };
  ASSERT_TRUE(here_.Decode(Prompt(3, 0, 20)).ok());
  const uint64_t first = version();
  ASSERT_TRUE(here_.Decode(Prompt(3, 20, 3)).ok());
  EXPECT_EQ(version(), first);
  ASSERT_TRUE(here_.Apply(wire::KvEdit::DROP, 3).ok());
  EXPECT_NE(version(), first);
  const uint64_t dropped = version();
  ASSERT_TRUE(here_.Decode(Prompt(3, 0, 20)).ok());
  if (stage.facts().cache.trim) {
    ASSERT_TRUE(here_.Apply(wire::KvEdit::TRIM, 3, 18).ok());
    EXPECT_NE(version(), dropped);
  }
  const uint64_t trimmed = version();
  if (stage.facts().cache.copy) {
    ASSERT_TRUE(here_.Apply(wire::KvEdit::COPY, 3, 0, 0, 2).ok());
    EXPECT_NE(version(), trimmed);
  }
}

// A chain whose stages keep KV blocks below `folder`.
std::unique_ptr<Chain> StoringChain(const std::shared_ptr<const ModelFile>& model,
                                    const std::vector<uint32_t>& cuts, const StageOptions& options,
                                    const std::string& folder) {
  auto chain = std::make_unique<Chain>(model, cuts, options);
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    wire::KvIdentity identity;
    identity.mutable_about()->mutable_layers()->set_begin(cuts[i]);
    identity.mutable_about()->mutable_layers()->set_end(cuts[i + 1]);
    auto store = KvStore::Open({.folder = folder,
                                .identity = identity,
                                .bytes_max = 1 << 24,
                                .others_bytes_max = 1 << 24});
    EXPECT_TRUE(store.ok()) << store.status();
    chain->stage(i).SetKvStore(*std::move(store));
  }
  return chain;
}

wire::KvEdit BlockEdit(wire::KvEdit::Kind kind, int32_t slot, absl::Span<const KvName> names) {
  wire::KvEdit edit;
  edit.set_kind(kind);
  edit.set_slot(slot);
  edit.set_blocks(JoinKvNames(names));
  return edit;
}

TEST_P(StageCaches, StoredBlocksAreLoadedByLaterStages) {
  StageOptions options = OptionsOf(GetParam());
  options.n_ctx = 256;
  if (options.cache.kv_cells != 0) options.cache.kv_cells = 512;
  constexpr int32_t kLength = 2 * kKvBlockTokens;
  const std::string folder = testing::MakeTestFolder();
  const auto names_of = [&](int32_t token) {
    const std::vector<int32_t> tokens(kLength, token);
    return here_.stage(0).SplitsCaches() ? KvNamesOf("", tokens)
                                         : KvStateNamesOf("", tokens, {uint32_t{kLength}});
  };
  const std::vector<KvName> names = names_of(1);
  std::vector<std::string> caches;
  absl::StatusOr<Logits> expected;
  {
    const auto first = StoringChain(model_, cuts_, options, folder);
    for (int32_t at = 0; at < kLength; at += 64) {
      ASSERT_TRUE(first->Decode(Prompt(0, at, 64)).ok());
    }
    for (int i = 0; i < 2; ++i) {
      Stage& stage = first->stage(i);
      EXPECT_GT(stage.facts().kv_blocks_max, 10u);
      ASSERT_TRUE(stage.Apply(BlockEdit(wire::KvEdit::STORE, 0, names)).ok());
      EXPECT_TRUE(stage.TakeLostBlocks().empty());
      caches.push_back(stage.ReadCache(0, 0, kLength)->bytes);
      // Not all of them are there.
      ASSERT_TRUE(stage.Apply(BlockEdit(wire::KvEdit::STORE, 1, names)).ok());
      EXPECT_EQ(stage.TakeLostBlocks(), names);
    }
    expected = first->Decode(Prompt(0, kLength, 3));
    ASSERT_TRUE(expected.ok()) << expected.status();
  }
  const auto second = StoringChain(model_, cuts_, options, folder);
  ASSERT_TRUE(second->Decode(Prompt(3, 0, 20)).ok());  // it has the first cells
  for (int i = 0; i < 2; ++i) {
    Stage& stage = second->stage(i);
    EXPECT_EQ(stage.StoredBlocks().size(), names.size());
    ASSERT_EQ(stage.Apply(BlockEdit(wire::KvEdit::LOAD, 0, names)), absl::OkStatus());
    EXPECT_EQ(stage.SlotStateOf(0).positions, static_cast<uint32_t>(kLength));
    EXPECT_EQ(stage.ReadCache(0, 0, kLength)->bytes, caches[static_cast<size_t>(i)]);
  }
  const auto got = second->Decode(Prompt(0, kLength, 3));
  ASSERT_TRUE(got.ok()) << got.status();
  for (uint32_t k = 0; k < kVocab; ++k) EXPECT_NEAR((*expected)[0][k], (*got)[0][k], 1e-2) << k;

  Stage& stage = second->stage(0);
  const std::vector<KvName> missing = names_of(2);
  EXPECT_EQ(stage.Apply(BlockEdit(wire::KvEdit::LOAD, 0, missing)).code(), Code::kNotFound);
  EXPECT_EQ(stage.SlotStateOf(0).positions, static_cast<uint32_t>(kLength) + 3) << "unchanged";
  EXPECT_EQ(stage.TakeLostBlocks(), std::vector<KvName>{missing.back()});
  EXPECT_EQ(stage.Apply(BlockEdit(wire::KvEdit::LOAD, 0, {})).code(), Code::kInvalidArgument);
  const std::vector<KvName> too_many(100, names[0]);
  EXPECT_EQ(stage.Apply(BlockEdit(wire::KvEdit::LOAD, 0, too_many)).code(), Code::kInvalidArgument);
  ASSERT_TRUE(stage.Apply(BlockEdit(wire::KvEdit::FORGET, 0, names)).ok());
  EXPECT_EQ(stage.Apply(BlockEdit(wire::KvEdit::LOAD, 1, names)).code(), Code::kNotFound);
  EXPECT_TRUE(stage.StoredBlocks().empty());
}

// What stages have stored is joined for a stage with all of their layers, and split again.
TEST_P(StageCaches, StoredBlocksAreLoadedByStagesThatAreCutOtherwise) {
  StageOptions options = OptionsOf(GetParam());
  options.n_ctx = 256;
  if (options.cache.kv_cells != 0) options.cache.kv_cells = 512;
  constexpr uint32_t kLength = 2 * kKvBlockTokens;
  const std::string folder = testing::MakeTestFolder();
  const std::vector<KvName> names = KvNamesOf("", std::vector<int32_t>(kLength, 1));
  const auto bytes_of = [](Stage* stage) { return stage->ReadCache(0, 0, kLength)->bytes; };
  std::string caches[2];
  {
    const auto first = StoringChain(model_, cuts_, options, folder);
    for (uint32_t at = 0; at < kLength; at += 64) {
      ASSERT_TRUE(first->Decode(Prompt(0, static_cast<int32_t>(at), 64)).ok());
    }
    for (const size_t i : {0, 1}) {
      ASSERT_TRUE(first->stage(i).Apply(BlockEdit(wire::KvEdit::STORE, 0, names)).ok());
      caches[i] = bytes_of(&first->stage(i));
    }
  }
  const uint32_t n = cuts_.back();
  auto all = StoringChain(model_, {0, n}, options, folder);
  if (!all->stage(0).SplitsCaches()) {
    EXPECT_TRUE(all->stage(0).StoredBlocks().empty());
    return;
  }
  EXPECT_EQ(all->stage(0).StoredBlocks().size(), names.size());
  ASSERT_EQ(all->stage(0).Apply(BlockEdit(wire::KvEdit::LOAD, 0, names)), absl::OkStatus());
  const std::string joined = bytes_of(&all->stage(0));
  ClearKvFolders(folder, "");  // but for that of `all`
  all = nullptr;
  const auto last = StoringChain(model_, cuts_, options, folder);
  for (const size_t i : {0, 1}) {
    Stage& stage = last->stage(i);
    EXPECT_EQ(stage.StoredBlocks().size(), names.size());
    ASSERT_EQ(stage.Apply(BlockEdit(wire::KvEdit::LOAD, 0, names)), absl::OkStatus());
    EXPECT_TRUE(bytes_of(&stage) == caches[i]) << "other bytes";
    EXPECT_TRUE(*LayersOf(joined, n, {cuts_[i], cuts_[i + 1]}) ==
                *LayersOf(caches[i], cuts_[i + 1] - cuts_[i], {0, cuts_[i + 1] - cuts_[i]}));
  }
}

TEST_P(StageCaches, ASequenceThatGrowsIsCopiedFromItsBeginning) {
  StageOptions options = OptionsOf(GetParam());
  options.n_ctx = 256;
  if (options.cache.kv_cells != 0) options.cache.kv_cells = 512;
  const auto chain = StoringChain(model_, cuts_, options, testing::MakeTestFolder());
  Stage& stage = chain->stage(0);
  if (!stage.SplitsCaches()) return;  // its states do not need each other
  const std::vector<KvName> names =
      KvNamesOf("", std::vector<int32_t>(size_t{3} * kKvBlockTokens, 1));
  for (int32_t at = 0; at < 192; at += 64) ASSERT_TRUE(chain->Decode(Prompt(0, at, 64)).ok());
  wire::KvEdit first = BlockEdit(wire::KvEdit::STORE, 0, {names[0], names[1]});
  ASSERT_TRUE(stage.Apply(first).ok());
  wire::KvEdit next = BlockEdit(wire::KvEdit::STORE, 0, {names[2]});
  next.set_begin(2 * kKvBlockTokens);
  ASSERT_TRUE(stage.Apply(next).ok());
  EXPECT_EQ(stage.StoredBlocks(), (std::vector<KvName>{names[2], names[1], names[0]}))
      << "the least recently used first";
}

// Bit for bit: the cells of a sequence do not depend on other sequences.
TEST_P(StageCaches, ExactLogitsDoNotDependOnOtherSequences) {
  Kind kind = GetParam();
  kind.cache.exact = true;
  if (kind.cache.kv_cells != 0) {
    EXPECT_EQ(TryLoad(model_, {0, 1}, OptionsOf(kind)).status().code(), Code::kInvalidArgument);
    return;
  }
  Chain alone(model_, cuts_, OptionsOf(kind)), beside(model_, cuts_, OptionsOf(kind));
  const auto step = [&](const Rows& rows) {
    const auto expected = alone.Decode(rows);
    const auto got = beside.Decode(rows);
    ASSERT_TRUE(expected.ok() && got.ok()) << expected.status() << got.status();
    EXPECT_EQ(*expected, *got);
  };
  ASSERT_TRUE(beside.Decode(Prompt(0, 0, 50)).ok());
  ASSERT_TRUE(beside.Decode(Prompt(3, 0, 33)).ok());
  step(Prompt(2, 0, 32));
  ASSERT_TRUE(beside.Decode(Prompt(1, 0, 10)).ok());
  step(Prompt(2, 32, 11));
  for (int i = 0; i < 40; ++i) {
    step(Prompt(2, 43 + i, 1));
    ASSERT_TRUE(beside.Decode(Prompt(0, 50 + i, 1)).ok());
    if (i == 20) {
      ASSERT_TRUE(beside.Apply(wire::KvEdit::DROP, 3).ok());
    }
  }
  const Stage::Facts& facts = beside.stage(0).facts();
  if (!facts.cache.copy || !facts.cache.trim || facts.cache.window_tokens != 0) return;
  // Another sequence starts with this one's prefix.
  ASSERT_TRUE(beside.Apply(wire::KvEdit::COPY, 3, 0, 0, 2).ok());
  ASSERT_TRUE(beside.Apply(wire::KvEdit::TRIM, 3, 32).ok());
  ASSERT_TRUE(alone.Apply(wire::KvEdit::TRIM, 2, 32).ok());
  Rows rows = Prompt(2, 32, 20);
  const auto expected = alone.Decode(rows);
  for (Row& row : rows) row.slot = 3;
  const auto got = beside.Decode(rows);
  ASSERT_TRUE(expected.ok() && got.ok()) << expected.status() << got.status();
  EXPECT_EQ(*expected, *got);
}

INSTANTIATE_TEST_SUITE_P(
    , StageCaches,
    ::testing::Values(
        Kind{"Llama", Llama(), {}},
        Kind{"LlamaF32Flash", Llama(), {.type_k = "f32", .type_v = "f32", .flash_attention = "on"}},
        Kind{"LlamaWithoutFlash", Llama(), {.flash_attention = "off"}},
        Kind{"FewCells", Llama(), {.kv_cells = 256}}, Kind{"Windows", Windowed(), {}},
        Kind{"States", Mamba(), {}}, Kind{"CachesOfTheirOwn", TwoRanges(), {}}),
    [](const auto& kind) { return std::string(kind.param.name); });

TEST(StageCachesOfOne, ThatAreBeingShiftedAreReadAfterTheNextStep) {
  const auto model = OpenModel(Llama());
  Chain chain(model, {0, 6}, Options());
  ASSERT_TRUE(chain.Decode(Prompt(0, 0, 30)).ok());
  ASSERT_TRUE(chain.Apply(wire::KvEdit::SHIFT, 0, 12, -8).ok());
  EXPECT_EQ(chain.stage(0).ReadCache(0, 0, 100).status().code(), Code::kUnavailable);
  ASSERT_TRUE(chain.Decode(Prompt(0, 22, 1)).ok());
  EXPECT_TRUE(chain.stage(0).ReadCache(0, 0, 100).ok());
}

}  // namespace
}  // namespace strata
