// The golden rule, for every row of the table of architectures: chained stages give the logits of
// the whole model, bit for bit or within the row's tolerance, whatever the cut.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "shard/device/engine.h"
#include "shard/engine/stage.h"
#include "shard/model/architecture.h"
#include "shard/model/model_file.h"
#include "shard/model/slice.h"
#include "tests/support/model_zoo.h"
#include "tests/support/stage_chain.h"
#include "tests/support/temp_folder.h"
#include "tests/support/whole_model.h"

namespace strata {
namespace {

using testing::BatchRow;
using testing::DecodeThrough;
using testing::ModelZoo;
using testing::WholeModel;
using testing::WholeModelOptions;
using testing::ZooModel;

constexpr uint32_t kCtx = 128;
constexpr uint32_t kSlots = 4;
constexpr uint32_t kBatchRows = 64;
// A model with more places to cut than this, one of the deep ones whose block count matters, is cut
// at four of them, in all combinations. Each of the others is tried as the only one, with the
// script's first events, unless a large vocabulary makes loading slow.
constexpr size_t kCutPointsMax = 11;
constexpr size_t kBriefEvents = 2;
constexpr int32_t kBriefVocabularyMax = 1000;

// One thing that happens to the sequences: a batch, or an edit of the KV cache.
struct Event {
  std::string what;
  std::vector<BatchRow> rows;  // a batch, if not empty
  wire::KvEdit edit;
};

Event Batch(std::string what, std::vector<BatchRow> rows) {
  return {std::move(what), std::move(rows), {}};
}

Event Edit(std::string what, wire::KvEdit::Kind kind, int32_t slot) {
  Event event = {std::move(what), {}, {}};
  event.edit.set_kind(kind);
  event.edit.set_slot(slot);
  event.edit.set_end(-1);
  return event;
}

// Consecutive rows of one slot; the last one needs logits.
std::vector<BatchRow> SlotRows(int32_t slot, int32_t begin, int32_t n, int32_t n_vocab) {
  std::vector<BatchRow> rows;
  for (int32_t i = begin; i < begin + n; ++i) {
    rows.push_back({(37 * i + 11 + 5 * slot) % n_vocab, i, slot, i == begin + n - 1});
  }
  return rows;
}

std::vector<BatchRow> Together(std::initializer_list<std::vector<BatchRow>> parts) {
  std::vector<BatchRow> rows;
  for (const auto& part : parts) rows.insert(rows.end(), part.begin(), part.end());
  return rows;
}

// A prompt, decodes, several sequences in a batch, and every edit that the cache supports.
std::vector<Event> Script(const CacheAbility& ability, bool has_window, int32_t v) {
  std::vector<Event> script;
  script.push_back(Batch("prompt of 41", SlotRows(0, 0, 41, v)));
  for (int32_t i = 41; i < 49; ++i) script.push_back(Batch("decode", SlotRows(0, i, 1, v)));
  script.push_back(
      Batch("prompt chunk + decode + prompt chunk",
            Together({SlotRows(1, 0, 17, v), SlotRows(0, 49, 1, v), SlotRows(2, 0, 9, v)})));
  for (int32_t i = 0; i < 2; ++i) {
    script.push_back(
        Batch("decodes of 3", Together({SlotRows(0, 50 + i, 1, v), SlotRows(1, 17 + i, 1, v),
                                        SlotRows(2, 9 + i, 1, v)})));
  }
  script.push_back(Edit("drop", wire::KvEdit::DROP, 1));
  script.push_back(Batch("after drop", Together({SlotRows(1, 0, 5, v), SlotRows(0, 52, 1, v)})));
  int32_t next = 53;  // position of slot 0
  if (ability.copy) {
    script.push_back(Edit("copy", wire::KvEdit::COPY, 3));
    script.back().edit.set_from_slot(0);
    for (; next < 55; ++next) {
      script.push_back(
          Batch("after copy", Together({SlotRows(0, next, 1, v), SlotRows(3, next, 1, v)})));
    }
  }
  // Slots with others between them: stages exchange their streams after some steps.
  int32_t far = next;  // position of slot 3
  if (!ability.copy) {
    script.push_back(Batch("prompt of the last slot", SlotRows(3, 0, 21, v)));
    far = 21;
  }
  for (int i = 0; i < 8; ++i, ++next, ++far) {
    script.push_back(Batch("decodes of distant slots",
                           Together({SlotRows(0, next, 1, v), SlotRows(3, far, 1, v)})));
  }
  script.push_back(Batch("between them", Together({SlotRows(2, 11, 2, v), SlotRows(1, 5, 1, v)})));
  if (ability.trim) {
    // Into a window that is still cached.
    const int32_t begin = has_window ? next - 3 : 30;
    script.push_back(Edit("trim", wire::KvEdit::TRIM, 0));
    script.back().edit.set_begin(begin);
    script.push_back(Batch("after trim", SlotRows(0, begin, 3, v)));
    next = begin + 3;
  }
  if (ability.shift && !has_window) {
    script.push_back(Edit("shift", wire::KvEdit::SHIFT, 0));
    script.back().edit.set_begin(12);
    script.back().edit.set_delta(-8);
    next -= 8;
    script.push_back(Batch("after shift", SlotRows(0, next, 2, v)));
  }
  return script;
}

void ApplyTo(WholeModel& whole, const wire::KvEdit& edit) {
  switch (edit.kind()) {
    case wire::KvEdit::DROP:
      return whole.Drop(edit.slot());
    case wire::KvEdit::TRIM:
      return whole.Trim(edit.slot(), edit.begin());
    case wire::KvEdit::COPY:
      return whole.Copy(edit.slot(), edit.from_slot());
    case wire::KvEdit::SHIFT:
      return whole.Shift(edit.slot(), edit.begin(), edit.delta());
    default:
      FAIL() << "unknown edit";
  }
}

struct Plan {
  std::vector<uint32_t> cuts;  // where each stage begins, and the model's end
  bool is_brief = false;
};

std::vector<Plan> PlansOf(const CutRule& rule, uint32_t n_layer, bool tries_all) {
  std::vector<uint32_t> points = rule.cut_points;
  if (points.size() > kCutPointsMax) {
    points = {points.front(), points[points.size() / 2 - 1], points[points.size() / 2],
              points.back()};
  }
  const std::set<uint32_t> forbidden(rule.forbidden_sizes.begin(), rule.forbidden_sizes.end());
  std::vector<Plan> plans;
  auto add = [&](Plan plan) {
    for (size_t i = 0; i + 1 < plan.cuts.size(); ++i) {
      if (forbidden.contains(plan.cuts[i + 1] - plan.cuts[i])) return;
    }
    plans.push_back(std::move(plan));
  };
  for (size_t i = 0; i < points.size(); ++i) {
    add({{0, points[i], n_layer}});
    for (size_t j = i + 1; j < points.size(); ++j) add({{0, points[i], points[j], n_layer}});
  }
  if (!tries_all) return plans;
  for (const uint32_t cut : rule.cut_points) {
    if (std::find(points.begin(), points.end(), cut) != points.end()) continue;
    add({.cuts = {0, cut, n_layer}, .is_brief = true});
  }
  return plans;
}

// Stages of one model, loaded once however many plans they are part of.
class Stages {
 public:
  explicit Stages(std::shared_ptr<const ModelFile> model) : model_(std::move(model)) {}

