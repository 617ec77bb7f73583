#include "node/api/openai/openai_request.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "coordinator/request/request_status.h"
#include "nlohmann/json.hpp"
#include "node/api/field_reader.h"
#include "node/api/json_body.h"
#include "node/api/openai/openai_fields.h"
#include "node/api/openai/openai_thinking.h"
#include "node/api/openai/openai_tools.h"
#include "node/api/sampler_fields.h"
#include "node/api/tool_fields.h"

namespace strata {
namespace {

using Json = nlohmann::json;

constexpr uint32_t kCompletionTokens = 16;  // default of a completion's max_tokens

void ReadStream(FieldReader* fields, ApiRequest* request) {
  request->stream = fields->Bool("stream").value_or(false);
  request->with_progress = fields->Bool("return_progress").value_or(false);
  request->timings_in_pieces = fields->Bool("timings_per_token").value_or(false);
  const Json* options = fields->Find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) {
    fields->Wrong("stream_options", "must be an object");
    return;
  }
  FieldReader reader(*options, "stream_options.");
  request->include_usage = reader.Bool("include_usage").value_or(false);
  request->usage_in_pieces =
      reader.Bool("continuous_usage_stats").value_or(false) && request->include_usage;
  fields->Fail(reader.status());
}

void ReadStopTokens(FieldReader* fields, wire::SamplerSettings* sampler) {
  const Json* tokens = fields->Find("stop_token_ids");
  if (tokens == nullptr || (tokens->is_array() && tokens->empty())) return;
  const auto list = TokensOf(*tokens);
  if (!list || list->size() > kApiStopTokensMax) {
    fields->Wrong("stop_token_ids",
                  absl::StrCat("must be an array of at most ", kApiStopTokensMax, " token ids"));
    return;
  }
  sampler->mutable_stop_tokens()->Assign(list->begin(), list->end());
}

void CheckTokensMin(const ApiRequest& request, FieldReader* fields) {
  const bool has_form = !request.sampler.grammar().empty() || !request.answer_schema.empty() ||
                        request.tools.choice == ChatTools::Choice::kRequired;
  if (has_form && request.sampler.tokens_min() > 0) {
    fields->Wrong("min_tokens",
                  "cannot be combined with a grammar, a schema or a required tool call");
  }
}

void ReadCommon(FieldReader* fields, absl::string_view body, ApiRequest* request) {
  fields->Fail(CheckApiFields(fields->json(), request->chat ? ApiPath::kChat : ApiPath::kText));
  request->model = fields->Text("model").value_or("");
  request->n = static_cast<uint32_t>(fields->Integer("n", {1, double{kApiChoicesMax}}).value_or(1));
  ReadStream(fields, request);
  ReadCacheUse(fields, request);
  ReadSampler(fields, &request->sampler);
  ReadContextShift(fields, request);
  request->speculation = ReadSpeculation(fields);
  ReadStops(fields, &request->stops);
  ReadStopTokens(fields, &request->sampler);
  request->show_stop = fields->Bool("include_stop_str_in_output").value_or(false);
  if (!request->chat) request->tokens_max = kCompletionTokens;
  ReadTokensMax(fields, {"max_tokens", "max_completion_tokens", "n_predict"}, request);
  request->sampler.set_tokens_min(
      static_cast<uint32_t>(fields->Integer("min_tokens", {0, kApiOutputTokensMax}).value_or(0)));
  if (request->tokens_max && request->sampler.tokens_min() > *request->tokens_max) {
    fields->Wrong("min_tokens", "may not be more than max_tokens");
  }
  fields->Fail(ReadAnswerFormat(fields->json(), body, request));
  CheckTokensMin(*request, fields);
}

// llama-server's n_probs, and what vLLM tells of tokens. After the API's own logprobs.
void ReadTokenDetails(FieldReader* fields, ApiRequest* request) {
  const auto n_probs = fields->Integer("n_probs", {0, kApiTopLogprobsMax});
  if (n_probs.value_or(0) > 0 && !request->logprobs) {
    EnableLogprobs(request, static_cast<uint32_t>(*n_probs));
  }
  request->returns_tokens = fields->Bool("return_token_ids").value_or(false);
  request->tokens_as_ids = fields->Bool("return_tokens_as_token_ids").value_or(false);
  if (const auto top = fields->Integer("prompt_logprobs", {0, kApiTopLogprobsMax})) {
    if (request->stream) fields->Wrong("prompt_logprobs", "cannot be streamed");
    request->prompt_top = static_cast<uint32_t>(*top);
    request->sampler.set_prompt_logprobs(true);
    request->sampler.set_logprobs(std::max(request->sampler.logprobs(), *request->prompt_top));
  }
}

std::optional<ApiPrompt> PromptOf(const Json& json) {
  ApiPrompt prompt;
  if (json.is_string()) {
    prompt.text = json.get<std::string>();
  } else if (auto tokens = TokensOf(json)) {
    prompt.tokens = *std::move(tokens);
  } else {
    return std::nullopt;
  }
  return prompt;
}

// `n` becomes how many choices are generated, `best_of` how many of them are returned.
void ReadBestOf(FieldReader* fields, ApiRequest* request) {
  const auto best = fields->Integer("best_of", {1, double{kApiChoicesMax}});
  if (!best || *best == request->n) return;
  if (*best < request->n) {
    fields->Wrong("best_of", "may not be less than n");
  } else if (request->stream) {
    fields->Wrong("best_of", "more than n cannot be streamed: the best are known at the end");
  } else {
    request->best_of = std::exchange(request->n, static_cast<uint32_t>(*best));
    request->sampler.set_report_logprob(true);
  }
}

void ReadPrompts(FieldReader* fields, ApiRequest* request) {
  constexpr absl::string_view kWants =
      "must be a string, token ids, or an array of these, none of them empty";
  const Json* prompt = fields->Find("prompt");
  if (prompt == nullptr) {
    fields->Wrong("prompt", "is missing");
    return;
  }
  const bool several = prompt->is_array() && !TokensOf(*prompt);
  const std::vector<const Json*> list = ListOf(*prompt, several);
  if (list.size() * request->n > kApiChoicesMax) {
    fields->Wrong(several ? "prompt" : "n",
                  absl::StrCat("one request may have at most ", kApiChoicesMax, " choices"));
    return;
  }
  for (const Json* each : list) {
    auto one = PromptOf(*each);
    if (!one) {
      fields->Wrong("prompt", kWants);
      return;
    }
    request->prompts.push_back(*std::move(one));
  }
  if (request->prompts.empty()) fields->Wrong("prompt", kWants);
}

// A message's content is a string, or an array of parts, of which only text parts are supported.
std::optional<std::string> ContentOf(const Json& json, const std::string& name,
                                     FieldReader* fields) {
  if (json.is_null()) return "";
  if (json.is_string()) return json.get<std::string>();
  std::string text;
  const std::string expected = "must be a string or an array of text parts";
  if (!json.is_array()) {
    fields->Wrong(name, expected);
    return std::nullopt;
  }
  for (const Json& part : json) {
    if (!part.is_object() || !part.contains("type") || !part["type"].is_string()) {
      fields->Wrong(name, expected);
      return std::nullopt;
    }
    if (IsThoughtPart(part)) continue;  // ThoughtOf()
    const bool is_refusal = part["type"] == "refusal";
    if (part["type"] != "text" && part["type"] != "input_text" && part["type"] != "output_text" &&
        !is_refusal) {
      fields->Fail(UnsupportedParam(
          name, absl::StrCat("of type ", part["type"].get_ref<const std::string&>())));
      return std::nullopt;
    }
    const std::string* words = TextMember(part, is_refusal ? "refusal" : "text");
    if (words == nullptr) {
      fields->Wrong(name, expected);
      return std::nullopt;
    }
    text += *words;
  }
  return text;
}

// A text that the answer is expected to repeat: {"type": "content", "content": …}.
void ReadPrediction(FieldReader* fields, ApiRequest* request) {
  const Json* prediction = fields->Find("prediction");
  if (prediction == nullptr) return;
  if (!prediction->is_object() || !prediction->contains("content") ||
      prediction->value("type", Json()) != "content") {
    fields->Wrong("prediction", R"(must be {"type": "content", "content": …})");
    return;
  }
  request->prediction =
      ContentOf((*prediction)["content"], "prediction.content", fields).value_or("");
}

// Neither a string nor parts.
bool IsPlainJson(const Json& content) {
  return content.is_object() || content.is_number() || content.is_boolean() ||
         (content.is_array() && std::any_of(content.begin(), content.end(), [](const Json& part) {
            return !part.is_object() || !part.contains("type");
          }));
}

void ReadMessages(FieldReader* fields, ApiRequest* request) {
  const Json* messages = fields->Find("messages");
  if (messages == nullptr) {
    fields->Wrong("messages", "is missing");
    return;
  }
  if (!messages->is_array() || messages->empty() || messages->size() > kApiMessagesMax) {
    fields->Wrong("messages",
                  absl::StrCat("must be an array of 1 to ", kApiMessagesMax, " messages"));
    return;
  }
  for (size_t i = 0; i < messages->size(); ++i) {
    const Json& each = (*messages)[i];
    const std::string name = absl::StrCat("messages[", i, "]");
    if (!each.is_object() || !each.contains("role") || !each["role"].is_string()) {
      fields->Wrong(name, "must be an object with a role");
      return;
    }
    ChatMessage message;
    message.role = each["role"].get<std::string>();
    if (message.role == "developer") message.role = "system";
    if (message.role == "function") message.role = "tool";
    if (message.role != "system" && message.role != "user" && message.role != "assistant" &&
        message.role != "tool") {
      fields->Wrong(name + ".role", "must be system, developer, user, assistant or tool");
      return;
    }
    if (absl::Status status = ReadCallsOf(each, name, &message); !status.ok()) {
      fields->Fail(std::move(status));
      return;
    }
    if (!each.contains("content") && message.role != "assistant") {
      fields->Wrong(name + ".content", "is missing");
      return;
    }
    if (each.contains("content")) {
      // Some clients send a tool's result as it is.
      const bool is_result = message.role == "tool" && IsPlainJson(each["content"]);
      auto content = is_result ? std::optional(each["content"].dump())
                               : ContentOf(each["content"], name + ".content", fields);
      if (!content) return;
      message.content = *std::move(content);
    }
    if (message.role == "assistant") message.reasoning = ThoughtOf(each);
    if (each.contains("name") && each["name"].is_string()) {
      message.name = each["name"].get<std::string>();
    }
    request->messages.push_back(std::move(message));
  }
  fields->Fail(MatchResults(&request->messages));
}

// vLLM's fields for the template.
void ReadTemplate(FieldReader* fields, ApiRequest* request) {
  const auto opening = fields->Bool("add_generation_prompt");
  request->ends_with_opening = opening.value_or(true);
  request->continues_last = fields->Bool("continue_final_message").value_or(false);
  if (request->continues_last && opening.value_or(false)) {
    fields->Wrong("continue_final_message", "and add_generation_prompt cannot both be true");
  }
  if (request->continues_last && !request->messages.empty() &&
      (request->messages.back().role != "assistant" || !request->messages.back().calls.empty())) {
    fields->Wrong("continue_final_message",
                  "needs a last message of the assistant, without tool calls");
  }
  Json variables = Json::object();
  if (const Json* documents = fields->Find("documents")) {
    if (!documents->is_array()) fields->Wrong("documents", "must be an array");
    if (!documents->empty()) variables["documents"] = *documents;
  }
  if (const Json* more = fields->Find("chat_template_kwargs")) {
    if (!more->is_object()) {
      fields->Wrong("chat_template_kwargs", "must be an object");
      return;
    }
    variables.update(*more);
  }
  if (!variables.empty()) request->template_variables = variables.dump();
}

}  // namespace

