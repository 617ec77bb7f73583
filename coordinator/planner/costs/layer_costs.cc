#include "coordinator/planner/costs/layer_costs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/planner/costs/cut.h"
#include "ggml.h"
#include "shard/model/architecture.h"
#include "shard/model/cache_options.h"

namespace strata {
namespace {

// As shard/engine/stage.cc: the last stage keeps logits of so many bytes at most.
constexpr uint64_t kLogitsBytesMax = 64ull << 20;
// A worker's own code, its links and their buffers.
constexpr uint64_t kWorkerBytes = 48ull << 20;
// libllama pads the cache of windowed layers to a multiple.

class Reader {
 public:
  Reader(const GgufHeader& header, std::string architecture)
      : header_(header), architecture_(std::move(architecture)) {}

  uint64_t Get(absl::string_view suffix, uint64_t otherwise) const {
    return header_.GetInteger(absl::StrCat(architecture_, ".", suffix)).value_or(otherwise);
  }
  uint64_t GetOfLayer(absl::string_view suffix, uint32_t layer, uint64_t otherwise) const {
    return header_.GetIntegerOfLayer(absl::StrCat(architecture_, ".", suffix), layer)
        .value_or(otherwise);
  }

 private:
  const GgufHeader& header_;
  const std::string architecture_;
};

uint64_t Saturated(double bytes) {
  return bytes < static_cast<double>(kBytesOfLayerMax) ? static_cast<uint64_t>(bytes)
                                                       : kBytesOfLayerMax;
}

void Add(uint32_t type, uint64_t bytes, std::vector<TypedBytes>* to) {
  for (TypedBytes& each : *to) {
    if (each.type == type) {
      each.bytes += bytes;
      return;
    }
  }
  to->push_back({type, bytes});
}

// The memory of a layer, from its tensors.
struct Kinds {
  bool has_attention = false;
  bool has_state = false;
};

void CountTensor(const GgufTensor& tensor, absl::string_view name, LayerCost* layer, Kinds* kinds) {
  ++layer->n_ops;
  if (tensor.n_dims >= 3 && absl::StrContains(name, "_exps")) {
    Add(tensor.type, tensor.bytes, &layer->experts);
    layer->n_expert = std::max(layer->n_expert,
                               static_cast<uint32_t>(std::min<uint64_t>(tensor.dims[2], 1 << 20)));
  } else {
    Add(tensor.type, tensor.bytes, &layer->dense);
  }
  // A hybrid's state may be fed by attn_qkv too, but never by keys of their own.
  kinds->has_attention |= absl::StartsWith(name, "attn_k");
  kinds->has_state |= absl::StartsWith(name, "ssm_") || absl::StartsWith(name, "shortconv.") ||
                      absl::StartsWith(name, "time_mix_");
}

// The state of one sequence in one recurrent layer: the last inputs of the convolution and the
// state itself, f32, for each of the kinds that libllama knows (Mamba and gated delta nets; RWKV;
// short convolutions; Kimi's delta attention). Those that do not apply are 0.
uint64_t StateBytes(const Reader& reader, uint64_t n_embd, uint64_t n_head) {
  const auto get = [&](absl::string_view key) { return static_cast<double>(reader.Get(key, 0)); };
  const auto rows = static_cast<double>(n_embd), heads = static_cast<double>(n_head);
  const double inner = get("ssm.inner_size"), state = get("ssm.state_size");
  const double before = std::max(get("ssm.conv_kernel") - 1, 0.0);
  const double delta_head = get("kda.head_dim"), wkv_head = get("wkv.head_size");
  double floats = state * inner + before * (inner + 2 * get("ssm.group_count") * state);
  floats = std::max(floats, heads * delta_head * (delta_head + 3 * before));
  if (wkv_head > 0) floats = std::max(floats, rows * (wkv_head + 2));
  floats = std::max(floats, rows * (get("shortconv.l_cache") - 1));
  return Saturated(floats * sizeof(float));
}

// Marks the layers that see only a window, as a slice's metadata say it: AdjustMetadata writes the
// list there for every architecture that has such a pattern. Models that may not be cut, and those
// whose window the file does not state, keep every position in every layer.
void MarkWindows(const GgufHeader& header, const LayerCostsOptions& options, LayerCosts* costs) {
  const Reader reader(header, costs->architecture);
  const auto window = static_cast<uint32_t>(
      std::min<uint64_t>(reader.Get("attention.sliding_window", 0), UINT32_MAX));
  const absl::StatusOr<CutRule> rule = CutRuleFor(header, options.unverified);
  if (window == 0 || !rule.ok()) return;
  GgufHeader bare = header;  // without the vocabulary: it is copied
  std::erase_if(bare.metadata, [](const auto& entry) {
    return absl::StartsWith(entry.first, "tokenizer.") && entry.second.bytes.size() > 4096;
  });
  bare.tensors.clear();
  const std::string key = absl::StrCat(costs->architecture, ".attention.sliding_window_pattern");
  const uint32_t n_layer = costs->n_layer();
  for (const uint32_t cut : rule->cut_points) {
    std::vector<uint32_t> marked;
    bool known = true;
    for (const LayerRange range : {LayerRange{0, cut}, LayerRange{cut, n_layer}}) {
      GgufHeader slice = bare;
      known = known && AdjustMetadata(bare, range, options.unverified, &slice).ok();
      const GgufValue* list = slice.Find(key);
      known =
          known && list != nullptr && list->type == GgufType::kArray && list->count == range.size();
      for (uint32_t i = 0; known && i < range.size(); ++i) {
        if (slice.GetIntegerOfLayer(key, i).value_or(0) != 0) marked.push_back(range.begin + i);
      }
    }
    if (!known) continue;  // a forbidden size, say
    for (const uint32_t layer : marked) costs->layers[layer].window = window;
    return;
  }
}

// Shape and type of the smallest stand-in for a vocabulary matrix, as shard/model/slice.cc makes
// it.
uint64_t PlaceholderBytes(const GgufTensor& tensor) {
  for (const ggml_type type : {GGML_TYPE_IQ1_S, GGML_TYPE_Q4_0, GGML_TYPE_F16}) {
    const auto bytes = GgufTensorBytes(type, tensor.dims);
    if (bytes.has_value() && *bytes < tensor.bytes) return *bytes;
  }
  return tensor.bytes;
}

uint64_t LogitsBytes(const LayerCosts& costs, const CacheShape& shape) {
  const uint64_t row = uint64_t{costs.n_vocab} * sizeof(float);
  return std::min(shape.n_batch * row, std::max(shape.n_seqs * row, kLogitsBytesMax));
}

void CountEnds(const GgufHeader& header, const LayerBytes& bytes, LayerCosts* costs) {
  costs->first_bytes = bytes.first;
  costs->last_bytes = bytes.last;
  const GgufTensor* embedding = header.FindTensor("token_embd.weight");
  const GgufTensor* output = header.FindTensor("output.weight");
  if (embedding != nullptr) costs->embedding_bytes = embedding->bytes;
  if (embedding != nullptr && output == nullptr) costs->tied_bytes = embedding->bytes;
  if (embedding != nullptr && output != nullptr) {
    costs->last_placeholder_bytes = PlaceholderBytes(*embedding);
  }
  if (output != nullptr) costs->first_placeholder_bytes = PlaceholderBytes(*output);
  const GgufTensor* head = output != nullptr ? output : embedding;
  if (head == nullptr) return;
  costs->head.push_back({head->type, head->bytes});
  costs->n_vocab = static_cast<uint32_t>(std::min<uint64_t>(head->dims[1], 1u << 30));
}

}  // namespace

std::string TypeName(uint32_t type) {
  return BitsPerWeight(type) == 0 ? "" : ggml_type_name(static_cast<ggml_type>(type));
}

double BitsPerWeight(uint32_t type) {
  constexpr uint64_t kWeights = 1024;  // a multiple of every block
  const auto bytes = GgufTensorBytes(type, {kWeights, 1, 1, 1});
  return bytes.has_value() ? 8.0 * static_cast<double>(*bytes) / kWeights : 0;
}

double LayerCost::ExpertsTouched(double rows) const {
  if (n_expert == 0) return 0;
  const double n = n_expert, k = n_expert_used;
  return n * (1 - std::pow(1 - k / n, rows));
}

uint64_t LayerCost::ExpertBytes() const {
  uint64_t bytes = 0;
  for (const TypedBytes& each : experts) bytes += each.bytes;
  return bytes;
}

uint64_t LayerCosts::EndBytes(bool is_first, bool is_last) const {
  if (is_first && is_last) return first_bytes + last_bytes - tied_bytes;
  if (is_first) return first_bytes + first_placeholder_bytes;
  if (is_last) return last_bytes + last_placeholder_bytes;
  return 0;
}

uint64_t LayerCosts::WeightBytes(LayerRange range) const {
  uint64_t bytes = EndBytes(range.begin == 0, range.end == n_layer());
  for (uint32_t i = range.begin; i < range.end; ++i) bytes += layers[i].weight_bytes;
  return bytes;
}

absl::StatusOr<LayerCosts> CountLayerCosts(const GgufHeader& header,
                                           const LayerCostsOptions& options) {
  LayerCosts costs;
  costs.architecture = header.GetString("general.architecture").value_or("");
  const Reader reader(header, costs.architecture);
  constexpr uint64_t kWidthMax = 1 << 24;
  const uint64_t n_layer = reader.Get("block_count", 0);
  const uint64_t n_embd = reader.Get("embedding_length", 0);
  if (costs.architecture.empty() || n_layer == 0 || n_layer > kModelLayersMax || n_embd == 0 ||
      n_embd > kWidthMax) {
    return absl::InvalidArgumentError(
        "the model does not say its architecture, block count or embedding length");
  }
  const absl::StatusOr<uint32_t> type_k = CacheType("type_k", options.type_k);
  if (!type_k.ok()) return type_k.status();
  const absl::StatusOr<uint32_t> type_v = CacheType("type_v", options.type_v);
  if (!type_v.ok()) return type_v.status();
  costs.kv_type = *type_k;
  costs.n_embd = static_cast<uint32_t>(n_embd);

  const LayerBytes bytes = CountLayerBytes(header);
  costs.layers.resize(n_layer);
  std::vector<Kinds> kinds(n_layer);
  for (const GgufTensor& tensor : header.tensors) {
    absl::string_view rest;
    const std::optional<uint32_t> layer = LayerOfTensor(tensor.name, &rest);
    if (!layer.has_value() || *layer >= n_layer) continue;
    CountTensor(tensor, rest, &costs.layers[*layer], &kinds[*layer]);
  }
  CountEnds(header, bytes, &costs);

  const uint64_t n_predict = reader.Get("nextn_predict_layers", 0);
  for (uint32_t i = 0; i < n_layer; ++i) {
    LayerCost& layer = costs.layers[i];
    layer.weight_bytes = bytes.layers[i];
    if (n_predict < n_layer && i >= n_layer - n_predict) {  // loaded, never run
      layer.dense.clear();
      layer.experts.clear();
      layer.n_ops = 0;
      continue;
    }
    const uint64_t used = reader.GetOfLayer("expert_used_count", i, layer.n_expert);
    layer.n_expert_used = static_cast<uint32_t>(std::min<uint64_t>(used, layer.n_expert));
    if (layer.n_expert_used == 0) layer.n_expert_used = layer.n_expert;

    const uint64_t n_head = std::min(reader.GetOfLayer("attention.head_count", i, 0), kWidthMax);
    const uint64_t n_head_kv =
        std::min(reader.GetOfLayer("attention.head_count_kv", i, n_head), kWidthMax);
    const uint64_t width = n_head == 0 ? 0 : n_embd / n_head;
    const uint64_t width_k = std::min(reader.Get("attention.key_length", width), kWidthMax);
    const uint64_t width_v = std::min(reader.Get("attention.value_length", width), kWidthMax);
    costs.n_head = std::max(costs.n_head, static_cast<uint32_t>(n_head));
    // Multi-head latent attention keeps one compressed row, counted as the keys, and no values.
    const bool is_latent = reader.Get("attention.key_length_mla", 0) > 0 &&
                           reader.Get("attention.value_length_mla", 0) > 0;
    const uint64_t cached_v = is_latent ? 0 : width_v;
    if (kinds[i].has_attention || !kinds[i].has_state) {
      layer.kv_bytes_per_position =
          static_cast<uint64_t>(std::ceil(static_cast<double>(n_head_kv) *
                                          (static_cast<double>(width_k) * BitsPerWeight(*type_k) +
                                           static_cast<double>(cached_v) * BitsPerWeight(*type_v)) /
                                          8));
      if (n_head_kv > 0) {
        layer.kv_sharing = static_cast<uint32_t>(std::max<uint64_t>(1, n_head / n_head_kv));
      }
    }
    if (kinds[i].has_state) layer.state_bytes = StateBytes(reader, n_embd, n_head);

    uint64_t n_ff = std::min(reader.GetOfLayer("feed_forward_length", i, 0), kWidthMax);
    const uint64_t expert_ff =
        std::min(reader.GetOfLayer("expert_feed_forward_length", i, layer.n_expert > 0 ? n_ff : 0),
                 kWidthMax);
    n_ff = std::max(n_ff, expert_ff * layer.n_expert_used);
    costs.n_ff = std::max(costs.n_ff, static_cast<uint32_t>(std::min<uint64_t>(n_ff, 1 << 30)));
    // A norm, a product, an addition, a rotation: about as many again as matrices and norms, and
    // the operations that choose experts and combine their results.
    layer.n_ops = 2 * layer.n_ops + 6 + (layer.n_expert > 0 ? 10 + layer.n_expert_used : 0);
  }
  MarkWindows(header, options, &costs);
  return costs;
}

uint64_t CacheBytes(const LayerCost& layer, const CacheShape& shape) {
  // One cache for all sequences, or `n_caches`; a windowed one holds each sequence's window, and
  // the batch's rows.
  const bool shared = shape.shares_cells();
  const uint64_t n_caches = shared ? 1 : shape.n_seqs;
  uint64_t positions = shared ? shape.cells() : shape.n_ctx;
  if (layer.window > 0) {
    const uint64_t windows = uint64_t{layer.window} * (shared ? shape.n_seqs : 1);
    positions = std::min(positions, windows + shape.n_batch);
  }
  positions = n_caches * GgufPad(positions, kCachePadPositions);
  // A checkpoint is one sequence's window or state.
  const uint64_t saved = uint64_t{shape.n_checkpoints} * std::min(layer.window, shape.n_ctx);
  return Saturated(static_cast<double>(positions + saved) *
                       static_cast<double>(layer.kv_bytes_per_position) +
                   static_cast<double>(shape.n_seqs + shape.n_checkpoints) *
                       static_cast<double>(layer.state_bytes));
}

MachineBytes MachineBytesOf(const LayerCosts& costs, const CacheShape& shape, LayerRange layers) {
  const bool is_first = layers.begin == 0, is_last = layers.end == costs.n_layer();
  MachineBytes bytes;
  // Where the head is the embedding, the device has a copy of it, at whichever end.
  if (costs.tied_bytes == 0 && is_first) bytes.weights = costs.embedding_bytes;
  if (costs.tied_bytes == 0 && is_last && !is_first) bytes.weights = costs.last_placeholder_bytes;
  if (is_last) bytes.compute = LogitsBytes(costs, shape);
  return bytes;
}

uint64_t ComputeBytes(const LayerCosts& costs, const CacheShape& shape, bool is_last) {
  const uint64_t rows = shape.n_batch;
  const uint64_t positions = shape.shares_cells() ? shape.cells() : shape.n_ctx;
  // Input, residual, norm and output of a block beside the rows of a feed-forward block: gate, up
  // and their product.
  uint64_t bytes = rows * sizeof(float) * (6 * uint64_t{costs.n_embd} + 3 * uint64_t{costs.n_ff});
  bytes += rows * positions * (sizeof(float) + sizeof(uint16_t));  // the mask, f32 and f16
  // Otherwise each head's scores are stored, before and after softmax.
  if (!shape.flash_attention) bytes += 2 * rows * positions * costs.n_head * sizeof(float);
  // Logits are in the graph and in the buffer that is handed over.
  if (is_last) bytes += 2 * LogitsBytes(costs, shape);
  return bytes + kWorkerBytes;
}

uint64_t StageBytes(const LayerCosts& costs, const CacheShape& shape, LayerRange layers,
                    bool has_own_memory) {
  uint64_t bytes = costs.WeightBytes(layers) +
                   ComputeBytes(costs, shape, /*is_last=*/layers.end == costs.n_layer());
  for (uint32_t layer = layers.begin; layer < layers.end; ++layer) {
    bytes += CacheBytes(costs.layers[layer], shape);
  }
  if (has_own_memory) bytes -= MachineBytesOf(costs, shape, layers).all();
  return bytes;
}

}  // namespace strata
