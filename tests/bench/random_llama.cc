// Writes a llama model of random weights in the shape of a real one of 1.1 billion, for measuring:
// the text is noise, the work is the same. random_llama FILE
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "ggml.h"
#include "shard/gguf.h"

namespace strata {
namespace {

constexpr uint32_t kLayers = 16;
constexpr uint32_t kEmbd = 2048;
constexpr uint32_t kFeedForward = 8192;
constexpr uint32_t kHeads = 32;
constexpr uint32_t kKvHeads = 8;
constexpr uint32_t kVocab = 32000;
constexpr uint32_t kContext = 4096;

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
void AddTokenizer(GgufHeader* header) {
  enum TokenType : int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kByte = 6 };
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  std::vector<int32_t> types = {kUnknown, kControl, kControl};
  for (int byte = 0; byte < 256; ++byte) {
    tokens.push_back(absl::StrFormat("<0x%02X>", byte));
    types.push_back(kByte);
  }
  tokens.push_back("\xE2\x96\x81");  // SentencePiece's space
  while (tokens.size() < kVocab) tokens.push_back(absl::StrCat("<w", tokens.size(), ">"));
  types.resize(kVocab, kNormal);
  const std::vector<float> scores(kVocab, 0);
  header->Set("tokenizer.ggml.model", GgufValue::String("llama"));
  header->Set("tokenizer.ggml.tokens", GgufValue::StringArray(tokens));
  header->Set("tokenizer.ggml.scores",
              NumberArray(GgufType::kF32, scores.data(), kVocab, sizeof(float)));
  header->Set("tokenizer.ggml.token_type",
              NumberArray(GgufType::kI32, types.data(), kVocab, sizeof(int32_t)));
  header->Set("tokenizer.ggml.bos_token_id", GgufValue::U32(1));
  header->Set("tokenizer.ggml.eos_token_id", GgufValue::U32(2));
  header->Set("tokenizer.ggml.unknown_token_id", GgufValue::U32(0));
}

void AddTensor(GgufHeader* header, std::string name, ggml_type type, uint64_t columns,
               uint64_t rows) {
  GgufTensor tensor;
  tensor.name = std::move(name);
  tensor.n_dims = rows == 0 ? 1 : 2;
  tensor.dims = {columns, rows == 0 ? 1 : rows, 1, 1};
  tensor.type = type;
  tensor.bytes = GgufTensorBytes(type, tensor.dims).value();
  header->tensors.push_back(std::move(tensor));
}

GgufHeader MakeHeader() {
  GgufHeader header;
  header.Set("general.architecture", GgufValue::String("llama"));
  header.Set("general.name", GgufValue::String("Random llama 1.1B"));
  header.Set("general.file_type", GgufValue::U32(GGML_FTYPE_MOSTLY_Q4_0));
  header.Set("llama.block_count", GgufValue::U32(kLayers));
  header.Set("llama.context_length", GgufValue::U32(kContext));
  header.Set("llama.embedding_length", GgufValue::U32(kEmbd));
  header.Set("llama.feed_forward_length", GgufValue::U32(kFeedForward));
  header.Set("llama.attention.head_count", GgufValue::U32(kHeads));
  header.Set("llama.attention.head_count_kv", GgufValue::U32(kKvHeads));
  header.Set("llama.attention.layer_norm_rms_epsilon", GgufValue::F32(1e-5f));
  header.Set("llama.rope.dimension_count", GgufValue::U32(kEmbd / kHeads));
  header.Set("llama.rope.freq_base", GgufValue::F32(10000.0f));
  header.Set("llama.vocab_size", GgufValue::U32(kVocab));
  AddTokenizer(&header);

  constexpr ggml_type kMatrix = GGML_TYPE_Q4_0;
  constexpr uint64_t kKv = kEmbd / kHeads * kKvHeads;
  AddTensor(&header, "token_embd.weight", kMatrix, kEmbd, kVocab);
  for (uint32_t i = 0; i < kLayers; ++i) {
    const std::string layer = absl::StrCat("blk.", i, ".");
    AddTensor(&header, layer + "attn_norm.weight", GGML_TYPE_F32, kEmbd, 0);
    AddTensor(&header, layer + "attn_q.weight", kMatrix, kEmbd, kEmbd);
    AddTensor(&header, layer + "attn_k.weight", kMatrix, kEmbd, kKv);
    AddTensor(&header, layer + "attn_v.weight", kMatrix, kEmbd, kKv);
    AddTensor(&header, layer + "attn_output.weight", kMatrix, kEmbd, kEmbd);
    AddTensor(&header, layer + "ffn_norm.weight", GGML_TYPE_F32, kEmbd, 0);
    AddTensor(&header, layer + "ffn_gate.weight", kMatrix, kEmbd, kFeedForward);
    AddTensor(&header, layer + "ffn_up.weight", kMatrix, kEmbd, kFeedForward);
    AddTensor(&header, layer + "ffn_down.weight", kMatrix, kFeedForward, kEmbd);
  }
  AddTensor(&header, "output_norm.weight", GGML_TYPE_F32, kEmbd, 0);
  AddTensor(&header, "output.weight", kMatrix, kEmbd, kVocab);
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

int Main(const std::string& path) {
  GgufHeader header = MakeHeader();
  const std::string front = SerializeGgufHeader(header);
  // Under another name until it is whole.
  const std::string part = path + ".part";
  std::ofstream out(part, std::ios::binary);
  out << front;
  uint64_t random = 1;
  for (const GgufTensor& tensor : header.tensors) {
    const std::string padding(
        header.data_offset + tensor.offset - static_cast<uint64_t>(out.tellp()), '\0');
    out << padding;
    if (tensor.type == GGML_TYPE_F32) {
      const std::vector<float> ones(tensor.dims[0], 1.0f);
      out.write(reinterpret_cast<const char*>(ones.data()),
                static_cast<std::streamsize>(tensor.bytes));
    } else {
      WriteRandomBlocks(tensor.bytes, &random, &out);
    }
    if (!out) break;
  }
  out.close();
  std::error_code error;
  if (out) std::filesystem::rename(part, path, error);
  if (!out || error) {
    std::fprintf(stderr, "random_llama: cannot write %s\n", path.c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace strata

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: random_llama FILE\n");
    return 2;
  }
  return strata::Main(argv[1]);
}
