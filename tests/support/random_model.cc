#include "tests/support/random_model.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "ggml-backend.h"
#include "ggml.h"
#include "gguf.h"
#include "llama.h"

namespace strata::testing {
namespace {

using GgufContext = std::unique_ptr<gguf_context, decltype(&gguf_free)>;
using GgmlContext = std::unique_ptr<ggml_context, decltype(&ggml_free)>;

template <typename... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};

void SetMetadata(gguf_context* gguf, const std::string& key, const MetadataValue& value) {
  const char* k = key.c_str();
  std::visit(Overloaded{
                 [&](uint32_t v) { gguf_set_val_u32(gguf, k, v); },
                 [&](float v) { gguf_set_val_f32(gguf, k, v); },
                 [&](bool v) { gguf_set_val_bool(gguf, k, v); },
                 [&](const std::string& v) { gguf_set_val_str(gguf, k, v.c_str()); },
                 [&](const std::vector<uint32_t>& v) {
                   gguf_set_arr_data(gguf, k, GGUF_TYPE_UINT32, v.data(), v.size());
                 },
                 [&](const std::vector<float>& v) {
                   gguf_set_arr_data(gguf, k, GGUF_TYPE_FLOAT32, v.data(), v.size());
                 },
                 [&](const std::vector<std::string>& v) {
                   std::vector<const char*> strings;
                   for (const std::string& s : v) strings.push_back(s.c_str());
                   gguf_set_arr_str(gguf, k, strings.data(), strings.size());
                 },
             },
             value);
}

constexpr absl::string_view kPredictLayers = "nextn_predict_layers";

// All but the layers for multi-token prediction: libllama cannot say which tensors those have
// unless it has a file.
GgufContext Metadata(const RandomModelSpec& spec) {
  GgufContext gguf(gguf_init_empty(), &gguf_free);
  const std::string& arch = spec.architecture;
  SetMetadata(gguf.get(), "general.architecture", arch);
  SetMetadata(gguf.get(), "general.name", spec.name);
  const std::vector<std::pair<std::string, MetadataValue>> common = {
      {"block_count", spec.n_layer},
      {"vocab_size", spec.n_vocab},
      {"context_length", 512u},
      {"embedding_length", 64u},
      {"feed_forward_length", 96u},
      {"attention.head_count", 4u},
      {"attention.head_count_kv", 2u},
      {"attention.layer_norm_rms_epsilon", 1e-5f},
      {"attention.layer_norm_epsilon", 1e-5f},
  };
  for (const auto& [key, value] : common) SetMetadata(gguf.get(), arch + "." + key, value);
  SetMetadata(gguf.get(), "tokenizer.ggml.model", std::string("none"));
  for (const auto& [key, value] : spec.metadata) {
    if (key == kPredictLayers) continue;
    SetMetadata(gguf.get(), key[0] == '.' ? key.substr(1) : arch + "." + key, value);
  }
  return gguf;
}

struct TensorShape {
  std::string name;
  int n_dims;
  int64_t ne[GGML_MAX_DIMS];
};

void RecordShape(ggml_tensor* tensor, void* user_data) {
  auto* shapes = static_cast<std::vector<TensorShape>*>(user_data);
  // libllama asks for a tied output a second time, under the embedding's name.
  for (const TensorShape& shape : *shapes) {
    if (shape.name == tensor->name) return;
  }
  TensorShape shape = {tensor->name, ggml_n_dims(tensor), {}};
  std::memcpy(shape.ne, tensor->ne, sizeof(shape.ne));
  shapes->push_back(shape);
}

// The range of values with which a tensor of this name works: norms near one, decays below zero,
// matrices scaled by their rows so that activations neither vanish nor grow.
struct Distribution {
  double mean;
  double deviation;
};

Distribution DistributionOf(const TensorShape& tensor) {
  const std::string& name = tensor.name;
  if (absl::StrContains(name, "rope_f")) return {2.0, 0.3};
  if (absl::StrContains(name, "ssm_a")) return {-1.0, 0.2};
  if (absl::StrContains(name, "norm") && absl::EndsWith(name, ".weight")) return {1.0, 0.2};
  if (absl::StrContains(name, "scale") || absl::StrContains(name, "ssm_d")) return {1.0, 0.2};
  if (absl::EndsWith(name, ".bias") || tensor.n_dims == 1) return {0.0, 0.3};
  if (absl::StartsWith(name, "token_embd.")) return {0.0, 0.5};
  return {0.0, 1.3 / std::sqrt(static_cast<double>(tensor.ne[0]))};
}

// FNV-1a, so that a tensor's values depend on its name and the seed only.
uint64_t Hash(absl::string_view text, uint64_t seed) {
  uint64_t hash = 14695981039346656037u ^ (seed * 0x9E3779B97F4A7C15u);
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

std::vector<float> Values(const TensorShape& tensor, uint64_t seed) {
  std::mt19937_64 random(Hash(tensor.name, seed));
  const Distribution d = DistributionOf(tensor);
  std::vector<float> values(tensor.ne[0] * tensor.ne[1] * tensor.ne[2] * tensor.ne[3]);
  for (float& value : values) {
    // Sum of uniforms: the same on every standard library, unlike std::normal_distribution.
    double sum = 0;
    for (int i = 0; i < 4; ++i) sum += static_cast<double>(random() >> 11) * 0x1.0p-53 - 0.5;
    value = static_cast<float>(d.mean + d.deviation * sum * std::sqrt(3.0));
  }
  return values;
}

ggml_type TypeOf(const TensorShape& tensor, ggml_type wanted) {
  const bool is_matrix =
      tensor.n_dims >= 2 && absl::EndsWith(tensor.name, ".weight") &&
      !absl::StrContains(tensor.name, "norm") && !absl::StrContains(tensor.name, "conv") &&
      !absl::StrContains(tensor.name, "ffn_gate_inp") && !absl::StrContains(tensor.name, "ssm_") &&
      !absl::StrContains(tensor.name, "time_mix");
  return is_matrix && tensor.ne[0] % ggml_blck_size(wanted) == 0 ? wanted : GGML_TYPE_F32;
}

bool Excluded(const RandomModelSpec& spec, absl::string_view name) {
  for (const std::string& part : spec.without) {
    if (absl::StrContains(name, part)) return true;
  }
  // Scales of tensors in formats that carry them beside the blocks.
  return absl::EndsWith(name, ".scale") || absl::EndsWith(name, ".input_scale");
}

// The tensors that libllama asks for when it builds a model from this metadata.
absl::StatusOr<std::vector<TensorShape>> Shapes(const RandomModelSpec& spec, gguf_context* gguf) {
  std::vector<TensorShape> shapes;
  llama_model_params params = llama_model_default_params();
  ggml_backend_dev_t no_devices[] = {nullptr};
  params.devices = no_devices;
  params.use_extra_bufts = false;  // repacked tensors have another shape
  llama_model* model = llama_model_init_from_user(gguf, &RecordShape, &shapes, params);
  if (model == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("libllama refuses the metadata of ", spec.name));
  }
  llama_model_free(model);
  return shapes;
}

uint32_t PredictLayers(const RandomModelSpec& spec) {
  for (const auto& [key, value] : spec.metadata) {
    if (key == kPredictLayers) return std::get<uint32_t>(value);
  }
  return 0;
}

// The tensors of a layer for multi-token prediction in architectures where it is not like the
// model's last layer.
struct PredictLayerKind {
  absl::string_view architecture;
  std::vector<uint32_t> like_layers;  // it has the tensors of these
  absl::string_view norm = "";        // and this one
};

const std::vector<PredictLayerKind>& PredictLayerKinds() {
  static const auto& kinds = *new std::vector<PredictLayerKind>{
      {"bailingmoe2", {}, "layer_output_norm"},
      {"exaone-moe", {0}},
      {"nemotron_h_moe", {1, 2}, "post_attention_norm"},
  };
  return kinds;
}

// Makes `layer` one for multi-token prediction: it has besides its own tensors what joins the last
// token with the trunk's output, and a head.
void MakePredictLayer(absl::string_view architecture, uint32_t layer,
                      std::vector<TensorShape>* shapes) {
  const std::string prefix = absl::StrCat("blk.", layer, ".");
  int64_t n_embd = 0;
  int64_t n_vocab = 0;
  for (const TensorShape& shape : *shapes) {
    if (shape.name != "token_embd.weight") continue;
    n_embd = shape.ne[0];
    n_vocab = shape.ne[1];
  }
  const auto add = [&](absl::string_view name, int64_t columns, int64_t rows) {
    shapes->push_back(
        {absl::StrCat(prefix, name, ".weight"), rows == 1 ? 1 : 2, {columns, rows, 1, 1}});
  };
  for (const PredictLayerKind& kind : PredictLayerKinds()) {
    if (kind.architecture != architecture) continue;
    if (!kind.norm.empty()) add(kind.norm, n_embd, 1);
    if (kind.like_layers.empty()) continue;
    std::erase_if(*shapes, [&](const TensorShape& shape) {
      return absl::StartsWith(shape.name, prefix) &&
             (kind.norm.empty() || !absl::StrContains(shape.name, kind.norm));
    });
    std::set<std::string> names;
    for (const uint32_t like : kind.like_layers) {
      const std::string from = absl::StrCat("blk.", like, ".");
      for (size_t i = 0, n = shapes->size(); i < n; ++i) {
        TensorShape shape = (*shapes)[i];
        if (!absl::StartsWith(shape.name, from)) continue;
        shape.name = absl::StrCat(prefix, shape.name.substr(from.size()));
        if (names.insert(shape.name).second) shapes->push_back(shape);
      }
    }
  }
  add("nextn.eh_proj", 2 * n_embd, n_embd);
  add("nextn.enorm", n_embd, 1);
  add("nextn.hnorm", n_embd, 1);
  add("nextn.embed_tokens", n_embd, n_vocab);
  add("nextn.shared_head_head", n_embd, n_vocab);
  add("nextn.shared_head_norm", n_embd, 1);
}

}  // namespace

