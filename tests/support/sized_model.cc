#include "tests/support/sized_model.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "ggml.h"
#include "shard/model/gguf.h"

namespace strata::testing {
namespace {

// One block of Q4_0: 32 weights, (nibble - 8) * scale.
struct Q4Block {
  uint16_t scale;  // f16
  uint8_t nibbles[16];
};
static_assert(sizeof(Q4Block) == 18);
constexpr float kScale = 0.004f;  // weights of about 0.02, as trained ones have

GgufValue NumberArray(GgufType type, const void* values, uint64_t count, size_t bytes_each) {
  GgufValue value;
  value.type = GgufType::kArray;
  value.element_type = type;
  value.count = count;
  value.bytes.assign(static_cast<const char*>(values), count * bytes_each);
  return value;
}

// A SentencePiece vocabulary that reads any text a byte at a time, and a space as one token.
void AddTokenizer(uint32_t n_vocab, GgufHeader* header) {
  enum TokenType : int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kByte = 6 };
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  std::vector<int32_t> types = {kUnknown, kControl, kControl};
  for (int byte = 0; byte < 256; ++byte) {
    tokens.push_back(absl::StrFormat("<0x%02X>", byte));
    types.push_back(kByte);
  }
  tokens.push_back("\xE2\x96\x81");  // SentencePiece's space
  while (tokens.size() < n_vocab) tokens.push_back(absl::StrCat("<w", tokens.size(), ">"));
  types.resize(n_vocab, kNormal);
  const std::vector<float> scores(n_vocab, 0);
  header->Set("tokenizer.ggml.model", GgufValue::String("llama"));
  header->Set("tokenizer.ggml.tokens", GgufValue::StringArray(tokens));
  header->Set("tokenizer.ggml.scores",
              NumberArray(GgufType::kF32, scores.data(), n_vocab, sizeof(float)));
  header->Set("tokenizer.ggml.token_type",
              NumberArray(GgufType::kI32, types.data(), n_vocab, sizeof(int32_t)));
  header->Set("tokenizer.ggml.bos_token_id", GgufValue::U32(1));
  header->Set("tokenizer.ggml.eos_token_id", GgufValue::U32(2));
  header->Set("tokenizer.ggml.unknown_token_id", GgufValue::U32(0));
}

// A vector of f32 without rows, a matrix, or `n_expert` of them.
void AddTensor(GgufHeader* header, std::string name, ggml_type type, uint64_t columns,
               uint64_t rows = 0, uint64_t n_expert = 0) {
  GgufTensor tensor;
  tensor.name = std::move(name);
  tensor.n_dims = rows == 0 ? 1 : n_expert == 0 ? 2 : 3;
  tensor.dims = {columns, std::max<uint64_t>(rows, 1), std::max<uint64_t>(n_expert, 1), 1};
  tensor.type = type;
  tensor.bytes = GgufTensorBytes(type, tensor.dims).value();
  header->tensors.push_back(std::move(tensor));
}

GgufHeader MakeHeader(const SizedModel& model) {
  const std::string arch = model.n_expert == 0 ? "llama" : "qwen3moe";
  const uint32_t head = model.n_embd / model.n_head;
  GgufHeader header;
  const auto set = [&](const char* key, GgufValue value) {
    header.Set(absl::StrCat(arch, ".", key), std::move(value));
  };
  header.Set("general.architecture", GgufValue::String(arch));
  header.Set("general.name", GgufValue::String(model.name));
  header.Set("general.file_type", GgufValue::U32(GGML_FTYPE_MOSTLY_Q4_0));
  set("block_count", GgufValue::U32(model.n_layer));
  set("context_length", GgufValue::U32(model.n_ctx));
  set("embedding_length", GgufValue::U32(model.n_embd));
  set("feed_forward_length", GgufValue::U32(model.n_ff));
  set("attention.head_count", GgufValue::U32(model.n_head));
  set("attention.head_count_kv", GgufValue::U32(model.n_head_kv));
  set("attention.key_length", GgufValue::U32(head));
  set("attention.value_length", GgufValue::U32(head));
  set("attention.layer_norm_rms_epsilon", GgufValue::F32(1e-5f));
  set("rope.dimension_count", GgufValue::U32(head));
  set("rope.freq_base", GgufValue::F32(10000.0f));
  set("vocab_size", GgufValue::U32(model.n_vocab));
  if (model.n_expert > 0) {
    set("expert_count", GgufValue::U32(model.n_expert));
    set("expert_used_count", GgufValue::U32(model.n_expert_used));
    set("expert_feed_forward_length", GgufValue::U32(model.n_ff));
  }
  AddTokenizer(model.n_vocab, &header);

  constexpr ggml_type kMatrix = GGML_TYPE_Q4_0;
  const uint64_t n_embd = model.n_embd, n_ff = model.n_ff, n_kv = head * model.n_head_kv;
  AddTensor(&header, "token_embd.weight", kMatrix, n_embd, model.n_vocab);
  for (uint32_t i = 0; i < model.n_layer; ++i) {
    const std::string layer = absl::StrCat("blk.", i, ".");
    const auto matrix = [&](const char* name, uint64_t columns, uint64_t rows) {
      AddTensor(&header, absl::StrCat(layer, name, ".weight"), kMatrix, columns, rows);
    };
    const auto vector = [&](const char* name, uint64_t columns, uint64_t rows = 0) {
      AddTensor(&header, absl::StrCat(layer, name, ".weight"), GGML_TYPE_F32, columns, rows);
    };
    vector("attn_norm", n_embd);
    matrix("attn_q", n_embd, n_embd);
    matrix("attn_k", n_embd, n_kv);
    matrix("attn_v", n_embd, n_kv);
    matrix("attn_output", n_embd, n_embd);
    vector("ffn_norm", n_embd);
    if (model.n_expert == 0) {
      matrix("ffn_gate", n_embd, n_ff);
      matrix("ffn_up", n_embd, n_ff);
      matrix("ffn_down", n_ff, n_embd);
      continue;
    }
    vector("attn_q_norm", head);
    vector("attn_k_norm", head);
    vector("ffn_gate_inp", n_embd, model.n_expert);
    const auto experts = [&](const char* name, uint64_t columns, uint64_t rows) {
      AddTensor(&header, absl::StrCat(layer, name, ".weight"), kMatrix, columns, rows,
                model.n_expert);
    };
    experts("ffn_gate_exps", n_embd, n_ff);
    experts("ffn_up_exps", n_embd, n_ff);
    experts("ffn_down_exps", n_ff, n_embd);
  }
  AddTensor(&header, "output_norm.weight", GGML_TYPE_F32, n_embd);
  AddTensor(&header, "output.weight", kMatrix, n_embd, model.n_vocab);
  return header;
}

// SplitMix64.
uint64_t NextRandom(uint64_t* state) {
  uint64_t z = *state += 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

void WriteRandomBlocks(uint64_t bytes, uint64_t* random, std::ostream* out) {
  std::vector<Q4Block> blocks(4096);
  const uint16_t scale = ggml_fp32_to_fp16(kScale);
  for (uint64_t left = bytes / sizeof(Q4Block); left > 0;) {
    const uint64_t n = std::min<uint64_t>(left, blocks.size());
    for (uint64_t i = 0; i < n; ++i) {
      const uint64_t low = NextRandom(random), high = NextRandom(random);
      blocks[i].scale = scale;
      std::memcpy(blocks[i].nibbles, &low, sizeof(low));
      std::memcpy(blocks[i].nibbles + sizeof(low), &high, sizeof(high));
    }
    out->write(reinterpret_cast<const char*>(blocks.data()),
               static_cast<std::streamsize>(n * sizeof(Q4Block)));
    left -= n;
  }
}

// Norms are ones; matrices of f32 (routers) are around zero.
void WriteFloats(const GgufTensor& tensor, uint64_t* random, std::ostream* out) {
  std::vector<float> values(tensor.bytes / sizeof(float), 1.0f);
  if (tensor.n_dims > 1) {
    for (float& value : values) {
      value = static_cast<float>(NextRandom(random) >> 40) / static_cast<float>(1 << 24) - 0.5f;
    }
  }
  out->write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(tensor.bytes));
}

}  // namespace

absl::Status WriteSizedModel(const SizedModel& model, const std::string& path) {
  GgufHeader header = MakeHeader(model);
  const std::string front = SerializeGgufHeader(header);
  // Under another name until it is complete.
  const std::string part = path + ".part";
  std::ofstream out(part, std::ios::binary);
  out << front;
  uint64_t random = 1;
  for (const GgufTensor& tensor : header.tensors) {
    const std::string padding(
        header.data_offset + tensor.offset - static_cast<uint64_t>(out.tellp()), '\0');
    out << padding;
    if (tensor.type == GGML_TYPE_F32) {
      WriteFloats(tensor, &random, &out);
    } else {
      WriteRandomBlocks(tensor.bytes, &random, &out);
    }
    if (!out) break;
  }
  out.close();
  std::error_code error;
  if (out) std::filesystem::rename(part, path, error);
  if (!out || error) return absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
  return absl::OkStatus();
}

}  // namespace strata::testing