  absl::StatusOr<Stage*> Get(LayerRange layers) {
    std::unique_ptr<Stage>& stage = stages_[{layers.begin, layers.end}];
    if (stage == nullptr) {
      absl::StatusOr<Slice> slice = Slice::Make(model_, layers, {});
      if (!slice.ok()) return slice.status();
      StageOptions options;
      options.n_ctx = kCtx;
      options.n_seq_max = kSlots;
      options.n_batch = kBatchRows;
      options.use_mmap = false;
      absl::StatusOr<std::unique_ptr<Stage>> loaded = Stage::Load(*slice, options, nullptr);
      if (!loaded.ok()) return loaded.status();
      stage = *std::move(loaded);
    }
    return stage.get();
  }

 private:
  std::shared_ptr<const ModelFile> model_;
  std::map<std::pair<uint32_t, uint32_t>, std::unique_ptr<Stage>> stages_;
};

class Chain {
 public:
  static absl::StatusOr<Chain> Make(const std::vector<uint32_t>& cuts, Stages& stages) {
    Chain chain;
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      absl::StatusOr<Stage*> stage = stages.Get({cuts[i], cuts[i + 1]});
      if (!stage.ok()) return stage.status();
      chain.stages_.push_back(*stage);
    }
    for (uint32_t slot = 0; slot < kSlots; ++slot) {  // left by other plans
      if (absl::Status s = chain.Apply(Edit("", wire::KvEdit::DROP, slot).edit); !s.ok()) return s;
    }
    return chain;
  }

