#include "tests/support/gguf_builder.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "ggml.h"
#include "gtest/gtest.h"

namespace strata::testing {

GgufBytes& GgufBytes::Raw(absl::string_view bytes) {
  bytes_.append(bytes);
  return *this;
}

GgufBytes& GgufBytes::U32(uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) bytes_.push_back(static_cast<char>(value >> shift));
  return *this;
}

GgufBytes& GgufBytes::U64(uint64_t value) {
  return U32(static_cast<uint32_t>(value)).U32(static_cast<uint32_t>(value >> 32));
}

GgufBytes& GgufBytes::String(absl::string_view value) { return U64(value.size()).Raw(value); }

GgufBytes& GgufBytes::Entry(absl::string_view key, const GgufValue& value) {
  String(key).U32(static_cast<uint32_t>(value.type));
  if (value.type == GgufType::kArray) {
    U32(static_cast<uint32_t>(value.element_type)).U64(value.count);
  }
  return Raw(value.bytes);
}

GgufBytes& GgufBytes::Tensor(absl::string_view name, absl::Span<const uint64_t> dims, uint32_t type,
                             uint64_t offset) {
  String(name).U32(static_cast<uint32_t>(dims.size()));
  for (const uint64_t dim : dims) U64(dim);
  return U32(type).U64(offset);
}

GgufBytes& GgufBytes::Start(uint64_t tensors, uint64_t metadata) {
  return Raw("GGUF").U32(3).U64(tensors).U64(metadata);
}

GgufBytes& GgufBytes::PadTo(uint32_t alignment) {
  while (bytes_.size() % alignment != 0) bytes_.push_back('\0');
  return *this;
}

GgufBuilder& GgufBuilder::Set(absl::string_view key, GgufValue value) {
  for (auto& entry : metadata_) {
    if (entry.first == key) {
      entry.second = std::move(value);
      return *this;
    }
  }
  metadata_.emplace_back(std::string(key), std::move(value));
  return *this;
}

GgufBuilder& GgufBuilder::Erase(absl::string_view key) {
  std::erase_if(metadata_, [key](const auto& entry) { return entry.first == key; });
  return *this;
}

GgufBuilder& GgufBuilder::Tensor(absl::string_view name, std::vector<uint64_t> dims) {
  return TensorOfType(name, std::move(dims), GGML_TYPE_F32);
}

GgufBuilder& GgufBuilder::EraseTensor(absl::string_view name) {
  std::erase_if(tensors_, [name](const Entry& entry) { return entry.name == name; });
  return *this;
}

GgufBuilder& GgufBuilder::TensorOfType(absl::string_view name, std::vector<uint64_t> dims,
                                       uint32_t type) {
  const auto ggml_type = static_cast<enum ggml_type>(type);
  uint64_t bytes = ggml_type_size(ggml_type);
  for (const uint64_t dim : dims) bytes *= dim;
  bytes /= ggml_blck_size(ggml_type);
  tensors_.push_back({std::string(name), std::move(dims), type, bytes});
  return *this;
}

std::string GgufBuilder::BuildHeader() const {
  GgufBuilder copy = *this;
  if (alignment != 32) copy.Set("general.alignment", GgufValue::U32(alignment));
  GgufBytes out;
  out.Raw("GGUF").U32(version).U64(tensors_.size()).U64(copy.metadata_.size());
  for (const auto& [key, value] : copy.metadata_) out.Entry(key, value);
  uint64_t offset = 0;
  for (const Entry& tensor : tensors_) {
    out.Tensor(tensor.name, tensor.dims, tensor.type, offset);
    offset = (offset + tensor.bytes + alignment - 1) / alignment * alignment;
  }
  return out.PadTo(alignment).bytes();
}

std::string GgufBuilder::Build() const {
  GgufBytes out;
  out.Raw(BuildHeader());
  for (const Entry& tensor : tensors_) {
    out.Raw(tensor.type == GGML_TYPE_F32 ? DataOf(tensor.name, tensor.bytes)
                                         : std::string(tensor.bytes, '\0'));
    out.PadTo(alignment);
  }
  return out.bytes();
}