absl::StatusOr<std::string> WriteRandomModel(const RandomModelSpec& spec,
                                             const std::string& directory) {
  GgufContext gguf = Metadata(spec);
  absl::StatusOr<std::vector<TensorShape>> shapes = Shapes(spec, gguf.get());
  if (!shapes.ok()) return shapes.status();
  if (const uint32_t n_predict = PredictLayers(spec); n_predict > 0) {
    SetMetadata(gguf.get(), absl::StrCat(spec.architecture, ".", kPredictLayers), n_predict);
    for (uint32_t layer = spec.n_layer - n_predict; layer < spec.n_layer; ++layer) {
      MakePredictLayer(spec.architecture, layer, &*shapes);
    }
  }

  const ggml_init_params params = {
      .mem_size = ggml_tensor_overhead() * (shapes->size() + 1),
      .mem_buffer = nullptr,
      .no_alloc = true,
  };
  GgmlContext context(ggml_init(params), &ggml_free);
  std::vector<std::vector<char>> data;
  for (const TensorShape& shape : *shapes) {
    if (Excluded(spec, shape.name)) continue;
    const ggml_type type = TypeOf(shape, static_cast<ggml_type>(spec.weight_type));
    ggml_tensor* tensor = ggml_new_tensor(context.get(), type, shape.n_dims, shape.ne);
    ggml_set_name(tensor, shape.name.c_str());
    const std::vector<float> values = Values(shape, spec.seed);
    std::vector<char>& bytes = data.emplace_back(ggml_nbytes(tensor));
    if (type == GGML_TYPE_F32) {
      std::memcpy(bytes.data(), values.data(), bytes.size());
    } else {
      ggml_quantize_chunk(type, values.data(), bytes.data(), 0, values.size() / shape.ne[0],
                          shape.ne[0], nullptr);
    }
    tensor->data = bytes.data();
    gguf_add_tensor(gguf.get(), tensor);
  }
  const std::string path = absl::StrCat(directory, "/", spec.name, ".gguf");
  if (!gguf_write_to_file(gguf.get(), path.c_str(), /*only_meta=*/false)) {
    return absl::InternalError(absl::StrCat("cannot write ", path));
  }
  return path;
}

}  // namespace strata::testing
