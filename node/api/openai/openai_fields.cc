#include "node/api/openai/openai_fields.h"

#include <algorithm>

#include "coordinator/request/request_status.h"
#include "nlohmann/json.hpp"

namespace strata {
namespace {

using Json = nlohmann::json;
using enum ApiFate;

// llama.cpp's own order, which is ours.
constexpr absl::string_view kSamplers =
    R"([["penalties","dry","top_n_sigma","top_k","typ_p","top_p","min_p","xtc","temperature"],
        ["penalties","dry","top_k","typ_p","top_p","min_p","xtc","temperature"],
        ["dry","top_k","typ_p","top_p","min_p","xtc","temperature"]])";

std::vector<ApiField> MakeFields() {
  return {
      // OpenAI's.
      {"best_of", kSupported, "[]", false, true},
      {"echo", kSupported, "[]", false, true},
      {"suffix", kSupported, "[]", false, true},
      {"frequency_penalty", kSupported},
      {"function_call", kSupported, "[]", true, false},
      {"functions", kSupported, "[]", true, false},
      {"logit_bias", kSupported},
      {"logprobs", kSupported},
      {"max_completion_tokens", kSupported},
      {"max_tokens", kSupported},
      {"messages", kSupported, "[]", true, false},
      {"model", kSupported},
      {"n", kSupported},
      {"parallel_tool_calls", kSupported, "[]", true, false},
      {"prediction", kSupported},
      {"presence_penalty", kSupported},
      {"prompt", kSupported, "[]", false, true},
      {"reasoning_effort", kSupported, "[]", true, false},
      {"response_format", kSupported},
      {"seed", kSupported},
      {"stop", kSupported},
      {"stream", kSupported},
      {"stream_options", kSupported},
      {"temperature", kSupported},
      {"tool_choice", kSupported, "[]", true, false},
      {"tools", kSupported, "[]", true, false},
      {"top_logprobs", kSupported, "[]", true, false},
      {"top_p", kSupported},
      // llama.cpp's.
      {"context_shift", kSupported},
      {"dry_allowed_length", kSupported},
      {"dry_base", kSupported},
      {"dry_multiplier", kSupported},
      {"dry_penalty_last_n", kSupported},
      {"dry_sequence_breakers", kSupported},
      {"grammar", kSupported},
      {"ignore_eos", kSupported},
      {"cache_prompt", kSupported},
      {"json_schema", kSupported},
      {"min_p", kSupported},
      {"mirostat", kSupported},
      {"mirostat_eta", kSupported},
      {"mirostat_tau", kSupported},
      {"n_keep", kSupported},
      {"n_predict", kSupported},
      {"n_probs", kSupported},
      {"reasoning_budget", kSupported, "[]", true, false},
      {"reasoning_format", kSupported, "[]", true, false},
      {"repeat_last_n", kSupported},
      {"return_progress", kSupported},
      {"timings_per_token", kSupported},
      {"repeat_penalty", kSupported},
      {"top_k", kSupported},
      {"typical_p", kSupported},
      {"xtc_probability", kSupported},
      {"xtc_threshold", kSupported},
      // Strata's.
      {"speculate", kSupported},
      // vLLM's.
      {"cache_salt", kSupported},
      {"add_special_tokens", kSupported, "[]", false, true},
      {"add_generation_prompt", kSupported, "[]", true, false},
      {"chat_template_kwargs", kSupported, "[]", true, false},
      {"continue_final_message", kSupported, "[]", true, false},
      {"documents", kSupported, "[]", true, false},
      {"guided_choice", kSupported},
      {"guided_grammar", kSupported},
      {"guided_json", kSupported},
      {"guided_regex", kSupported},
      {"include_reasoning", kSupported, "[]", true, false},
      {"include_stop_str_in_output", kSupported},
      {"min_tokens", kSupported},
      {"prompt_logprobs", kSupported},
      {"regex", kSupported},
      {"repetition_penalty", kSupported},
      {"return_token_ids", kSupported},
      {"return_tokens_as_token_ids", kSupported},
      {"stop_token_ids", kSupported},
      {"structured_outputs", kSupported},
      {"truncate_prompt_tokens", kSupported, "[]", false, true},
      // Ollama's.
      {"format", kSupported},
      {"thinking_token_budget", kSupported, "[]", true, false},
      // Those of OpenRouter, Anthropic, Ollama and DashScope.
      {"enable_thinking", kSupported, "[]", true, false},
      {"reasoning", kSupported, "[]", true, false},
      {"think", kSupported, "[]", true, false},
      {"thinking", kSupported, "[]", true, false},
      {"thinking_budget", kSupported, "[]", true, false},
      {"thinking_budget_tokens", kSupported, "[]", true, false},

      // OpenAI's.
      {"audio", kRefused},
      {"modalities", kRefused, R"([["text"]])"},
      {"verbosity", kRefused, R"(["medium"])"},
      {"web_search_options", kRefused},
      // llama.cpp's.
      {"adaptive_target", kRefused, "[-1]"},
      {"dynatemp_range", kRefused, "[0]"},
      {"grammar_lazy", kRefused, "[false]"},
      {"grammar_triggers", kRefused},
      {"image_data", kRefused},
      {"lora", kRefused},
      {"min_keep", kRefused, "[0,1]"},
      {"n_indent", kRefused, "[0]"},
      {"post_sampling_probs", kRefused, "[false]"},
      {"response_fields", kRefused},
      {"samplers", kRefused, kSamplers},
      {"t_max_predict_ms", kRefused, "[-1,0]"},
      {"t_max_prompt_ms", kRefused, "[-1,0]"},
      {"thinking_forced_open", kRefused, "[false]"},
      {"top_n_sigma", kRefused, "[-1,0]"},
      // vLLM's and SGLang's.
      {"add_special_tokens", kRefused, "[false]", true, false},
      {"allowed_token_ids", kRefused},
      {"bad_words", kRefused},
      {"chat_template", kRefused},
      {"ebnf", kRefused},
      {"echo", kRefused, "[false]", true, false},
      {"suffix", kRefused, "[]", true, false},
      {"guided_whitespace_pattern", kRefused},
      {"kv_transfer_params", kRefused},
      {"logits_processors", kRefused},
      {"mm_processor_kwargs", kRefused},
      {"prompt_embeds", kRefused},
      {"skip_special_tokens", kRefused, "[true]"},
      {"stop_regex", kRefused},
      {"structural_tag", kRefused},
      {"truncate_prompt_tokens", kRefused, "[]", true, false},
      {"use_beam_search", kRefused, "[false]"},
      {"vllm_xargs", kRefused},

      {"dynatemp_exponent", kNoEffect},
      {"early_stopping", kNoEffect},  // this and the next belong to beam search
      {"length_penalty", kNoEffect},
      {"guided_decoding_backend", kNoEffect},
      {"id_slot", kNoEffect},
      {"metadata", kNoEffect},
      {"n_cache_reuse", kNoEffect},
      {"n_discard", kNoEffect},
      {"priority", kNoEffect},
      {"prompt_cache_key", kNoEffect},
      {"prompt_cache_retention", kNoEffect},
      {"request_id", kNoEffect},
      {"return_tokens", kNoEffect},  // llama-server has them in its own responses alone
      {"safety_identifier", kNoEffect},
      {"service_tier", kNoEffect},
      {"spaces_between_special_tokens", kNoEffect},
      {"store", kNoEffect},
      {"user", kNoEffect},
  };
}

bool IsNeutral(const Json& value, absl::string_view neutral) {
  if (value.is_null() || value == "" || (value.is_structured() && value.empty())) return true;
  const Json values = Json::parse(neutral);
  return std::find(values.begin(), values.end(), value) != values.end();
}

}  // namespace

const std::vector<ApiField>& ApiFields() {
  static const auto* const fields = new std::vector<ApiField>(MakeFields());
  return *fields;
}

absl::Status CheckApiFields(const Json& body, ApiPath path) {
  for (const ApiField& field : ApiFields()) {
    if (field.fate != ApiFate::kRefused || !(path == ApiPath::kChat ? field.chat : field.text)) {
      continue;
    }
    const auto found = body.find(field.name);
    if (found == body.end() || IsNeutral(*found, field.neutral)) continue;
    return UnsupportedParam(field.name);
  }
  return absl::OkStatus();
}

}  // namespace strata