  absl::Status Apply(const wire::KvEdit& edit) {
    absl::Status status;
    for (Stage* stage : stages_) status.Update(stage->Apply(edit));
    return status;
  }

  absl::StatusOr<std::vector<float>> Decode(const std::vector<BatchRow>& rows) {
    return DecodeThrough(stages_, rows);
  }

  bool CanRewind() const {
    return std::ranges::all_of(stages_,
                               [](const Stage* stage) { return stage->facts().cache.rewind; });
  }
  // Three wrong drafts in the place of the row, each in a step of its own, and a REWIND.
  absl::Status DraftWrong(BatchRow row, int32_t n_vocab) {
    wire::KvEdit rewind = Edit("", wire::KvEdit::REWIND, row.slot).edit;
    rewind.set_begin(row.position);
    row.wants_logits = true;
    for (int i = 0; i < 3; ++i, ++row.position) {
      row.token = (row.token + 1) % n_vocab;
      if (auto logits = Decode({row}); !logits.ok()) return logits.status();
    }
    return Apply(rewind);
  }

 private:
  std::vector<Stage*> stages_;
};

double LargestOf(const std::vector<float>& values) {
  double largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(double{value}));
  return largest;
}

class ExactnessTest : public ::testing::TestWithParam<ZooModel> {};

TEST_P(ExactnessTest, ChainedStagesGiveTheLogitsOfTheWholeModel) {
  StartEngine();
  absl::StatusOr<std::string> path =
      WriteRandomModel(testing::SpecOf(GetParam()), testing::ProcessTempFolder());
  ASSERT_TRUE(path.ok()) << path.status();
  absl::StatusOr<std::shared_ptr<const ModelFile>> file = ModelFile::Open(*path);
  ASSERT_TRUE(file.ok()) << file.status();
  const GgufHeader& header = (*file)->header();
  absl::StatusOr<CutRule> rule = CutRuleFor(header, /*unverified=*/false);
  ASSERT_TRUE(rule.ok()) << rule.status();
  ASSERT_NE(rule->exactness, Exactness::kRefused) << rule->reason;

  WholeModelOptions options = {.n_ctx = kCtx, .n_seq_max = kSlots, .n_batch = kBatchRows};
  absl::StatusOr<std::unique_ptr<WholeModel>> whole = WholeModel::Open(*path, options);
  ASSERT_TRUE(whole.ok()) << whole.status();
  const bool has_window = llama_model_n_swa((*whole)->model()) > 0;
  const std::vector<Event> script =
      Script(CacheAbilityFor(header), has_window, static_cast<int32_t>(96));
  std::vector<std::vector<float>> wanted;
  double largest = 0;
  for (const Event& event : script) {
    wanted.emplace_back();
    // Slots that are computed together have adjacent streams there; stages exchange theirs.
    const auto slot_there = [](int32_t slot) { return (slot + 1) % static_cast<int32_t>(kSlots); };
    if (event.rows.empty()) {
      wire::KvEdit edit = event.edit;
      edit.set_slot(slot_there(edit.slot()));
      edit.set_from_slot(slot_there(edit.from_slot()));
      ApplyTo(**whole, edit);
      continue;
    }
    std::vector<BatchRow> rows = event.rows;
    for (BatchRow& row : rows) row.slot = slot_there(row.slot);
    absl::StatusOr<std::vector<float>> logits = (*whole)->Decode(rows);
    ASSERT_TRUE(logits.ok()) << event.what << ": " << logits.status();
    wanted.back() = *std::move(logits);
    largest = std::max(largest, LargestOf(wanted.back()));
  }
  ASSERT_GT(largest, 0.1);  // else any logits would match

  Stages stages(*file);
  double worst = 0;
  int n_drafted = 0;
  const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab((*whole)->model()));
  const std::vector<Plan> plans =
      PlansOf(*rule, (*file)->n_layer(), n_vocab <= kBriefVocabularyMax);
  ASSERT_FALSE(plans.empty());
  for (size_t n = 0; n < plans.size(); ++n) {
    const Plan& plan = plans[n];
    SCOPED_TRACE(absl::StrCat("cut at ", absl::StrJoin(plan.cuts, " ")));
    absl::StatusOr<Chain> chain = Chain::Make(plan.cuts, stages);
    ASSERT_TRUE(chain.ok()) << chain.status();
    const size_t n_events = plan.is_brief ? kBriefEvents : script.size();
    for (size_t i = 0; i < n_events; ++i) {
      SCOPED_TRACE(script[i].what);
      if (script[i].rows.empty()) {
        const absl::Status status = chain->Apply(script[i].edit);
        ASSERT_TRUE(status.ok()) << status;
        continue;
      }
      // Every second plan computes drafts meanwhile, where its caches can forget them.
      if (n % 2 == 1 && chain->CanRewind() && script[i].rows[0].position > 0) {
        const absl::Status status = chain->DraftWrong(script[i].rows[0], n_vocab);
        ASSERT_TRUE(status.ok()) << status;
        ++n_drafted;
      }
      absl::StatusOr<std::vector<float>> logits = chain->Decode(script[i].rows);
      ASSERT_TRUE(logits.ok()) << logits.status();
      ASSERT_EQ(logits->size(), wanted[i].size());
      double difference = 0;
      for (size_t k = 0; k < logits->size(); ++k) {
        difference = std::max(difference, std::abs(double{(*logits)[k]} - double{wanted[i][k]}));
      }
      worst = std::max(worst, difference / largest);
      if (rule->exactness == Exactness::kExact) {
        ASSERT_EQ(std::memcmp(logits->data(), wanted[i].data(), logits->size() * sizeof(float)), 0)
            << "largest difference " << difference << " of " << largest;
      } else {
        ASSERT_LE(difference / largest, rule->tolerance);
      }
    }
  }
  // A tolerance is a measured value.
  if (rule->exactness == Exactness::kTolerance) {
    EXPECT_GE(worst * 3, rule->tolerance) << worst;
  }
  EXPECT_EQ(n_drafted > 0, plans.size() > 1 && CacheAbilityFor(header).trim && !has_window);
  std::printf("%-20s %2u layers, %3zu plans from cuts %s: %s\n", GetParam().name.c_str(),
              (*file)->n_layer(), plans.size(),
              rule->cut_points.size() > kCutPointsMax
                  ? "(some)"
                  : absl::StrJoin(rule->cut_points, " ").c_str(),
              worst == 0 ? "exact" : absl::StrCat("within ", worst).c_str());
}

