#include "node/api/llama/llama_request.h"

#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/request/request_status.h"
#include "nlohmann/json.hpp"
#include "node/api/field_reader.h"
#include "node/api/json_body.h"
#include "node/api/openai/openai_embeddings.h"
#include "node/api/openai/openai_fields.h"
#include "node/api/openai/openai_request.h"
#include "node/api/openai/openai_tools.h"
#include "node/api/sampler_fields.h"

namespace strata {
namespace {

using Json = nlohmann::json;

constexpr int32_t kRepeatLastN = 64;
constexpr uint32_t kRandomSeed = std::numeric_limits<uint32_t>::max();

// llama-server's defaults where they are not OpenAI's.
void SetDefaults(Json* json) {
  const Json defaults = {{"temperature", 0.8}, {"top_k", 40}, {"top_p", 0.95}, {"min_p", 0.05}};
  for (const auto& [name, value] : defaults.items()) {
    if (Member(*json, name.c_str()) == nullptr) (*json)[name] = value;
  }
  if (const Json* seed = Member(*json, "seed");
      seed != nullptr && (*seed == -1 || *seed == kRandomSeed)) {
    json->erase("seed");
  }
}

// A string, tokens, or {"prompt_string": …}.
absl::StatusOr<ApiPrompt> PromptOf(const Json& json, const std::string& path) {
  ApiPrompt prompt;
  const Json* text = json.is_object() ? Member(json, "prompt_string") : &json;
  if (const Json* media = Member(json, "multimodal_data"); media != nullptr && !media->empty()) {
    return UnsupportedParam(path + ".multimodal_data");
  }
  if (text != nullptr && text->is_string()) {
    prompt.text = text->get<std::string>();
  } else if (auto tokens = TokensOf(json)) {
    prompt.tokens = *std::move(tokens);
  } else if (json.is_array() && !json.empty()) {
    bool is_mixed = true;
    for (const Json& each : json) is_mixed &= each.is_string() || each.is_number_integer();
    if (is_mixed) return UnsupportedParam(path, "of tokens and strings in one");
    return BadParam(path, "must be a string or token ids");
  } else {
    return BadParam(path, "must be a string or token ids");
  }
  return prompt;
}

// Strings in a list are prompts of their own; beside numbers they are parts of one.
bool IsList(const Json& prompt) {
  if (!prompt.is_array()) return false;
  for (const Json& each : prompt) {
    if (each.is_number()) return false;
  }
  return true;
}

absl::Status ReadPrompts(const Json& json, LlamaCompletion* completion) {
  ApiRequest& request = completion->request;
  const Json* prompt = Member(json, "prompt");
  if (prompt == nullptr) return BadParam("prompt", "is missing");
  const bool is_list = IsList(*prompt);
  const std::vector<const Json*> list = ListOf(*prompt, is_list);
  if (list.empty() || list.size() * request.n > kApiChoicesMax) {
    return BadParam("prompt",
                    absl::StrCat("must have 1 to ", kApiChoicesMax, " prompts, times n_cmpl"));
  }
  for (size_t i = 0; i < list.size(); ++i) {
    auto one = PromptOf(*list[i], is_list ? absl::StrCat("prompt[", i, "]") : "prompt");
    if (!one.ok()) return one.status();
    request.prompts.push_back(*std::move(one));
  }
  completion->is_list = list.size() * request.n > 1;
  return absl::OkStatus();
}

absl::StatusOr<LlamaCompletion> CompletionOf(JsonBody* body) {
  Json& json = body->json();
  SetDefaults(&json);
  FieldReader fields(json);
  LlamaCompletion completion;
  ApiRequest& request = completion.request;
  completion.n_probs =
      static_cast<uint32_t>(fields.Integer("n_probs", {0, kApiTopLogprobsMax}).value_or(0));
  completion.return_tokens = fields.Bool("return_tokens").value_or(false);
  for (const char* own : {"n_probs", "return_tokens"}) json.erase(own);  // not OpenAI's
  fields.Fail(CheckApiFields(json, ApiPath::kText));
  request.model = fields.Text("model").value_or("");
  request.stream = fields.Bool("stream").value_or(false);
  ReadCacheUse(&fields, &request);
  request.with_progress = fields.Bool("return_progress").value_or(false);
  request.timings_in_pieces = fields.Bool("timings_per_token").value_or(false);
  for (const char* name : {"n", "n_cmpl"}) {
    const auto n = fields.Integer(name, {1, double{kApiChoicesMax}});
    if (n) request.n = static_cast<uint32_t>(*n);
  }
  ReadSampler(&fields, &request.sampler);
  if (fields.Find("seed") == nullptr) {  // a client that reads it may be JavaScript
    request.sampler.set_seed(request.sampler.seed() % kRandomSeed);
  }
  if (fields.Find("repeat_last_n") == nullptr && request.sampler.penalty_last_n() < 0) {
    request.sampler.set_penalty_last_n(kRepeatLastN);
  }
  ReadStops(&fields, &request.stops);
  ReadTokensMax(&fields, {"max_tokens", "n_predict"}, &request);
  ReadContextShift(&fields, &request);
  request.speculation = ReadSpeculation(&fields);
  ReadSuffix(&fields, &request);
  request.parse_special = true;
  request.logprobs = true;  // pieces have their tokens
  if (completion.n_probs > 0) {
    request.sampler.set_report_logprob(true);
    request.sampler.set_logprobs(completion.n_probs);
  }
  fields.Fail(ReadAnswerFormat(json, body->text(), &request));
  if (fields.status().ok()) fields.Fail(ReadPrompts(json, &completion));
  if (!fields.status().ok()) return fields.status();
  return completion;
}

absl::Status ReadExtra(const Json& json, ApiInfill* infill) {
  if (!json.is_array()) return BadParam("input_extra", "must be an array");
  for (size_t i = 0; i < json.size(); ++i) {
    const std::string* text = TextMember(json[i], "text");
    if (text == nullptr) {
      return BadParam(absl::StrCat("input_extra[", i, "].text"), "must be a string");
    }
    const std::string* name = TextMember(json[i], "filename");
    infill->files.push_back({.name = name == nullptr ? "tmp" : *name, .text = *text});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LlamaCompletion> ParseLlamaCompletion(absl::string_view text) {
  auto body = JsonBody::Parse(text);
  return body.ok() ? CompletionOf(&*body) : body.status();
}

absl::StatusOr<LlamaCompletion> ParseLlamaInfill(absl::string_view text) {
  auto body = JsonBody::Parse(text);
  if (!body.ok()) return body.status();
  Json& json = body->json();
  FieldReader fields(json);
  ApiInfill infill;
  const auto suffix = fields.Text("input_suffix");
  if (!suffix) fields.Wrong("input_suffix", "is missing");
  const std::string prefix = fields.Text("input_prefix").value_or("");
  infill.suffix = suffix.value_or("");
  if (const Json* extra = fields.Find("input_extra")) {
    fields.Fail(ReadExtra(*extra, &infill));
  }
  const std::string prompt = fields.Text("prompt").value_or("");
  if (!fields.status().ok()) return fields.status();
  json["prompt"] = prefix + prompt;
  for (const char* own : {"input_prefix", "input_suffix", "input_extra"}) json.erase(own);
  auto completion = CompletionOf(&*body);
  if (completion.ok()) completion->request.infill = std::move(infill);
  return completion;
}

absl::StatusOr<ApiRequest> ParseLlamaTokenize(absl::string_view text) {
  const auto body = JsonBody::Parse(text);
  if (!body.ok()) return body.status();
  FieldReader fields(body->json());
  ApiRequest request;
  request.model = fields.Text("model").value_or("");
  request.parse_special = fields.Bool("parse_special").value_or(true);
  request.no_special = !fields.Bool("add_special").value_or(false);
  if (fields.Bool("with_pieces").value_or(false)) fields.Fail(UnsupportedParam("with_pieces"));
  auto content = fields.Text("content");
  if (!content && fields.Find("prompt") != nullptr) {  // vLLM's
    content = fields.Text("prompt");
    request.no_special = !fields.Bool("add_special_tokens").value_or(true);
  }
  if (!content && fields.Find("messages") != nullptr) return ParseChat(text);  // vLLM's
  if (!content) fields.Wrong("content", "is missing");
  if (!fields.status().ok()) return fields.status();
  request.prompts.push_back({.text = *content});
  return request;
}

absl::StatusOr<LlamaDetokenize> ParseLlamaDetokenize(absl::string_view text) {
  const auto body = JsonBody::Parse(text);
  if (!body.ok()) return body.status();
  FieldReader fields(body->json());
  LlamaDetokenize request = {.model = fields.Text("model").value_or("")};
  const Json* tokens = fields.Find("tokens");
  if (tokens == nullptr) {
    fields.Wrong("tokens", "is missing");
  } else if (auto list = TokensOf(*tokens)) {
    request.tokens = *std::move(list);
  } else if (*tokens != Json::array()) {
    fields.Wrong("tokens", "must be an array of token ids");
  }
  if (!fields.status().ok()) return fields.status();
  return request;
}

absl::StatusOr<EmbeddingRequest> ParseLlamaEmbedding(absl::string_view text) {
  const auto body = JsonBody::Parse(text);
  if (!body.ok()) return body.status();
  FieldReader fields(body->json());
  EmbeddingRequest request;
  request.model = fields.Text("model").value_or("");
  const char* name = fields.Find("input") == nullptr ? "content" : "input";
  ReadEmbeddingInputs(name, &fields, &request);
  if (!fields.status().ok()) return fields.status();
  return request;
}

std::string LlamaSettingsJson(const LlamaCompletion& completion) {
  const ApiRequest& request = completion.request;
  const wire::SamplerSettings& sampler = request.sampler;
  nlohmann::ordered_json json = {
      {"n_predict", -1},
      {"max_tokens", -1},
      {"seed", sampler.seed()},
      {"temperature", sampler.temperature()},
      {"top_k", sampler.top_k()},
      {"top_p", sampler.top_p()},
      {"min_p", sampler.min_p()},
      {"typical_p", sampler.typical_p()},
      {"top_n_sigma", -1},
      {"dynatemp_range", 0},
      {"dynatemp_exponent", 1},
      {"xtc_probability", sampler.xtc_probability()},
      {"xtc_threshold", sampler.xtc_threshold()},
      {"repeat_last_n", sampler.penalty_last_n()},
      {"repeat_penalty", 1},  // off
      {"presence_penalty", sampler.penalty_presence()},
      {"frequency_penalty", sampler.penalty_frequency()},
      {"dry_multiplier", sampler.dry_multiplier()},
      {"dry_base", sampler.dry_base()},
      {"dry_allowed_length", sampler.dry_allowed_length()},
      {"dry_penalty_last_n", sampler.dry_penalty_last_n()},
      {"dry_sequence_breakers", std::vector<std::string>(sampler.dry_sequence_breakers().begin(),
                                                         sampler.dry_sequence_breakers().end())},
      {"mirostat", sampler.mirostat()},
      {"mirostat_tau", sampler.mirostat_tau()},
      {"mirostat_eta", sampler.mirostat_eta()},
      {"ignore_eos", sampler.ignore_eog()},
      {"stop", request.stops},
      {"n_keep", static_cast<int32_t>(request.keep_tokens)},
      {"min_keep", 0},
      {"grammar", sampler.grammar()},
      {"samplers", {"penalties", "dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"}},
      {"n_probs", completion.n_probs},
      {"stream", request.stream}};
  if (sampler.penalty_repeat() != 0) json["repeat_penalty"] = sampler.penalty_repeat();
  for (const char* name : {"n_predict", "max_tokens"}) {
    if (request.tokens_max) json[name] = *request.tokens_max;
  }
  return json.dump();
}

}  // namespace strata