absl::StatusOr<ApiRequest> ParseCompletion(absl::string_view text) {
  const auto body = JsonBody::Parse(text);
  if (!body.ok()) return body.status();
  FieldReader fields(body->json());
  ApiRequest request;
  ReadCommon(&fields, body->text(), &request);
  if (const auto top = fields.Integer("logprobs", {0, kApiTopLogprobsMax})) {
    EnableLogprobs(&request, static_cast<uint32_t>(*top));
  }
  ReadTokenDetails(&fields, &request);
  ReadPrediction(&fields, &request);
  request.echo = fields.Bool("echo").value_or(false);
  request.no_special = !fields.Bool("add_special_tokens").value_or(true);
  ReadBestOf(&fields, &request);
  if (fields.status().ok()) ReadPrompts(&fields, &request);
  ReadSuffix(&fields, &request);
  const bool has_tokens = absl::c_any_of(
      request.prompts, [](const ApiPrompt& prompt) { return !prompt.tokens.empty(); });
  if (const auto last = fields.Integer("truncate_prompt_tokens", {-1, kApiOutputTokensMax})) {
    if (*last == 0) fields.Wrong("truncate_prompt_tokens", "must be -1, or 1 at least");
    if (request.infill) fields.Fail(UnsupportedParam("truncate_prompt_tokens", "with suffix"));
    request.prompt_tokens_max = static_cast<uint32_t>(std::max<int64_t>(*last, 0));
  }
  // They have the text of tokens, too.
  if (request.echo && (request.logprobs || has_tokens || request.prompt_tokens_max)) {
    request.sampler.set_prompt_logprobs(true);
  }
  if (request.echo && request.infill) fields.Fail(UnsupportedParam("echo", "with suffix"));
  if (!fields.status().ok()) return fields.status();
  return request;
}

absl::StatusOr<ApiRequest> ParseChat(absl::string_view text) {
  const auto body = JsonBody::Parse(text);
  if (!body.ok()) return body.status();
  const Json& json = body->json();
  FieldReader fields(json);
  ApiRequest request;
  request.chat = true;
  ReadCommon(&fields, body->text(), &request);
  const bool logprobs = fields.Bool("logprobs").value_or(false);
  const auto top = fields.Integer("top_logprobs", {0, kApiTopLogprobsMax});
  if (top && !logprobs) fields.Wrong("top_logprobs", "needs logprobs to be true");
  if (logprobs) EnableLogprobs(&request, static_cast<uint32_t>(top.value_or(0)));
  ReadTokenDetails(&fields, &request);
  fields.Fail(ReadTools(json, body->text(), &request));
  CheckTokensMin(request, &fields);
  if (fields.status().ok()) ReadMessages(&fields, &request);
  ReadPrediction(&fields, &request);
  if (fields.status().ok()) ReadTemplate(&fields, &request);
  if (fields.status().ok()) fields.Fail(ReadThinking(json, &request));
  if (!fields.status().ok()) return fields.status();
  return request;
}

}  // namespace strata
