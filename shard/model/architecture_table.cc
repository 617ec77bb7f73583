#include "shard/model/architecture_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"

namespace strata {
namespace {

std::optional<uint64_t> Integer(const GgufHeader& header, absl::string_view suffix) {
  const std::string architecture = header.GetString("general.architecture").value_or("");
  return header.GetInteger(absl::StrCat(architecture, ".", suffix));
}

std::optional<double> Number(const GgufHeader& header, absl::string_view suffix) {
  const std::string architecture = header.GetString("general.architecture").value_or("");
  return header.GetNumber(absl::StrCat(architecture, ".", suffix));
}

void Set(GgufHeader* header, absl::string_view suffix, GgufValue value) {
  const std::string architecture = header->GetString("general.architecture").value_or("");
  header->Set(absl::StrCat(architecture, ".", suffix), std::move(value));
}

void Refuse(CutRule* rule, absl::string_view reason) {
  rule->exactness = Exactness::kRefused;
  rule->reason = std::string(reason);
}

// Gemma 2 with 46 layers and Gemma 3 with 62 (27B) scale queries by the model's width per head, all
// others by the head's. A slice never has the model's count, so the quotient goes into the factor
// that rotates queries and keys: it counts twice in their product.
double GemmaScaleQuotient(const GgufHeader& whole) {
  const double n_head = static_cast<double>(Integer(whole, "attention.head_count").value_or(0));
  const double n_embd = static_cast<double>(Integer(whole, "embedding_length").value_or(0));
  if (n_head == 0 || n_embd == 0) return 1;
  const double width = std::floor(n_embd / n_head);
  const double head = static_cast<double>(
      Integer(whole, "attention.key_length").value_or(static_cast<uint64_t>(width)));
  return head == 0 || width == 0 ? 1 : head / width;
}

template <uint32_t kLayers>
void RefineGemma(const GgufHeader& whole, uint32_t n_layer, CutRule* rule) {
  if (GemmaScaleQuotient(whole) == 1) return;
  if (n_layer == kLayers) {
    rule->exactness = Exactness::kTolerance;
    rule->tolerance = std::max(rule->tolerance, 2e-3);
    rule->reason =
        "with this block count queries are scaled otherwise; a slice does it while rotating";
  } else {
    rule->forbidden_sizes = {kLayers};
  }
}

template <uint32_t kLayers>
void AdjustGemma(const GgufHeader& whole, LayerRange, GgufHeader* slice) {
  if (Integer(whole, "block_count").value_or(0) != kLayers) return;
  const double quotient = GemmaScaleQuotient(whole);
  if (quotient == 1) return;
  const double factor = Number(whole, "rope.scaling.attn_factor").value_or(1);
  Set(slice, "rope.scaling.attn_factor",
      GgufValue::F32(static_cast<float>(factor * std::pow(quotient, 0.25))));
}

// DeepSeek 2 with 26 or 27 layers, or 48 and a certain vocabulary, is taken for a lite model, which
// has no low-rank queries whatever the metadata say.
constexpr uint64_t kGigaChatVocabulary = 128256;
constexpr uint64_t kGlmLiteVocabulary = 154880;

uint64_t VocabularySize(const GgufHeader& header) {
  if (std::optional<uint64_t> size = Integer(header, "vocab_size")) return *size;
  const GgufValue* tokens = header.Find("tokenizer.ggml.tokens");
  return tokens == nullptr ? 0 : tokens->count;
}

bool IsLiteDeepseek2(const GgufHeader& whole, uint64_t n_layer) {
  return n_layer == 26 || n_layer == 27 ||
         (n_layer == 48 && VocabularySize(whole) == kGigaChatVocabulary);
}

void RefineDeepseek2(const GgufHeader& whole, uint32_t n_layer, CutRule* rule) {
  if (IsLiteDeepseek2(whole, n_layer)) return;
  if (Integer(whole, "attention.q_lora_rank").value_or(0) == 0) return;
  rule->forbidden_sizes = {26, 27};
  if (VocabularySize(whole) == kGigaChatVocabulary) rule->forbidden_sizes.push_back(48);
}

void AdjustDeepseek2(const GgufHeader& whole, LayerRange, GgufHeader* slice) {
  const uint64_t n_layer = Integer(whole, "block_count").value_or(0) -
                           Integer(whole, "nextn_predict_layers").value_or(0);
  if (IsLiteDeepseek2(whole, n_layer)) Set(slice, "attention.q_lora_rank", GgufValue::U32(0));
  if (Integer(whole, "expert_gating_func").value_or(0) == 0) {
    const bool is_glm_lite =
        (n_layer == 47 || n_layer == 48) && VocabularySize(whole) == kGlmLiteVocabulary;
    constexpr uint32_t kSoftmax = 1;
    constexpr uint32_t kSigmoid = 2;
    Set(slice, "expert_gating_func", GgufValue::U32(is_glm_lite ? kSigmoid : kSoftmax));
  }
}

void RefineExaone4(const GgufHeader&, uint32_t n_layer, CutRule* rule) {
  if (n_layer == 64) {
    Refuse(rule, "only a model of 64 layers gets a sliding window; no slice has so many");
  } else {
    rule->forbidden_sizes = {64};
  }
}

void RefineCommandR(const GgufHeader& whole, uint32_t n_layer, CutRule* rule) {
  if (n_layer >= 64 && whole.FindTensor("blk.0.attn_q_norm.weight") != nullptr) {
    Refuse(rule, "only a model of 64 or more layers gets norms of queries and keys");
  }
}

void RefineGemma4(const GgufHeader& whole, uint32_t, CutRule* rule) {
  if (Integer(whole, "embedding_length_per_layer_input").value_or(0) > 0) {
    Refuse(rule, "every layer uses an embedding of the token (E2B, E4B)");
  } else if (Integer(whole, "attention.shared_kv_layers").value_or(0) > 0) {
    Refuse(rule, "later layers use the keys and values of earlier ones");
  }
}

// Every fourth layer does not rotate, and libllama aborts when none is like that.
void RefineLlama4(const GgufHeader& whole, uint32_t n_layer, CutRule* rule) {
  if (Integer(whole, "attention.sliding_window").value_or(1) == 0) {
    Refuse(rule, "without a sliding window the last layer of every slice would not rotate");
  } else if (!rule->cut_points.empty() && n_layer - rule->cut_points.back() < 4) {
    rule->cut_points.pop_back();
  }
}

// Every fourth layer does not rotate, unless a model of four layers has windows: then all do.
void RefineSmallthinker(const GgufHeader& whole, uint32_t n_layer, CutRule* rule) {
  rule->cut_points.clear();
  if (Integer(whole, "attention.sliding_window").value_or(0) == 0) {  // all rotate
    for (uint32_t cut = 1; cut < n_layer; ++cut) rule->cut_points.push_back(cut);
    return;
  }
  for (uint32_t cut = 8; cut < n_layer && n_layer - cut != 4; cut += 8) {
    rule->cut_points.push_back(cut);
  }
}

// The library's default depends on the block count.
void AdjustMinicpm(const GgufHeader& whole, LayerRange, GgufHeader* slice) {
  if (Number(whole, "residual_scale").has_value()) return;
  const uint64_t n_layer = Integer(whole, "block_count").value_or(1);
  Set(slice, "residual_scale", GgufValue::F32(1.4f / std::sqrt(static_cast<float>(n_layer))));
}

const ArchitectureRow* Rows(size_t* count) {
  static const ArchitectureRow rows[] = {
      {.name = "afmoe", .step = 4, .window = {.period = 4}, .input_tensor = "inp_embd_scaled"},
      {.name = "apertus"},
      {.name = "arcee"},
      {.name = "arctic"},
      {.name = "bailingmoe"},
      {.name = "bailingmoe2", .may_predict = true},
      {.name = "baichuan",
       .exactness = Exactness::kRefused,
       .reason = "whether it rotates or adds a bias by distance follows from the block count"},
      {.name = "bitnet"},
      {.name = "bloom", .input_tensor = "inp_norm-0"},
      {.name = "chatglm"},
      {.name = "codeshell"},
      {.name = "cohere2", .window = {.period = 4}},
      {.name = "cohere2moe", .window = {.period = 4}, .may_predict = true},
      {.name = "command-r", .refine = &RefineCommandR},
      {.name = "dbrx"},
      {.name = "deci"},
      {.name = "deepseek"},
      {.name = "deepseek2",
       .memory = Memory::kUnshiftable,
       .may_predict = true,
       .refine = &RefineDeepseek2,
       .adjust = &AdjustDeepseek2},
      {.name = "dots1"},
      {.name = "ernie4_5"},
      {.name = "ernie4_5-moe", .step_key = "interleave_moe_layer_step"},
      {.name = "exaone"},
      {.name = "exaone-moe", .window = {.period = 4}, .may_predict = true},
      {.name = "exaone4", .may_predict = true, .refine = &RefineExaone4},
      {.name = "falcon"},
      {.name = "falcon-h1", .memory = Memory::kRecurrent},
      {.name = "gemma", .input_tensor = "inp_scaled"},
      {.name = "gemma2",
       .window = {.period = 2},
       .input_tensor = "inp_scaled",
       .refine = &RefineGemma<46>,
       .adjust = &AdjustGemma<46>},
      {.name = "gemma3",
       .window = {.period = 6, .if_stated = true},
       .refine = &RefineGemma<62>,
       .adjust = &AdjustGemma<62>},
      {.name = "gemma3n",
       .exactness = Exactness::kRefused,
       .reason =
           "later layers use the keys and values of earlier ones, and every layer an embedding of "
           "the token"},
      {.name = "gemma4",
       .window = {.period = 6, .needs_full = true},
       .input_tensor = "inp_scaled",
       .refine = &RefineGemma4},
      {.name = "glm4", .input_tensor = "embd", .may_predict = true},
      {.name = "glm4moe", .input_tensor = "embd", .may_predict = true},
      {.name = "gpt-oss", .window = {.period = 2}},
      {.name = "gpt2"},
      {.name = "gptneox"},
      {.name = "granite", .scales_input = true},
      {.name = "granite_swa", .window = {.period = 4}, .scales_input = true},
      {.name = "granitehybrid",
       .kv_heads_mark_attention = true,
       .scales_input = true,
       .memory = Memory::kRecurrent},
      {.name = "granitemoe", .scales_input = true},
      {.name = "grok", .scales_input = true},
      {.name = "grovemoe"},
      {.name = "hunyuan-dense"},
      {.name = "hunyuan-moe"},
      {.name = "hunyuan_vl"},
      {.name = "hy_v3", .may_predict = true},
      {.name = "internlm2"},
      {.name = "jais"},
      {.name = "jais2"},
      {.name = "jamba", .kv_heads_mark_attention = true, .memory = Memory::kRecurrent},
      {.name = "kimi-linear", .kv_heads_mark_attention = true, .memory = Memory::kRecurrent},
      {.name = "laguna", .window = {.period = 4}},
      {.name = "lfm2", .kv_heads_mark_attention = true, .memory = Memory::kRecurrent},
      {.name = "lfm2moe", .kv_heads_mark_attention = true, .memory = Memory::kRecurrent},
      {.name = "llama"},
      {.name = "llama4",
       .step = 4,
       .step_key = "interleave_moe_layer_step",
       .window = {.period = 4},
       .refine = &RefineLlama4},
      {.name = "maincoder"},
      {.name = "mamba", .memory = Memory::kRecurrent},
      {.name = "mamba2", .memory = Memory::kRecurrent},
      {.name = "mellum", .window = {.period = 4}},
      {.name = "mimo2", .window = {.period = 4}, .output_tensor = "h_nextn", .may_predict = true},
      {.name = "minicpm", .scales_input = true, .adjust = &AdjustMinicpm},
      {.name = "minicpm3",
       .exactness = Exactness::kRefused,
       .reason = "the weight of each layer's residual follows from the block count"},
      {.name = "minimax-m2"},
      {.name = "mistral3"},
      {.name = "mistral4",
       .memory = Memory::kUnshiftable,
       .may_predict = true,
       .refine = &RefineDeepseek2,
       .adjust = &AdjustDeepseek2},
      {.name = "mpt"},
      {.name = "nemotron"},
      {.name = "nemotron_h",
       .kv_heads_mark_attention = true,
       .some_layers_are_feed_forward = true,
       .output_tensor = "nemotron_h_block_out-",
       .memory = Memory::kRecurrent},
      {.name = "nemotron_h_moe",
       .kv_heads_mark_attention = true,
       .some_layers_are_feed_forward = true,
       .output_tensor = "nemotron_h_block_out-",
       .memory = Memory::kRecurrent,
       .may_predict = true},
      {.name = "olmo"},
      {.name = "olmo2", .window = {.period = 4, .if_stated = true}},
      {.name = "olmoe"},
      {.name = "openelm"},
      {.name = "orion"},
      {.name = "paddleocr"},
      {.name = "pangu-embedded"},
      {.name = "phi2"},
      {.name = "phi3"},
      {.name = "phimoe"},
      {.name = "plamo"},
      {.name = "plamo3", .window = {.period = 8, .if_stated = true}},
      {.name = "qwen2"},
      {.name = "qwen2moe"},
      {.name = "qwen2vl"},
      {.name = "qwen3"},
      {.name = "qwen35",
       .attention_interval = 4,
       .memory = Memory::kRecurrent,
       .may_predict = true},
      {.name = "qwen35moe",
       .attention_interval = 4,
       .memory = Memory::kRecurrent,
       .may_predict = true},
      {.name = "qwen3moe"},
      {.name = "qwen3next",
       .attention_interval = 4,
       .memory = Memory::kRecurrent,
       .may_predict = true},
      {.name = "qwen3vl",
       .exactness = Exactness::kRefused,
       .reason = "its first layers take features of the image besides the activations"},
      {.name = "qwen3vlmoe",
       .exactness = Exactness::kRefused,
       .reason = "its first layers take features of the image besides the activations"},
      {.name = "refact"},
      {.name = "seed_oss"},
      {.name = "smallthinker",
       .window = {.period = 4, .full_first = true, .if_stated = true},
       .refine = &RefineSmallthinker},
      {.name = "smollm3", .step = 4},
      {.name = "stablelm"},
      {.name = "starcoder"},
      {.name = "starcoder2"},
      {.name = "step35", .window = {.period = 4}, .output_tensor = "h_nextn", .may_predict = true},
      {.name = "xverse"},
  };
  *count = std::size(rows);
  return rows;
}

}  // namespace

absl::Span<const ArchitectureRow> ArchitectureTable() {
  static const absl::Span<const ArchitectureRow> table = [] {
    size_t count = 0;
    const ArchitectureRow* rows = Rows(&count);
    return absl::MakeConstSpan(rows, count);
  }();
  return table;
}

const ArchitectureRow* FindArchitecture(absl::string_view name) {
  for (const ArchitectureRow& row : ArchitectureTable()) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

}  // namespace strata
