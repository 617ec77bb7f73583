#include "tests/support/model_zoo.h"

#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "ggml.h"

namespace strata::testing {
namespace {

constexpr absl::string_view kExperts =
    "expert_count=4 expert_used_count=2 expert_feed_forward_length=48";
constexpr absl::string_view kRecurrent =
    "ssm.conv_kernel=4 ssm.inner_size=128 ssm.state_size=16 ssm.time_step_rank=8 ssm.group_count=2";

MetadataValue ParseValue(absl::string_view text) {
  const bool is_float = absl::StrContains(text, ".");
  if (absl::ConsumePrefix(&text, "[")) {
    absl::ConsumeSuffix(&text, "]");
    std::vector<uint32_t> integers;
    std::vector<float> floats;
    for (absl::string_view element : absl::StrSplit(text, ',')) {
      uint32_t integer = 0;
      float number = 0;
      if (is_float && absl::SimpleAtof(element, &number)) floats.push_back(number);
      if (!is_float && absl::SimpleAtoi(element, &integer)) integers.push_back(integer);
    }
    if (is_float) return floats;
    return integers;
  }
  if (text == "true" || text == "false") return text == "true";
  uint32_t integer = 0;
  float number = 0;
  if (absl::SimpleAtoi(text, &integer)) return integer;
  if (absl::SimpleAtof(text, &number)) return number;
  return std::string(text);
}

}  // namespace

RandomModelSpec SpecOf(const ZooModel& model) {
  RandomModelSpec spec;
  spec.name = model.name;
  spec.architecture = model.architecture;
  spec.n_layer = model.n_layer;
  spec.weight_type = model.weight_type;
  spec.without = absl::StrSplit(model.without, ' ', absl::SkipEmpty());
  spec.without.push_back("cls.output");  // of classifiers
  const std::string metadata =
      absl::StrReplaceAll(model.metadata, {{"$moe", kExperts}, {"$ssm", kRecurrent}});
  for (absl::string_view pair : absl::StrSplit(metadata, ' ', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> key_value =
        absl::StrSplit(pair, absl::MaxSplits('=', 1));
    spec.metadata.emplace_back(key_value.first, ParseValue(key_value.second));
  }
  return spec;
}

const std::vector<ZooModel>& ModelZoo() {
  static const auto& zoo = *new std::vector<ZooModel>{
      {"llama", "llama", 6, ""},
      {"llama_experts", "llama", 6, "$moe"},
      {"llama4", "llama4", 8, "$moe interleave_moe_layer_step=2 expert_shared_count=1"},
      {"qwen2", "qwen2", 6, ""},
      {"qwen3", "qwen3", 6, ""},
      {"qwen3moe", "qwen3moe", 6, "$moe"},
      {"qwen3next", "qwen3next", 12,
       "$moe expert_shared_feed_forward_length=48 ssm.conv_kernel=4 "
       "ssm.inner_size=64 ssm.state_size=16 ssm.time_step_rank=4 "
       "ssm.group_count=2 attention.key_length=32 attention.value_length=32 "
       "rope.dimension_count=8"},
      {"gemma", "gemma", 6,
       "embedding_length=96 attention.key_length=16 attention.value_length=16"},
      {"gemma2", "gemma2", 8,
       "attention.sliding_window=8 attn_logit_softcapping=30.0 "
       "final_logit_softcapping=20.0 embedding_length=96 attention.key_length=16 "
       "attention.value_length=16"},
      {"gemma3", "gemma3", 8,
       "attention.sliding_window=8 embedding_length=96 attention.key_length=16 "
       "attention.value_length=16"},
      {"phi3", "phi3", 6, ""},
      {"gpt_oss", "gpt-oss", 6, "$moe attention.sliding_window=8"},
      {"deepseek2", "deepseek2", 6,
       "$moe expert_shared_count=1 leading_dense_block_count=2 "
       "attention.q_lora_rank=24 attention.kv_lora_rank=32 "
       "attention.key_length=40 attention.value_length=32 "
       "attention.key_length_mla=24 attention.value_length_mla=16 "
       "rope.dimension_count=8 attention.head_count_kv=1 "
       "expert_weights_scale=1.5"},
      {"glm4", "glm4", 6, ""},
      {"glm4moe", "glm4moe", 6, "$moe expert_shared_count=1 leading_dense_block_count=2"},
      {"minimax_m2", "minimax-m2", 6, "$moe expert_gating_func=2"},
      {"cohere2", "cohere2", 6, "attention.sliding_window=8 logit_scale=0.5"},
      {"olmo2", "olmo2", 6, "attention.sliding_window=8"},
      {"granite", "granite", 6,
       "logit_scale=4.0 residual_scale=0.3 embedding_scale=6.0 "
       "attention.scale=0.2"},
      {"granitemoe", "granitemoe", 6,
       "$moe logit_scale=4.0 residual_scale=0.3 embedding_scale=6.0 "
       "attention.scale=0.2"},
      {"granitehybrid", "granitehybrid", 6,
       "$ssm logit_scale=4.0 residual_scale=0.3 embedding_scale=6.0 "
       "attention.scale=0.2 attention.head_count_kv=[0,0,2,0,2,0]"},
      {"exaone4", "exaone4", 6, ""},
      {"smollm3", "smollm3", 12, ""},
      {"ernie4_5_moe", "ernie4_5-moe", 6,
       "$moe interleave_moe_layer_step=1 leading_dense_block_count=2 "
       "expert_shared_count=1"},
      {"ernie4_5_moe_step_2", "ernie4_5-moe", 6,
       "$moe interleave_moe_layer_step=2 leading_dense_block_count=2 "
       "expert_shared_count=1"},
      {"hunyuan_moe", "hunyuan-moe", 6, "$moe expert_shared_count=1"},
      {"hunyuan_dense", "hunyuan-dense", 6, ""},
      {"starcoder2", "starcoder2", 6, ""},
      {"falcon", "falcon", 6, ""},
      {"nemotron", "nemotron", 6, ""},
      {"mistral3", "mistral3", 6, ""},
      {"lfm2", "lfm2", 6, "shortconv.l_cache=3 attention.head_count_kv=[0,2,0,2,2,0]", "dense_2"},
      {"lfm2moe", "lfm2moe", 6,
       "$moe shortconv.l_cache=3 attention.head_count_kv=[0,2,0,2,2,0] "
       "expert_gating_func=2 leading_dense_block_count=2",
       "dense_2"},
      {"mamba2", "mamba2", 6, "$ssm"},
      {"mamba", "mamba", 6,
       "ssm.conv_kernel=4 ssm.inner_size=128 ssm.state_size=16 "
       "ssm.time_step_rank=8"},
      {"jamba", "jamba", 6,
       "ssm.conv_kernel=4 ssm.inner_size=128 ssm.state_size=16 "
       "ssm.time_step_rank=8 attention.head_count_kv=[0,2,0,0,2,0] $moe"},
      {"falcon_h1", "falcon-h1", 6, "$ssm"},
      {"nemotron_h", "nemotron_h", 8,
       "$ssm attention.head_count_kv=[0,2,0,0,2,0,0,2] "
       "feed_forward_length=[0,0,96,0,0,96,0,0]"},
      {"kimi_linear", "kimi-linear", 6,
       "$moe $ssm kda.head_dim=16 attention.head_count_kv=[0,0,0,1,0,1] "
       "attention.key_length_mla=24 attention.value_length_mla=16 "
       "attention.kv_lora_rank=32 attention.key_length=40 "
       "attention.value_length=32 rope.dimension_count=8 expert_shared_count=1 "
       "expert_gating_func=2 leading_dense_block_count=1"},
      {"minicpm", "minicpm", 6, ""},
      {"gptneox", "gptneox", 6,
       "use_parallel_residual=true rope.dimension_count=16 "
       "attention.head_count_kv=4"},
      {"mpt", "mpt", 6,
       "attention.head_count_kv=4 attention.max_alibi_bias=8.0 "
       "attention.clamp_kqv=8.0",
       "act.scales k_norm position_embd"},
      {"internlm2", "internlm2", 6, ""},
      {"stablelm", "stablelm", 6, "use_parallel_residual=false"},
      {"phi2", "phi2", 6, ""},
      {"qwen2moe", "qwen2moe", 6, "$moe expert_shared_feed_forward_length=48"},
      {"olmo", "olmo", 6, "attention.clamp_kqv=8.0"},
      {"olmoe", "olmoe", 6, "$moe attention.head_count_kv=4"},
      {"command_r", "command-r", 6, "logit_scale=0.5"},
      {"dbrx", "dbrx", 6, "$moe attention.clamp_kqv=8.0"},
      {"grok", "grok", 6, "$moe"},
      {"exaone", "exaone", 6, ""},
      {"chatglm", "chatglm", 6, ""},
      {"deepseek", "deepseek", 6,
       "$moe expert_shared_count=1 leading_dense_block_count=2 "
       "expert_weights_scale=1.0"},
      {"seed_oss", "seed_oss", 6, ""},
      {"bailingmoe", "bailingmoe", 6,
       "$moe expert_shared_count=1 leading_dense_block_count=2 "
       "expert_weights_scale=1.0"},
      {"bailingmoe2", "bailingmoe2", 6,
       "$moe expert_shared_count=1 leading_dense_block_count=2 "
       "expert_weights_scale=1.0 expert_gating_func=2"},
      {"dots1", "dots1", 6,
       "attention.head_count_kv=4 $moe expert_shared_count=1 "
       "leading_dense_block_count=2 expert_gating_func=2"},
      {"arcee", "arcee", 6, ""},
      {"apertus", "apertus", 6,
       ".xielu.alpha_n=[0.5,0.6,0.7,0.8,0.9,1.0] "
       ".xielu.alpha_p=[0.5,0.6,0.7,0.8,0.9,1.0] "
       ".xielu.beta=[0.5,0.6,0.7,0.8,0.9,1.0] "
       ".xielu.eps=[0.001,0.001,0.001,0.001,0.001,0.001]"},
      {"ernie4_5", "ernie4_5", 6, ""},
      {"smallthinker", "smallthinker", 24, "$moe attention.sliding_window=8 expert_gating_func=2"},
      {"smallthinker_full", "smallthinker", 8, "$moe expert_gating_func=2"},
      {"orion", "orion", 6, ""},
      {"xverse", "xverse", 6, ""},
      {"qwen2vl", "qwen2vl", 6, "rope.dimension_sections=[2,3,3,0]"},
      {"qwen35", "qwen35", 12,
       "$ssm rope.dimension_sections=[2,3,3,0] attention.key_length=32 "
       "attention.value_length=32 rope.dimension_count=16"},
      {"qwen35moe", "qwen35moe", 12,
       "$moe $ssm expert_shared_feed_forward_length=48 "
       "rope.dimension_sections=[2,3,3,0] attention.key_length=32 "
       "attention.value_length=32 rope.dimension_count=16"},
      {"gpt2", "gpt2", 6, ""},
      {"starcoder", "starcoder", 6, ""},
      {"bloom", "bloom", 6, ""},
      {"plamo3", "plamo3", 6,
       "attention.sliding_window=8 attention.key_length=16 "
       "attention.value_length=16"},
      {"plamo", "plamo", 6, ""},
      {"cohere2moe", "cohere2moe", 6,
       "$moe attention.sliding_window=8 logit_scale=0.5 "
       "leading_dense_block_count=1 expert_gating_func=2 "
       "attention.sliding_window_pattern=[1,1,1,0,1,1]"},
      {"exaone_moe", "exaone-moe", 6,
       "$moe attention.sliding_window=8 leading_dense_block_count=2 "
       "expert_shared_count=1 expert_gating_func=2"},
      {"afmoe", "afmoe", 8,
       "$moe attention.sliding_window=8 leading_dense_block_count=2 "
       "expert_shared_count=1 expert_gating_func=2"},
      {"mimo2", "mimo2", 6,
       "$moe attention.sliding_window=8 "
       "attention.sliding_window_pattern=[1,1,0,1,1,0] expert_gating_func=2"},
      {"mellum", "mellum", 6, "$moe attention.sliding_window=8"},
      {"grovemoe", "grovemoe", 6,
       "$moe expert_group_scale=0.5 experts_per_group=2 "
       "expert_chunk_feed_forward_length=32"},
      {"arctic", "arctic", 6, "$moe"},
      {"openelm", "openelm", 6, ""},
      {"phimoe", "phimoe", 6, "$moe"},
      {"codeshell", "codeshell", 6, ""},
      {"refact", "refact", 6, ""},
      {"deci", "deci", 6, ""},
      {"jais", "jais", 6, "attention.head_count_kv=4 attention.max_alibi_bias=8.0"},
      {"jais2", "jais2", 6, ""},
      {"bitnet", "bitnet", 6, ""},
      {"maincoder", "maincoder", 6, ""},
      {"pangu_embedded", "pangu-embedded", 6, ""},
      {"nemotron_h_moe", "nemotron_h_moe", 8,
       "$ssm $moe expert_shared_count=1 expert_shared_feed_forward_length=48 "
       "attention.head_count_kv=[0,2,0,0,2,0,0,2] "
       "feed_forward_length=[0,0,96,0,0,96,0,0] expert_weights_scale=1.0"},
      {"mistral4", "mistral4", 6,
       "$moe expert_shared_count=1 leading_dense_block_count=2 "
       "attention.q_lora_rank=24 attention.kv_lora_rank=32 "
       "attention.key_length=40 attention.value_length=32 "
       "attention.key_length_mla=24 attention.value_length_mla=16 "
       "rope.dimension_count=8 attention.head_count_kv=1"},
      {"hunyuan_vl", "hunyuan_vl", 6, "rope.dimension_sections=[2,3,3,0]"},
      {"paddleocr", "paddleocr", 6, "rope.dimension_sections=[2,3,3,0]"},
      {"hy_v3", "hy_v3", 6, "$moe leading_dense_block_count=1 expert_shared_count=1"},
      {"laguna", "laguna", 6,
       "$moe attention.sliding_window=8 "
       "attention.sliding_window_pattern=[1,1,0,1,1,0] "
       "leading_dense_block_count=1 expert_shared_count=1"},
      {"step35", "step35", 6,
       "$moe attention.sliding_window=8 "
       "attention.sliding_window_pattern=[1,1,0,1,1,0] "
       "attention.head_count=[4,4,4,4,4,4] attention.head_count_kv=[2,2,2,2,2,2] "
       "expert_shared_count=1 leading_dense_block_count=1"},
      {"granite_swa", "granite_swa", 6,
       "$moe attention.sliding_window=8 logit_scale=4.0 "
       "attention.sliding_window_pattern=[1,1,0,1,1,0]"},
      {"gemma4", "gemma4", 10,
       "attention.sliding_window=8 embedding_length_per_layer_input=0 "
       "attention.key_length_swa=16 attention.value_length_swa=16 "
       "attention.sliding_window_pattern=[1,1,1,1,0,1,1,1,1,0]"},
      {"llama_q8_0", "llama", 6, "", "", GGML_TYPE_Q8_0},
      {"llama_q4_0", "llama", 6, "", "", GGML_TYPE_Q4_0},
      {"llama_f16", "llama", 6, "", "", GGML_TYPE_F16},
      {"llama_q4_k", "llama", 4, "embedding_length=256 feed_forward_length=512", "",
       GGML_TYPE_Q4_K},
      {"qwen3moe_q8_0", "qwen3moe", 6, "$moe expert_feed_forward_length=64", "", GGML_TYPE_Q8_0},
      {"qwen3moe_q4_0", "qwen3moe", 6, "$moe expert_feed_forward_length=64", "", GGML_TYPE_Q4_0},
      {"gemma2_27b", "gemma2", 46,
       "attention.sliding_window=8 attn_logit_softcapping=30.0 "
       "final_logit_softcapping=20.0 embedding_length=96 attention.key_length=16 "
       "attention.value_length=16"},
      {"gemma3_27b", "gemma3", 62,
       "attention.sliding_window=8 embedding_length=96 attention.key_length=16 "
       "attention.value_length=16"},
      {"gemma3_unwindowed", "gemma3", 6,
       "embedding_length=96 attention.key_length=16 attention.value_length=16"},
      {"gemma3_array", "gemma3", 6,
       "attention.sliding_window=8 "
       "attention.sliding_window_pattern=[1,0,1,1,0,1]"},
      {"deepseek2_lite_26", "deepseek2", 26,
       "$moe expert_shared_count=1 leading_dense_block_count=2 "
       "attention.kv_lora_rank=32 attention.key_length=40 "
       "attention.value_length=32 attention.key_length_mla=24 "
       "attention.value_length_mla=16 rope.dimension_count=8 "
       "attention.head_count_kv=1"},
      {"deepseek2_lite_27", "deepseek2", 27,
       "$moe expert_shared_count=1 leading_dense_block_count=2 "
       "attention.kv_lora_rank=32 attention.key_length=40 "
       "attention.value_length=32 attention.key_length_mla=24 "
       "attention.value_length_mla=16 rope.dimension_count=8 "
       "attention.head_count_kv=1"},
      {"qwen3next_listed", "qwen3next", 6,
       "$moe expert_shared_feed_forward_length=48 ssm.conv_kernel=4 "
       "ssm.inner_size=64 ssm.state_size=16 ssm.time_step_rank=4 "
       "ssm.group_count=2 attention.key_length=32 attention.value_length=32 "
       "rope.dimension_count=8 attention.recurrent_layers=[1,0,1,0,0,1]"},
      // Layers for multi-token prediction, which libllama does not run, at the end.
      {"glm4moe_nextn", "glm4moe", 7,
       "$moe expert_shared_count=1 leading_dense_block_count=2 nextn_predict_layers=1"},
      {"glm4_nextn", "glm4", 7, "nextn_predict_layers=1"},
      {"deepseek2_nextn", "deepseek2", 8,
       "$moe expert_shared_count=1 leading_dense_block_count=2 "
       "attention.q_lora_rank=24 attention.kv_lora_rank=32 "
       "attention.key_length=40 attention.value_length=32 "
       "attention.key_length_mla=24 attention.value_length_mla=16 "
       "rope.dimension_count=8 attention.head_count_kv=1 "
       "expert_weights_scale=1.5 nextn_predict_layers=2"},
      {"mistral4_nextn", "mistral4", 7,
       "$moe expert_shared_count=1 leading_dense_block_count=2 "
       "attention.q_lora_rank=24 attention.kv_lora_rank=32 "
       "attention.key_length=40 attention.value_length=32 "
       "attention.key_length_mla=24 attention.value_length_mla=16 "
       "rope.dimension_count=8 attention.head_count_kv=1 nextn_predict_layers=1"},
      {"qwen3next_nextn", "qwen3next", 12,
       "$moe expert_shared_feed_forward_length=48 ssm.conv_kernel=4 "
       "ssm.inner_size=64 ssm.state_size=16 ssm.time_step_rank=4 "
       "ssm.group_count=2 attention.key_length=32 attention.value_length=32 "
       "rope.dimension_count=8 nextn_predict_layers=1"},
      {"qwen35_nextn", "qwen35", 9,
       "$ssm rope.dimension_sections=[2,3,3,0] attention.key_length=32 "
       "attention.value_length=32 rope.dimension_count=16 "
       "attention.recurrent_layers=[1,1,1,0,1,1,1,0,0] nextn_predict_layers=1"},
      {"qwen35moe_nextn", "qwen35moe", 9,
       "$moe $ssm expert_shared_feed_forward_length=48 "
       "rope.dimension_sections=[2,3,3,0] attention.key_length=32 "
       "attention.value_length=32 rope.dimension_count=16 "
       "attention.recurrent_layers=[1,1,1,0,1,1,1,0,0] nextn_predict_layers=1"},
      {"cohere2moe_nextn", "cohere2moe", 7,
       "$moe attention.sliding_window=8 logit_scale=0.5 "
       "leading_dense_block_count=1 expert_gating_func=2 "
       "attention.sliding_window_pattern=[1,1,1,0,1,1,0] nextn_predict_layers=1"},
      {"mimo2_nextn", "mimo2", 7,
       "$moe attention.sliding_window=8 "
       "attention.sliding_window_pattern=[1,1,0,1,1,0,1] expert_gating_func=2 "
       "nextn_predict_layers=1"},
      {"hy_v3_nextn", "hy_v3", 7,
       "$moe leading_dense_block_count=1 expert_shared_count=1 nextn_predict_layers=1"},
      {"step35_nextn", "step35", 7,
       "$moe attention.sliding_window=8 "
       "attention.sliding_window_pattern=[1,1,0,1,1,0,1] "
       "attention.head_count=[4,4,4,4,4,4,4] attention.head_count_kv=[2,2,2,2,2,2,2] "
       "expert_shared_count=1 leading_dense_block_count=1 nextn_predict_layers=1"},
      {"exaone4_nextn", "exaone4", 7, "nextn_predict_layers=1",
       "nextn.embed_tokens nextn.shared_head_head"},
      {"exaone_moe_nextn", "exaone-moe", 7,
       "$moe attention.sliding_window=8 leading_dense_block_count=2 "
       "expert_shared_count=1 expert_gating_func=2 nextn_predict_layers=1",
       "rope_freqs"},
      {"bailingmoe2_nextn", "bailingmoe2", 7,
       "$moe expert_shared_count=1 leading_dense_block_count=2 "
       "expert_weights_scale=1.0 expert_gating_func=2 nextn_predict_layers=1"},
      {"nemotron_h_moe_nextn", "nemotron_h_moe", 9,
       "$ssm $moe expert_shared_count=1 expert_shared_feed_forward_length=48 "
       "attention.head_count_kv=[0,2,0,0,2,0,0,2,2] "
       "feed_forward_length=[0,0,96,0,0,96,0,0,96] expert_weights_scale=1.0 nextn_predict_layers=1",
       "nextn.embed_tokens nextn.shared_head_head"},
      // Other models that are taken for a special one by their number of layers and their
      // vocabulary.
      {"deepseek2_giga", "deepseek2", 48,
       "$moe expert_shared_count=1 leading_dense_block_count=2 "
       "attention.kv_lora_rank=32 attention.key_length=40 "
       "attention.value_length=32 attention.key_length_mla=24 "
       "attention.value_length_mla=16 rope.dimension_count=8 "
       "attention.head_count_kv=1 embedding_length=32 vocab_size=128256"},
      {"deepseek2_glm_lite", "deepseek2", 47,
       "$moe expert_shared_count=1 leading_dense_block_count=2 "
       "attention.q_lora_rank=24 attention.kv_lora_rank=32 attention.key_length=40 "
       "attention.value_length=32 attention.key_length_mla=24 "
       "attention.value_length_mla=16 rope.dimension_count=8 "
       "attention.head_count_kv=1 embedding_length=32 vocab_size=154880"},
      {"minicpm_scaled", "minicpm", 6, "residual_scale=0.4 embedding_scale=6.0 logit_scale=2.0"},
  };
  return zoo;
}

}  // namespace strata::testing