INSTANTIATE_TEST_SUITE_P(Zoo, ExactnessTest, ::testing::ValuesIn(ModelZoo()),
                         [](const auto& info) { return info.param.name; });

TEST(ModelZooTest, ProvesEveryRowThatMayBeCut) {
  std::set<std::string> proved;
  for (const ZooModel& model : ModelZoo()) proved.insert(model.architecture);
  for (const std::string& name : KnownArchitectures()) {
    GgufHeader header;
    header.Set("general.architecture", GgufValue::String(name));
    header.Set(name + ".block_count", GgufValue::U32(8));
    absl::StatusOr<CutRule> rule = CutRuleFor(header, /*unverified=*/false);
    ASSERT_TRUE(rule.ok()) << rule.status();
    EXPECT_EQ(proved.contains(name), rule->exactness != Exactness::kRefused) << name;
  }
  EXPECT_GE(proved.size(), 30u);
}

TEST(ModelZooTest, ProvesEveryRowThatMayHaveLayersForMultiTokenPrediction) {
  std::set<std::string> proved;
  for (const ZooModel& model : ModelZoo()) {
    if (absl::StrContains(model.metadata, "nextn_predict_layers")) {
      proved.insert(model.architecture);
    }
  }
  for (const std::string& name : KnownArchitectures()) {
    GgufHeader header;
    header.Set("general.architecture", GgufValue::String(name));
    header.Set(name + ".block_count", GgufValue::U32(9));
    header.Set(name + ".nextn_predict_layers", GgufValue::U32(1));
    absl::StatusOr<CutRule> rule = CutRuleFor(header, /*unverified=*/false);
    ASSERT_TRUE(rule.ok()) << rule.status();
    EXPECT_EQ(proved.contains(name), rule->exactness != Exactness::kRefused) << name;
  }
}

}  // namespace
}  // namespace strata