std::vector<std::string> GgufBuilder::BuildParts(uint16_t parts) const {
  std::vector<std::string> files;
  const auto u16 = [](uint16_t value) {
    GgufValue result = GgufValue::U32(value);
    result.type = result.element_type = GgufType::kU16;
    result.bytes.resize(2);
    return result;
  };
  for (uint16_t part = 0; part < parts; ++part) {
    GgufBuilder one;
    one.version = version;
    one.alignment = alignment;
    if (part == 0) one.metadata_ = metadata_;
    one.Set("split.no", u16(part)).Set("split.count", u16(parts));
    GgufValue tensors = GgufValue::U32(static_cast<uint32_t>(tensors_.size()));
    tensors.type = tensors.element_type = GgufType::kI32;
    one.Set("split.tensors.count", std::move(tensors));
    const auto at = [&](size_t p) { return tensors_.begin() + tensors_.size() * p / parts; };
    one.tensors_.assign(at(part), at(part + 1u));
    files.push_back(one.Build());
  }
  return files;
}

std::string GgufBuilder::DataOf(absl::string_view name, uint64_t bytes) {
  uint32_t seed = 1;
  for (const char c : name) seed = seed * 31 + static_cast<uint8_t>(c);
  std::minstd_rand random(seed);
  std::string data;
  while (data.size() < bytes) {
    // Small and exact, whatever the platform: k / 1024 for k in [-64, 63].
    const float value = (static_cast<float>(random() >> 8 & 127) - 64) / 1024;
    data.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  data.resize(bytes);
  return data;
}

GgufBuilder TinyLlama(TinyLlamaOptions options) {
  constexpr uint64_t kEmbd = 32, kFf = 64, kVocab = 272;
  GgufBuilder builder;
  builder.Set("general.architecture", GgufValue::String("llama"))
      .Set("general.name", GgufValue::String("tiny"))
      .Set("llama.block_count", GgufValue::U32(options.n_layer))
      .Set("llama.context_length", GgufValue::U32(128))
      .Set("llama.embedding_length", GgufValue::U32(kEmbd))
      .Set("llama.feed_forward_length", GgufValue::U32(kFf))
      .Set("llama.attention.head_count", GgufValue::U32(2))
      .Set("llama.attention.layer_norm_rms_epsilon", GgufValue::F32(1e-5f))
      .Set("llama.rope.dimension_count", GgufValue::U32(16))
      .Set("llama.vocab_size", GgufValue::U32(kVocab));

  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(absl::StrFormat("<0x%02X>", byte));
  while (tokens.size() < kVocab) tokens.push_back(absl::StrCat("word", tokens.size()));
  GgufValue scores;
  scores.type = GgufType::kArray;
  scores.element_type = GgufType::kF32;
  scores.count = kVocab;
  scores.bytes.resize(kVocab * sizeof(float));
  GgufValue types = scores;
  types.element_type = GgufType::kI32;
  for (size_t i = 0; i < kVocab; ++i) {
    const int32_t type = i == 0    ? 2
                         : i < 3   ? 3
                         : i < 259 ? 6
                                   : 1;  // unknown, control, byte, normal
    std::memcpy(types.bytes.data() + i * sizeof(type), &type, sizeof(type));
  }
  builder.Set("tokenizer.ggml.model", GgufValue::String("llama"))
      .Set("tokenizer.ggml.tokens", GgufValue::StringArray(tokens))
      .Set("tokenizer.ggml.scores", std::move(scores))
      .Set("tokenizer.ggml.token_type", std::move(types));

  builder.Tensor("token_embd.weight", {kEmbd, kVocab}).Tensor("output_norm.weight", {kEmbd});
  if (!options.tied) builder.Tensor("output.weight", {kEmbd, kVocab});
  for (uint32_t layer = 0; layer < options.n_layer; ++layer) {
    const auto tensor = [&](absl::string_view name, std::vector<uint64_t> dims) {
      builder.Tensor(absl::StrCat("blk.", layer, ".", name, ".weight"), std::move(dims));
    };
    tensor("attn_norm", {kEmbd});
    for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output"}) {
      tensor(name, {kEmbd, kEmbd});
    }
    tensor("ffn_norm", {kEmbd});
    tensor("ffn_gate", {kEmbd, kFf});
    tensor("ffn_up", {kEmbd, kFf});
    tensor("ffn_down", {kFf, kEmbd});
  }
  return builder;
}

std::string PartPath(const std::string& prefix, int number, int count) {
  return absl::StrFormat("%s-%05d-of-%05d.gguf", prefix, number, count);
}

void WriteFile(const std::string& path, absl::string_view bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  ASSERT_TRUE(file.good()) << path;
}

}  // namespace strata::testing
