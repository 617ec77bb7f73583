// States of sequences split by layers, against stages with exactly those layers.
#include "shard/engine/sequence_state.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "shard/engine/stage.h"
#include "tests/shard/engine/stage_chain.h"

namespace strata {
namespace {

using ::strata::testing::RandomModelSpec;
using Code = absl::StatusCode;

struct Kind {
  const char* name;
  CacheOptions cache;
};

std::string StateOf(Stage* stage, int32_t slot, uint32_t begin = 0, uint32_t n_max = 1000) {
  auto part = stage->ReadCache(slot, begin, n_max);
  EXPECT_TRUE(part.ok()) << part.status();
  return part.ok() ? std::move(part->bytes) : "";
}

std::string Cut(absl::string_view state, uint32_t n_layers, LayerRange layers) {
  auto cut = LayersOf(state, n_layers, layers);
  EXPECT_TRUE(cut.ok()) << cut.status();
  return cut.ok() ? *std::move(cut) : "";
}

class SequenceState : public ::testing::TestWithParam<Kind> {
 protected:
  static StageOptions OptionsOf(const Kind& kind) {
    StageOptions options = Options();
    options.cache = kind.cache;
    return options;
  }

  const std::shared_ptr<const ModelFile> model_ = OpenModel(Llama());
  Chain whole_{model_, {0, 6}, OptionsOf(GetParam())};
  Chain parts_{model_, {0, 1, 4, 6}, OptionsOf(GetParam())};
};

TEST_P(SequenceState, EqualThoseOfStagesWithTheseLayers) {
  for (Chain* chain : {&whole_, &parts_}) {
    ASSERT_TRUE(chain->Decode(Prompt(0, 0, 9) + Prompt(2, 0, 30)).ok());
    ASSERT_TRUE(chain->Decode(Prompt(2, 30, 1)).ok());
  }
  for (const uint32_t begin : {0, 7}) {
    const std::string all = StateOf(&whole_.stage(0), 2, begin, 20);
    std::vector<std::string> some;
    for (int i = 0; i < 3; ++i) some.push_back(StateOf(&parts_.stage(i), 2, begin, 20));
    EXPECT_EQ(Cut(all, 6, {0, 1}), some[0]);
    EXPECT_EQ(Cut(all, 6, {1, 4}), some[1]);
    EXPECT_EQ(Cut(all, 6, {4, 6}), some[2]);
    EXPECT_EQ(Cut(all, 6, {0, 6}), all);
    const auto joined = JoinLayers({some[0], some[1], some[2]});
    ASSERT_TRUE(joined.ok()) << joined.status();
    EXPECT_EQ(*joined, all);
  }
}

// From three stages into two of other ranges.
TEST_P(SequenceState, SequencesContinueInStagesOfOtherRanges) {
  ASSERT_TRUE(whole_.Decode(Prompt(1, 0, 40)).ok());
  ASSERT_TRUE(parts_.Decode(Prompt(1, 0, 40)).ok());
  Chain there(model_, {0, 3, 6}, OptionsOf(GetParam()));
  const auto state = [&](int i) { return StateOf(&parts_.stage(i), 1); };
  const std::string first = Cut(state(0), 1, {0, 1}), middle = state(1), last = state(2);
  const std::string begin = Cut(middle, 3, {0, 2}), rest = Cut(middle, 3, {2, 3});
  const auto lower = JoinLayers({first, begin});
  const auto upper = JoinLayers({rest, last});
  ASSERT_TRUE(lower.ok() && upper.ok()) << lower.status() << upper.status();
  ASSERT_TRUE(there.stage(0).WriteCache(1, {.begin = 0, .end = 40, .bytes = *lower}).ok());
  ASSERT_TRUE(there.stage(1).WriteCache(1, {.begin = 0, .end = 40, .bytes = *upper}).ok());
  for (int i = 0; i < 5; ++i) {
    const auto expected = whole_.Decode(Prompt(1, 40 + i, 1));
    const auto got = there.Decode(Prompt(1, 40 + i, 1));
    ASSERT_TRUE(expected.ok() && got.ok()) << expected.status() << got.status();
    for (uint32_t k = 0; k < kVocab; ++k) {
      EXPECT_NEAR((*expected)[0][k], (*got)[0][k], 1e-2) << k;
    }
  }
}

// Freed cells in between are reused, so that later positions stand before earlier ones.
TEST_P(SequenceState, AreSortedByPosition) {
  Chain used(model_, {0, 6}, OptionsOf(GetParam()));
  ASSERT_TRUE(used.Decode(Prompt(0, 0, 30)).ok());
  ASSERT_TRUE(used.Decode(Prompt(1, 0, 10)).ok());
  ASSERT_TRUE(used.Apply(wire::KvEdit::DROP, 0).ok());
  ASSERT_TRUE(whole_.Decode(Prompt(1, 0, 10)).ok());
  for (int i = 10; i < 100; i += 10) {
    ASSERT_TRUE(used.Decode(Prompt(1, i, 10)).ok());
    ASSERT_TRUE(whole_.Decode(Prompt(1, i, 10)).ok());
  }
  // The first layer's cache depends on the tokens alone.
  const std::string there = StateOf(&used.stage(0), 1), here = StateOf(&whole_.stage(0), 1);
  if (GetParam().cache.kv_cells != 0) {
    EXPECT_NE(there.substr(0, 1000), here.substr(0, 1000)) << "the positions rise without sorting";
  }
  EXPECT_EQ(Cut(there, 6, {0, 1}), Cut(here, 6, {0, 1}));
}

TEST_P(SequenceState, OfInvalidStatesAreRefused) {
  ASSERT_TRUE(whole_.Decode(Prompt(0, 0, 12)).ok());
  const std::string state = StateOf(&whole_.stage(0), 0);
  const auto refused = [](const absl::StatusOr<std::string>& cut) { return cut.status().code(); };
  EXPECT_EQ(refused(LayersOf(state, 5, {0, 1})), Code::kUnimplemented);
  EXPECT_EQ(refused(LayersOf(state, 6, {3, 3})), Code::kUnimplemented);
  EXPECT_EQ(refused(LayersOf(state, 6, {3, 7})), Code::kUnimplemented);
  EXPECT_EQ(refused(LayersOf("", 6, {0, 1})), Code::kUnimplemented);
  EXPECT_EQ(refused(LayersOf(state + "x", 6, {0, 1})), Code::kUnimplemented);
  EXPECT_EQ(refused(LayersOf(state.substr(0, state.size() - 1), 6, {0, 1})), Code::kUnimplemented);
  EXPECT_EQ(refused(JoinLayers({})), Code::kInvalidArgument);
  EXPECT_EQ(refused(JoinLayers({state, "x"})), Code::kInvalidArgument);
  const std::string shorter = StateOf(&whole_.stage(0), 0, 0, 11);
  const std::string other = StateOf(&whole_.stage(0), 0, 1, 11);
  EXPECT_EQ(refused(JoinLayers({state, shorter})), Code::kInvalidArgument);
  EXPECT_EQ(refused(JoinLayers({shorter, other})), Code::kInvalidArgument);
  // LayersOf() never gives positions that do not rise.
  std::string turned = state;
  constexpr size_t kCells = 16, kCell = 12;
  turned[kCells] = state[kCells + kCell];
  turned[kCells + kCell] = state[kCells];
  EXPECT_EQ(refused(JoinLayers({turned})), Code::kInvalidArgument);
  EXPECT_EQ(Cut(turned, 6, {0, 6}).size(), state.size());
}

TEST_P(SequenceState, PositionsAreThoseOfAPart) {
  ASSERT_TRUE(whole_.Decode(Prompt(1, 0, 30)).ok());
  const std::string state = StateOf(&whole_.stage(0), 1);
  std::vector<std::string> parts;
  for (const auto [begin, end] : {std::pair(0, 7), std::pair(7, 8), std::pair(8, 30)}) {
    auto part = PositionsOf(state, begin, end);
    ASSERT_TRUE(part.ok()) << part.status();
    EXPECT_LT(part->size(), state.size());
    parts.push_back(*std::move(part));
  }
  const auto joined = JoinPositions({parts[0], parts[1], parts[2]});
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_EQ(*joined, Cut(state, 6, {0, 6}));
  // Layers and positions may be taken in either order.
  const auto some = PositionsOf(Cut(state, 6, {2, 5}), 7, 8);
  ASSERT_TRUE(some.ok()) << some.status();
  EXPECT_EQ(*some, Cut(parts[1], 6, {2, 5}));
}

TEST_P(SequenceState, PositionsThatAreMissingOrDoNotRiseAreRefused) {
  ASSERT_TRUE(whole_.Decode(Prompt(1, 0, 12)).ok());
  const std::string state = StateOf(&whole_.stage(0), 1);
  EXPECT_EQ(PositionsOf(state, 12, 20).status().code(), Code::kUnimplemented);
  EXPECT_EQ(PositionsOf(state, 3, 3).status().code(), Code::kUnimplemented);
  EXPECT_EQ(PositionsOf(state, 3, 13).status().code(), Code::kUnimplemented);
  EXPECT_EQ(PositionsOf("x", 0, 1).status().code(), Code::kUnimplemented);
  const auto blocks = BlocksOf(state, 2, 3, 3);
  ASSERT_TRUE(blocks.ok()) << blocks.status();
  ASSERT_EQ(blocks->size(), 3u);
  for (uint32_t i = 0; i < 3; ++i)
    EXPECT_EQ((*blocks)[i], *PositionsOf(state, 2 + 3 * i, 5 + 3 * i));
  EXPECT_EQ(BlocksOf(state, 4, 3, 3).status().code(), Code::kUnimplemented) << "one is missing";
  EXPECT_EQ(BlocksOf("x", 0, 1, 1).status().code(), Code::kUnimplemented);
  const auto low = PositionsOf(state, 0, 5), high = PositionsOf(state, 5, 12);
  ASSERT_TRUE(low.ok() && high.ok());
  const auto refused = [](const absl::StatusOr<std::string>& joined) {
    return joined.status().code();
  };
  EXPECT_EQ(refused(JoinPositions({*high, *low})), Code::kInvalidArgument);
  EXPECT_EQ(refused(JoinPositions({*low, *low})), Code::kInvalidArgument);
  EXPECT_EQ(refused(JoinPositions({*low, Cut(*high, 6, {0, 5})})), Code::kInvalidArgument);
  EXPECT_EQ(refused(JoinPositions({*low, "x"})), Code::kInvalidArgument);
  EXPECT_EQ(refused(JoinPositions({})), Code::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(
    , SequenceState,
    ::testing::Values(Kind{"Llama", {}},
                      Kind{"F32Flash", {.type_k = "f32", .type_v = "f32", .flash_attention = "on"}},
                      Kind{"ValuesInColumns", {.flash_attention = "off"}},
                      Kind{"FewCells", {.flash_attention = "off", .kv_cells = 128}}),
    [](const auto& kind) { return std::string(kind.param.name); });

TEST(SequenceStatesOfOthers, CannotBeTakenApart) {
  for (const RandomModelSpec& spec : {Windowed(), Mamba()}) {
    Chain chain(OpenModel(spec), {0, static_cast<uint32_t>(spec.n_layer)}, Options());
    ASSERT_TRUE(chain.Decode(Prompt(0, 0, 9)).ok());
    const auto n_layers = static_cast<uint32_t>(spec.n_layer);
    EXPECT_EQ(LayersOf(StateOf(&chain.stage(0), 0), n_layers, {0, 1}).status().code(),
              Code::kUnimplemented);
  }
}

}  // namespace
}  // namespace strata
