#include "shard/model/architecture.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "shard/model/architecture_table.h"

namespace strata {
namespace {

// The input of every rule.
struct Model {
  std::string architecture;
  uint32_t n_layer = 0;  // all, with those for multi-token prediction
  uint32_t n_trunk = 0;  // without the layers for multi-token prediction

  std::string Key(absl::string_view suffix) const {
    return absl::StrCat(architecture, ".", suffix);
  }
};

absl::StatusOr<Model> ReadModel(const GgufHeader& header) {
  Model model;
  const std::optional<std::string> architecture = header.GetString("general.architecture");
  if (!architecture.has_value() || architecture->empty()) {
    return absl::InvalidArgumentError("the model does not say its architecture");
  }
  model.architecture = *architecture;
  const std::optional<uint64_t> n_layer = header.GetInteger(model.Key("block_count"));
  if (!n_layer.has_value() || *n_layer == 0 || *n_layer > kModelLayersMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model has no usable ", model.Key("block_count")));
  }
  model.n_layer = static_cast<uint32_t>(*n_layer);
  const uint64_t n_predict = header.GetInteger(model.Key("nextn_predict_layers")).value_or(0);
  if (n_predict >= model.n_layer) {
    return absl::InvalidArgumentError(absl::StrCat(model.Key("nextn_predict_layers"), " is ",
                                                   n_predict, " of ", model.n_layer, " layers"));
  }
  model.n_trunk = model.n_layer - static_cast<uint32_t>(n_predict);
  return model;
}

// The period of properties that the graph derives from a layer's number in the model.
uint32_t StepOf(const ArchitectureRow& row, const Model& model, const GgufHeader& header) {
  uint64_t step = row.step;
  if (!row.step_key.empty()) {
    const uint64_t value = header.GetInteger(model.Key(row.step_key)).value_or(1);
    if (value > 1) step = std::lcm(step, std::min<uint64_t>(value, kModelLayersMax));
  }
  return static_cast<uint32_t>(std::min<uint64_t>(step, kModelLayersMax * kModelLayersMax));
}

// Keys (after the architecture's name) whose arrays have an element for each layer.
constexpr std::array<absl::string_view, 16> kPerLayerKeys = {
    "attention.compress_ratios",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.indexer.types",
    "attention.recurrent_layers",
    "attention.rope_pattern",
    "attention.sliding_window_pattern",
    "deepstack_mapping",
    "expert_feed_forward_length",
    "expert_used_count",
    "feed_forward_length",
    "swiglu_clamp_exp",
    "swiglu_clamp_shexp",
    "rope.dimension_count_per_layer",
    "attention.key_length_per_layer",
    "attention.value_length_per_layer",
};

// The same, for keys without the architecture's name.
constexpr std::array<absl::string_view, 4> kPerLayerGlobalKeys = {"xielu.alpha_n", "xielu.alpha_p",
                                                                  "xielu.beta", "xielu.eps"};

// Arrays of another length, which stay as they are.
constexpr std::array<absl::string_view, 3> kOtherArrayKeys = {
    "classifier.output_labels", "rope.dimension_sections", "rope.section_order"};

template <size_t N>
bool Contains(const std::array<absl::string_view, N>& keys, absl::string_view key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

// Elements [begin, end) of an array of fixed-size elements.
GgufValue CutArray(const GgufValue& array, LayerRange layers) {
  const size_t element_bytes = array.bytes.size() / array.count;
  GgufValue cut = array;
  cut.count = layers.size();
  cut.bytes = array.bytes.substr(layers.begin * element_bytes, layers.size() * element_bytes);
  return cut;
}

GgufValue U32Array(const std::vector<uint32_t>& values) {
  GgufValue array;
  array.type = GgufType::kArray;
  array.element_type = GgufType::kU32;
  array.count = values.size();
  array.bytes.resize(values.size() * sizeof(uint32_t));
  std::memcpy(array.bytes.data(), values.data(), array.bytes.size());
  return array;
}

absl::Status CutPerLayerArrays(const Model& model, LayerRange layers, GgufHeader* slice) {
  const std::string prefix = absl::StrCat(model.architecture, ".");
  for (auto& [key, value] : slice->metadata) {
    if (value.type != GgufType::kArray) continue;
    bool per_layer = Contains(kPerLayerGlobalKeys, key);
    if (absl::StartsWith(key, prefix)) {
      const absl::string_view suffix = absl::string_view(key).substr(prefix.size());
      per_layer = Contains(kPerLayerKeys, suffix);
      // Guessing wrong would give each stage the settings of other layers.
      if (!per_layer && !Contains(kOtherArrayKeys, suffix) && value.count >= model.n_trunk) {
        return absl::FailedPreconditionError(
            absl::StrCat(key, " may hold a value for each layer, which is not known how to cut"));
      }
    }
    if (!per_layer) continue;
    if (value.element_type == GgufType::kString || value.count < layers.end ||
        value.bytes.size() % value.count != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          key, " has ", value.count, " values for a model of ", model.n_layer, " layers"));
    }
    value = CutArray(value, layers);
  }
  return absl::OkStatus();
}

// libllama derives the size of a head from the first layer's count, and a hybrid's first layer may
// have no heads in the slice although it has in the model.
void KeepFirstHeadCount(const GgufHeader& whole, const Model& model, GgufHeader* slice) {
  const std::string key = model.Key("attention.head_count");
  const GgufValue* value = slice->Find(key);
  if (value == nullptr || value->type != GgufType::kArray) return;
  const uint64_t in_model = whole.GetIntegerOfLayer(key, 0).value_or(0);
  if (in_model == 0 || slice->GetIntegerOfLayer(key, 0).value_or(1) != 0) return;
  std::vector<uint32_t> counts(value->count);
  for (uint32_t i = 0; i < counts.size(); ++i) {
    counts[i] = static_cast<uint32_t>(slice->GetIntegerOfLayer(key, i).value_or(0));
  }
  counts[0] = static_cast<uint32_t>(in_model);
  slice->Set(key, U32Array(counts));
}

// A count of layers at the model's beginning, as the slice sees it.
void CutLeadingCount(const Model& model, absl::string_view suffix, LayerRange layers,
                     GgufHeader* slice) {
  const std::string key = model.Key(suffix);
  const std::optional<uint64_t> count = slice->GetInteger(key);
  if (!count.has_value()) return;
  const uint64_t left = *count > layers.begin ? *count - layers.begin : 0;
  slice->Set(key, GgufValue::U32(static_cast<uint32_t>(std::min<uint64_t>(left, layers.size()))));
}

bool ElementIsSet(const GgufValue& array, uint64_t index) {
  const size_t element_bytes = array.bytes.size() / array.count;
  for (size_t i = 0; i < element_bytes; ++i) {
    if (array.bytes[index * element_bytes + i] != 0) return true;
  }
  return false;
}

// The file's list under `key`, or nullopt when it has none of the right length.
std::optional<std::vector<bool>> ListedLayers(const Model& model, const GgufHeader& header,
                                              absl::string_view key) {
  const GgufValue* list = header.Find(model.Key(key));
  if (list == nullptr || list->type != GgufType::kArray || list->count < model.n_trunk ||
      list->count == 0 || list->bytes.size() < list->count) {
    return std::nullopt;
  }
  std::vector<bool> layers(model.n_layer);
  for (uint32_t layer = 0; layer < model.n_trunk; ++layer)
    layers[layer] = ElementIsSet(*list, layer);
  return layers;
}

// Which layers see only a window; all false when the architecture has no such pattern.
std::vector<bool> WindowedLayers(const ArchitectureRow& row, const Model& model,
                                 const GgufHeader& header) {
  constexpr absl::string_view kKey = "attention.sliding_window_pattern";
  if (row.window.period == 0) return std::vector<bool>(model.n_layer);
  if (auto listed = ListedLayers(model, header, kKey)) return *listed;
  const uint64_t period = header.GetInteger(model.Key(kKey)).value_or(row.window.period);
  std::vector<bool> layers(model.n_layer);
  for (uint32_t layer = 0; layer < model.n_trunk; ++layer) {
    const uint64_t full_place = row.window.full_first ? 0 : period - 1;
    layers[layer] = period == 0 || layer % period != full_place;
  }
  return layers;
}

// Which layers of a hybrid have attention, and which a recurrent state; all have both where the
// file makes no difference.
struct HybridLayers {
  std::vector<bool> attention;
  std::vector<bool> recurrent;
};

HybridLayers LayersOfHybrid(const ArchitectureRow& row, const Model& model,
                            const GgufHeader& header) {
  HybridLayers layers = {std::vector<bool>(model.n_layer, true),
                         std::vector<bool>(model.n_layer, true)};
  const auto listed = ListedLayers(model, header, "attention.recurrent_layers");
  const uint64_t interval =
      header.GetInteger(model.Key("full_attention_interval")).value_or(row.attention_interval);
  for (uint32_t layer = 0; layer < model.n_trunk; ++layer) {
    if (row.attention_interval > 0) {
      layers.recurrent[layer] =
          listed ? (*listed)[layer] : interval != 0 && (layer + 1) % interval != 0;
      layers.attention[layer] = !layers.recurrent[layer];
    } else if (row.kv_heads_mark_attention) {
      auto of_layer = [&](absl::string_view key) {
        return header.GetIntegerOfLayer(model.Key(key), layer).value_or(0);
      };
      layers.attention[layer] = of_layer("attention.head_count_kv") != 0;
      layers.recurrent[layer] = !layers.attention[layer] && !(row.some_layers_are_feed_forward &&
                                                              of_layer("feed_forward_length") != 0);
    }
  }
  return layers;
}

GgufValue ListOf(const std::vector<bool>& marks, LayerRange layers) {
  std::vector<uint32_t> list;
  for (uint32_t layer = layers.begin; layer < layers.end; ++layer) list.push_back(marks[layer]);
  return U32Array(list);
}

using Marks = std::vector<bool>;

bool AnyMarked(const Marks& marks, uint32_t begin, uint32_t end) {
  return std::find(marks.begin() + begin, marks.begin() + end, true) != marks.begin() + end;
}

// libllama aborts on a model with windows when no layer has one. Keeps the most cuts with which
// every stage has a windowed layer, preferring cuts before a windowed layer.
void KeepWindows(const Marks& windowed, uint32_t n_trunk, std::vector<uint32_t>* cuts) {
  std::vector<uint32_t> kept;
  uint32_t end = n_trunk;
  for (auto cut = cuts->rbegin(); cut != cuts->rend(); ++cut) {
    if (!AnyMarked(windowed, *cut, end)) continue;
    kept.push_back(*cut);
    end = *cut;
  }
  if (!kept.empty() && !AnyMarked(windowed, 0, kept.back())) kept.pop_back();
  std::reverse(kept.begin(), kept.end());
  *cuts = std::move(kept);
}

// libllama aborts on a hybrid whose layers are all of one kind (and refuses such a Gemma 4). Keeps
// the most cuts with which every stage has both kinds, preferring cuts that follow attention.
void KeepBothKinds(const HybridLayers& layers, uint32_t n_trunk, std::vector<uint32_t>* cuts) {
  auto has_both = [&](uint32_t begin, uint32_t end) {
    return AnyMarked(layers.attention, begin, end) && AnyMarked(layers.recurrent, begin, end);
  };
  std::vector<uint32_t> kept;
  uint32_t begin = 0;
  for (const uint32_t cut : *cuts) {
    if (!has_both(begin, cut)) continue;
    kept.push_back(cut);
    begin = cut;
  }
  if (!kept.empty() && !has_both(kept.back(), n_trunk)) kept.pop_back();
  *cuts = std::move(kept);
}

// Whether any layer sees only a window: some files say 0.
bool HasWindow(const ArchitectureRow& row, const Model& model, const GgufHeader& header) {
  return row.window.period > 0 && header.GetInteger(model.Key("attention.sliding_window"))
                                          .value_or(row.window.if_stated ? 0 : 1) != 0;
}

CutRule RuleOf(const ArchitectureRow& row, const Model& model, const GgufHeader& header) {
  CutRule rule;
  rule.architecture = model.architecture;
  rule.exactness = row.exactness;
  rule.tolerance = row.tolerance;
  rule.reason = std::string(row.reason);
  if (rule.exactness != Exactness::kRefused) {
    const uint32_t step = StepOf(row, model, header);
    for (uint64_t cut = step; cut < model.n_trunk; cut += step) {
      rule.cut_points.push_back(static_cast<uint32_t>(cut));
    }
    if (row.refine != nullptr) row.refine(header, model.n_trunk, &rule);
    if (model.n_trunk < model.n_layer && !row.may_predict) {
      rule.exactness = Exactness::kRefused;
      rule.reason = "not tried with layers for multi-token prediction (nextn_predict_layers)";
    }
    if (HasWindow(row, model, header)) {
      const Marks windowed = WindowedLayers(row, model, header);
      Marks full = windowed;
      full.flip();
      if (row.window.needs_full) {
        KeepBothKinds({full, windowed}, model.n_trunk, &rule.cut_points);
      } else {
        KeepWindows(windowed, model.n_trunk, &rule.cut_points);
      }
    }
    KeepBothKinds(LayersOfHybrid(row, model, header), model.n_trunk, &rule.cut_points);
  }
  if (rule.exactness == Exactness::kRefused) {
    rule.cut_points.clear();
    rule.forbidden_sizes.clear();
    rule.tolerance = 0;
  }
  return rule;
}

absl::Status CheckRange(const CutRule& rule, const Model& model, LayerRange layers) {
  if (layers.begin >= layers.end || layers.end > model.n_layer) {
    return absl::InvalidArgumentError(absl::StrCat("layers [", layers.begin, ", ", layers.end,
                                                   ") of a model of ", model.n_layer));
  }
  for (const uint32_t place : {layers.begin, layers.end}) {
    if (place == 0 || place == model.n_layer) continue;
    if (std::find(rule.cut_points.begin(), rule.cut_points.end(), place) == rule.cut_points.end()) {
      return absl::FailedPreconditionError(absl::StrCat(
          rule.architecture, " may not be cut before layer ", place,
          ", only before: ", rule.cut_points.empty() ? "none" : absl::StrJoin(rule.cut_points, " "),
          rule.reason.empty() ? "" : "; ", rule.reason));
    }
  }
  const bool whole = layers.begin == 0 && layers.end == model.n_layer;
  const uint32_t trunk = std::min(layers.end, model.n_trunk) - layers.begin;
  if (!whole && std::find(rule.forbidden_sizes.begin(), rule.forbidden_sizes.end(), trunk) !=
                    rule.forbidden_sizes.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat(rule.architecture, " may not be cut into a stage of ", trunk, " layers",
                     rule.reason.empty() ? "" : "; ", rule.reason));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CutRule> CutRuleFor(const GgufHeader& header, bool unverified) {
  absl::StatusOr<Model> model = ReadModel(header);
  if (!model.ok()) return model.status();
  const ArchitectureRow* row = FindArchitecture(model->architecture);
  if (row != nullptr) return RuleOf(*row, *model, header);
  if (!unverified) {
    return absl::UnimplementedError(absl::StrCat(
        "it is not known how to cut the architecture \"", model->architecture,
        "\"; it can run whole on one device, or be cut without proof with --unverified"));
  }
  ArchitectureRow anywhere;
  anywhere.may_predict = true;
  anywhere.exactness = Exactness::kTolerance;
  anywhere.reason =
      "unverified: nobody has compared a cut model of this architecture with a whole one";
  return RuleOf(anywhere, *model, header);
}

absl::Status AdjustMetadata(const GgufHeader& whole, LayerRange layers, bool unverified,
                            GgufHeader* slice) {
  absl::StatusOr<Model> model = ReadModel(whole);
  if (!model.ok()) return model.status();
  if (layers.begin == 0 && layers.end == model->n_layer) return absl::OkStatus();
  absl::StatusOr<CutRule> rule = CutRuleFor(whole, unverified);
  if (!rule.ok()) return rule.status();
  if (absl::Status allowed = CheckRange(*rule, *model, layers); !allowed.ok()) return allowed;

  if (absl::Status cut = CutPerLayerArrays(*model, layers, slice); !cut.ok()) return cut;
  KeepFirstHeadCount(whole, *model, slice);
  CutLeadingCount(*model, "leading_dense_block_count", layers, slice);
  slice->Set(model->Key("block_count"), GgufValue::U32(layers.size()));
  if (layers.end <= model->n_trunk && slice->Find(model->Key("nextn_predict_layers")) != nullptr) {
    slice->Set(model->Key("nextn_predict_layers"), GgufValue::U32(0));
  }
  const ArchitectureRow* row = FindArchitecture(model->architecture);
  if (row == nullptr) return absl::OkStatus();
  if (row->window.period > 0) {
    slice->Set(model->Key("attention.sliding_window_pattern"),
               ListOf(WindowedLayers(*row, *model, whole), layers));
  }
  if (row->attention_interval > 0) {
    HybridLayers hybrid = LayersOfHybrid(*row, *model, whole);
    std::fill(hybrid.recurrent.begin() + model->n_trunk, hybrid.recurrent.end(), false);
    slice->Set(model->Key("attention.recurrent_layers"), ListOf(hybrid.recurrent, layers));
  }
  if (row->scales_input && layers.begin > 0) {
    slice->Set(model->Key("embedding_scale"), GgufValue::F32(1));
  }
  if (row->adjust != nullptr) row->adjust(whole, layers, slice);
  return absl::OkStatus();
}

std::string InputTensor(const GgufHeader& whole, LayerRange layers) {
  if (layers.begin == 0) return "";
  const ArchitectureRow* row =
      FindArchitecture(whole.GetString("general.architecture").value_or(""));
  return row == nullptr ? "" : std::string(row->input_tensor);
}

std::string OutputTensor(const GgufHeader& whole, LayerRange layers) {
  const ArchitectureRow* row =
      FindArchitecture(whole.GetString("general.architecture").value_or(""));
  const std::string name(row == nullptr ? ArchitectureRow().output_tensor : row->output_tensor);
  return absl::EndsWith(name, "-") ? absl::StrCat(name, layers.size() - 1) : name;
}

CacheAbility CacheAbilityFor(const GgufHeader& header) {
  const absl::StatusOr<Model> model = ReadModel(header);
  const ArchitectureRow* row = model.ok() ? FindArchitecture(model->architecture) : nullptr;
  if (row == nullptr) return {.trim = false, .copy = false, .shift = false};
  // The cache of windowed layers reuses only cells of one sequence: cells of a copy would stay in
  // it, and leave no room for another slot's batch.
  const bool has_window = HasWindow(*row, *model, header);
  switch (row->memory) {
    case Memory::kAttention:
      // Positions of several axes cannot be added to (libllama aborts), nor those of windows.
      return {.copy = !has_window,
              .shift = header.Find(model->Key("rope.dimension_sections")) == nullptr && !has_window,
              .checkpoint = has_window};
    case Memory::kUnshiftable:
      return {.shift = false};
    case Memory::kRecurrent:
      return {.trim = false, .shift = false, .checkpoint = true};
  }
  return {};
}

std::vector<std::string> KnownArchitectures() {
  std::vector<std::string> names;
  for (const ArchitectureRow& row : ArchitectureTable()) names.emplace_back(row.name);
  return names;
}

}  // namespace strata
