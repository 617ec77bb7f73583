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
      {"best_of", kKept, "[]", false, true},
      {"echo", kKept, "[]", false, true},
      {"frequency_penalty", kKept},
      {"logit_bias", kKept},
      {"logprobs", kKept},
      {"max_completion_tokens", kKept},
      {"max_tokens", kKept},
      {"messages", kKept, "[]", true, false},
      {"model", kKept},
      {"n", kKept},
      {"parallel_tool_calls", kKept, "[]", true, false},
      {"presence_penalty", kKept},
      {"prompt", kKept, "[]", false, true},
      {"response_format", kKept},
      {"seed", kKept},
      {"stop", kKept},
      {"stream", kKept},
      {"stream_options", kKept},
      {"temperature", kKept},
      {"tool_choice", kKept, "[]", true, false},
      {"tools", kKept, "[]", true, false},
      {"top_logprobs", kKept, "[]", true, false},
      {"top_p", kKept},
      // llama.cpp's.
      {"context_shift", kKept},
      {"dry_allowed_length", kKept},
      {"dry_base", kKept},
      {"dry_multiplier", kKept},
      {"dry_penalty_last_n", kKept},
      {"dry_sequence_breakers", kKept},
      {"grammar", kKept},
      {"ignore_eos", kKept},
      {"json_schema", kKept},
      {"min_p", kKept},
      {"mirostat", kKept},
      {"mirostat_eta", kKept},
      {"mirostat_tau", kKept},
      {"n_keep", kKept},
      {"n_predict", kKept},
      {"repeat_last_n", kKept},
      {"repeat_penalty", kKept},
      {"top_k", kKept},
      {"typical_p", kKept},
      {"xtc_probability", kKept},
      {"xtc_threshold", kKept},
      // vLLM's.
      {"add_special_tokens", kKept, "[]", false, true},
      {"add_generation_prompt", kKept, "[]", true, false},
      {"chat_template_kwargs", kKept, "[]", true, false},
      {"continue_final_message", kKept, "[]", true, false},
      {"guided_choice", kKept},
      {"guided_grammar", kKept},
      {"guided_json", kKept},
      {"include_stop_str_in_output", kKept},
      {"min_tokens", kKept},
      {"repetition_penalty", kKept},
      {"stop_token_ids", kKept},
      {"structured_outputs", kKept},

      // OpenAI's.
      {"audio", kRefused},
      {"function_call", kRefused, R"(["none","auto"])"},
      {"functions", kRefused},
      {"modalities", kRefused, R"([["text"]])"},
      {"suffix", kRefused},
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
      {"n_probs", kRefused, "[0]"},
      {"post_sampling_probs", kRefused, "[false]"},
      {"reasoning_format", kRefused, R"(["none","auto"])"},
      {"response_fields", kRefused},
      {"return_progress", kRefused, "[false]"},
      {"return_tokens", kRefused, "[false]"},
      {"samplers", kRefused, kSamplers},
      {"t_max_predict_ms", kRefused, "[-1,0]"},
      {"t_max_prompt_ms", kRefused, "[-1,0]"},
      {"thinking_forced_open", kRefused, "[false]"},
      {"timings_per_token", kRefused, "[false]"},
      {"top_n_sigma", kRefused, "[-1,0]"},
      // vLLM's and SGLang's.
      {"add_special_tokens", kRefused, "[false]", true, false},
      {"allowed_token_ids", kRefused},
      {"bad_words", kRefused},
      {"cache_salt", kRefused},
      {"chat_template", kRefused},
      {"documents", kRefused},
      {"ebnf", kRefused},
      {"echo", kRefused, "[false]", true, false},
      {"guided_regex", kRefused},
      {"guided_whitespace_pattern", kRefused},
      {"include_reasoning", kRefused, "[true]"},
      {"kv_transfer_params", kRefused},
      {"logits_processors", kRefused},
      {"mm_processor_kwargs", kRefused},
      {"prompt_embeds", kRefused},
      {"prompt_logprobs", kRefused},
      {"regex", kRefused},
      {"return_token_ids", kRefused, "[false]"},
      {"return_tokens_as_token_ids", kRefused, "[false]"},
      {"skip_special_tokens", kRefused, "[true]"},
      {"stop_regex", kRefused},
      {"structural_tag", kRefused},
      {"thinking_token_budget", kRefused},
      {"truncate_prompt_tokens", kRefused},
      {"use_beam_search", kRefused, "[false]"},
      {"vllm_xargs", kRefused},

      {"cache_prompt", kNoEffect},  // prompts are always cached
      {"dynatemp_exponent", kNoEffect},
      {"early_stopping", kNoEffect},  // these two are of beam search
      {"length_penalty", kNoEffect},
      {"guided_decoding_backend", kNoEffect},
      {"id_slot", kNoEffect},
      {"metadata", kNoEffect},
      {"n_cache_reuse", kNoEffect},
      {"n_discard", kNoEffect},
      {"prediction", kNoEffect},  // only makes others faster
      {"priority", kNoEffect},
      {"prompt_cache_key", kNoEffect},
      {"prompt_cache_retention", kNoEffect},
      // Many clients always send it. Models think as much as their templates have them.
      {"reasoning_effort", kNoEffect},
      {"request_id", kNoEffect},
      {"safety_identifier", kNoEffect},
      {"service_tier", kNoEffect},
      {"spaces_between_special_tokens", kNoEffect},
      {"store", kNoEffect},
      {"user", kNoEffect},
  };
}

bool AsksForNothing(const Json& value, absl::string_view neutral) {
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
    if (found == body.end() || AsksForNothing(*found, field.neutral)) continue;
    return UnsupportedParam(field.name);
  }
  return absl::OkStatus();
}

}  // namespace strata
