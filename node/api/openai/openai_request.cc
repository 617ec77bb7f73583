#include "node/api/openai/openai_request.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/random/random.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/request/request_status.h"
#include "nlohmann/json.hpp"
#include "node/api/openai/openai_fields.h"
#include "node/api/openai/openai_thinking.h"
#include "node/api/openai/openai_tools.h"
#include "shard/sampling/sampler_settings.h"
#include "transport/base/utf8.h"

namespace strata {
namespace {

using Json = nlohmann::json;

constexpr uint32_t kCompletionTokens = 16;  // default of a completion's max_tokens
constexpr uint32_t kTokensMax = 1u << 24;
constexpr size_t kJsonErrorBytesMax = 300;

absl::StatusOr<Json> ParseJson(absl::string_view body) {
  // Checked before the tree is built: a deep tree overflows the stack when it is copied or
  // destroyed, and one of many small values takes far more memory than its text.
  int depth = 0;
  size_t values = 1;
  bool too_deep = false;
  bool quoted = false;
  for (size_t i = 0; i < body.size() && !too_deep && values <= kApiJsonValuesMax; ++i) {
    const char c = body[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
      continue;
    }
    if (c == '"') quoted = true;
    if (c == ',' || c == '{' || c == '[') ++values;
    if (c == '{' || c == '[') too_deep = ++depth > kApiJsonDepthMax;
    if (c == '}' || c == ']') --depth;
  }
  if (too_deep) {
    return absl::InvalidArgumentError(
        absl::StrCat("the body nests deeper than ", kApiJsonDepthMax, " levels"));
  }
  if (values > kApiJsonValuesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("the body has more than ", kApiJsonValuesMax, " values"));
  }
  if (absl::StripAsciiWhitespace(body).empty()) {
    return absl::InvalidArgumentError("the body is empty; it must be a JSON object");
  }
  try {
    Json json = Json::parse(body.begin(), body.end());
    if (!json.is_object()) return absl::InvalidArgumentError("the body is not a JSON object");
    return json;
  } catch (const Json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 9: …"
    absl::string_view words = error.what();
    words.remove_prefix(std::min(words.size(), words.find("] ") + 2));
    return absl::InvalidArgumentError(absl::StrCat("the body is not JSON in UTF-8: ",
                                                   ValidUtf8(words.substr(0, kJsonErrorBytesMax))));
  }
}

// Replaces lone surrogates by U+FFFD, as browsers do: JavaScript cuts strings inside of a character
// that has two escapes, and sends half of it, "\ud83d". JSON allows that, our parser does not.
// Empty: there is none in the body.
std::string WithoutLoneSurrogates(absl::string_view body) {
  std::string text;
  size_t high_at = 0;  // behind the escape of a high surrogate
  for (size_t i = body.find('\\'); i < body.size(); i = body.find('\\', i)) {
    uint32_t code = 0;
    const bool is_code = body.substr(i, 2) == "\\u" && i + 6 <= body.size() &&
                         absl::SimpleHexAtoi(body.substr(i + 2, 4), &code);
    const size_t end = is_code ? i + 6 : i + 2;
    const bool is_high = is_code && code >= 0xD800 && code < 0xDC00;
    const bool is_low = is_code && code >= 0xDC00 && code < 0xE000;
    uint32_t low = 0;
    const bool low_follows = is_high && body.substr(end, 2) == "\\u" && end + 6 <= body.size() &&
                             absl::SimpleHexAtoi(body.substr(end + 2, 4), &low) && low >= 0xDC00 &&
                             low < 0xE000;
    if ((is_high && !low_follows) || (is_low && (high_at == 0 || high_at != i))) {
      if (text.empty()) text = std::string(body);
      text.replace(i, 6, "\\ufffd");
    }
    high_at = low_follows ? end : 0;
    i = end;
  }
  return text;
}

// Reads fields of one object; keeps the first error.
class Fields {
 public:
  explicit Fields(const Json& json) : json_(json) {}

  const Json& json() const { return json_; }
  const absl::Status& status() const { return status_; }
  void Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  void Wrong(absl::string_view name, absl::string_view words) { Fail(BadParam(name, words)); }

  // Null where the field is missing or null.
  const Json* Find(const char* name) const {
    const auto field = json_.find(name);
    return field == json_.end() || field->is_null() ? nullptr : &*field;
  }
  std::optional<bool> Bool(const char* name) {
    const Json* field = Find(name);
    if (field == nullptr) return std::nullopt;
    if (field->is_boolean()) return field->get<bool>();
    Wrong(name, "must be true or false");
    return std::nullopt;
  }
  struct Range {
    double low, high;
  };
  std::optional<double> Number(const char* name, Range range) {
    const Json* field = Find(name);
    if (field == nullptr) return std::nullopt;
    const double value = field->is_number() ? field->get<double>() : std::nan("");
    if (value >= range.low && value <= range.high) return value;
    Wrong(name, absl::StrCat("must be a number from ", range.low, " to ", range.high));
    return std::nullopt;
  }
  std::optional<int64_t> Integer(const char* name, Range range) {
    const Json* field = Find(name);
    if (field == nullptr) return std::nullopt;
    // Some clients write 16.0.
    const double value = field->is_number() ? field->get<double>() : std::nan("");
    if (value >= range.low && value <= range.high && value == std::floor(value)) {
      return static_cast<int64_t>(value);
    }
    Wrong(name, absl::StrCat("must be a whole number from ", static_cast<int64_t>(range.low),
                             " to ", static_cast<int64_t>(range.high)));
    return std::nullopt;
  }
  std::optional<std::string> Text(const char* name) {
    const Json* field = Find(name);
    if (field == nullptr) return std::nullopt;
    if (field->is_string()) return field->get<std::string>();
    Wrong(name, "must be a string");
    return std::nullopt;
  }

 private:
  const Json& json_;
  absl::Status status_;
};

void ReadSeed(Fields* fields, wire::SamplerSettings* sampler) {
  const Json* seed = fields->Find("seed");
  if (seed == nullptr) {
    thread_local absl::BitGen random;
    sampler->set_seed(absl::Uniform<uint64_t>(random));
  } else if (seed->is_number_unsigned()) {
    sampler->set_seed(seed->get<uint64_t>());
  } else if (seed->is_number_integer()) {
    sampler->set_seed(static_cast<uint64_t>(seed->get<int64_t>()));
  } else {
    fields->Wrong("seed", "must be a whole number");
  }
}

// llama.cpp's form: [[15043, 1.0], [42, false]].
void ReadLogitBiasPairs(const Json& pairs, Fields* fields, wire::SamplerSettings* sampler) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  if (pairs.size() > kApiLogitBiasMax) {
    fields->Wrong("logit_bias", absl::StrCat("may have at most ", kApiLogitBiasMax, " entries"));
    return;
  }
  for (const Json& pair : pairs) {
    const bool is_pair = pair.is_array() && pair.size() == 2 && pair[0].is_number_integer() &&
                         pair[0].get<int64_t>() >= 0 &&
                         pair[0].get<int64_t>() <= std::numeric_limits<int32_t>::max();
    const double bias = is_pair && pair[1].is_number() ? pair[1].get<double>()
                        : is_pair && pair[1] == false  ? kNever
                                                       : std::nan("");
    if (!(bias >= -100 && bias <= 100) && bias != kNever) {
      fields->Wrong("logit_bias",
                    "must be pairs of a token id and a number from -100 to 100, or false");
      return;
    }
    wire::LogitBias* entry = sampler->add_logit_bias();
    entry->set_token(pair[0].get<int32_t>());
    entry->set_bias(static_cast<float>(bias));
  }
}

void ReadLogitBias(Fields* fields, wire::SamplerSettings* sampler) {
  const Json* biases = fields->Find("logit_bias");
  if (biases == nullptr) return;
  if (biases->is_array()) return ReadLogitBiasPairs(*biases, fields, sampler);
  if (!biases->is_object()) {
    fields->Wrong("logit_bias", "must be an object of token ids and numbers");
    return;
  }
  if (biases->size() > kApiLogitBiasMax) {
    fields->Wrong("logit_bias", absl::StrCat("may have at most ", kApiLogitBiasMax, " entries"));
    return;
  }
  for (const auto& [key, value] : biases->items()) {
    int32_t token = 0;
    const double bias = value.is_number() ? value.get<double>() : std::nan("");
    if (!absl::SimpleAtoi(key, &token) || token < 0 || !(bias >= -100 && bias <= 100)) {
      fields->Wrong("logit_bias", "must be token ids, each with a number from -100 to 100");
      return;
    }
    wire::LogitBias* entry = sampler->add_logit_bias();
    entry->set_token(token);
    entry->set_bias(static_cast<float>(bias));
  }
}

// llama.cpp's.
void ReadRareSettings(Fields* fields, wire::SamplerSettings* sampler) {
  constexpr double kMany = std::numeric_limits<int32_t>::max();
  const auto number = [&](const char* name, Fields::Range range, double otherwise) {
    return static_cast<float>(fields->Number(name, range).value_or(otherwise));
  };
  const auto whole = [&](const char* name, Fields::Range range, int64_t otherwise) {
    return static_cast<int32_t>(fields->Integer(name, range).value_or(otherwise));
  };
  sampler->set_typical_p(number("typical_p", {0, 1}, 1));
  sampler->set_xtc_probability(number("xtc_probability", {0, 1}, 0));
  sampler->set_xtc_threshold(number("xtc_threshold", {0, 1}, 0.1));
  sampler->set_mirostat(whole("mirostat", {0, 2}, 0));
  sampler->set_mirostat_tau(number("mirostat_tau", {0, 1000}, 5));
  sampler->set_mirostat_eta(number("mirostat_eta", {0, 1000}, 0.1));
  sampler->set_dry_multiplier(number("dry_multiplier", {0, 1000}, 0));
  const float base = number("dry_base", {0, 1000}, 1.75);
  sampler->set_dry_base(base < 1 ? 1.75f : base);  // as llama.cpp's server
  sampler->set_dry_allowed_length(whole("dry_allowed_length", {0, kMany}, 2));
  sampler->set_dry_penalty_last_n(whole("dry_penalty_last_n", {-1, kMany}, -1));
  const Json* breakers = fields->Find("dry_sequence_breakers");
  const Json otherwise = Json::array({"\n", ":", "\"", "*"});
  for (const Json& each : breakers == nullptr ? otherwise : *breakers) {
    const auto* text = each.get_ptr<const std::string*>();
    if (text == nullptr || text->empty() || text->size() > kApiStopBytesMax ||
        text->find('\0') != std::string::npos ||
        sampler->dry_sequence_breakers_size() == kDryBreakersMax) {
      fields->Wrong("dry_sequence_breakers",
                    absl::StrCat("must be an array of at most ", kDryBreakersMax, " strings"));
      return;
    }
    sampler->add_dry_sequence_breakers(*text);
  }
  if (sampler->dry_multiplier() == 0) sampler->clear_dry_sequence_breakers();
}

void ReadSampler(Fields* fields, wire::SamplerSettings* sampler) {
  constexpr double kMany = std::numeric_limits<int32_t>::max();
  const auto number = [&](const char* name, Fields::Range range, double otherwise) {
    return static_cast<float>(fields->Number(name, range).value_or(otherwise));
  };
  sampler->set_temperature(number("temperature", {0, 2}, 1));
  // 0 means the likeliest token only; to the sampler it would mean off.
  sampler->set_top_p(std::max(number("top_p", {0, 1}, 1), std::numeric_limits<float>::min()));
  sampler->set_min_p(number("min_p", {0, 1}, 0));
  // -1 means all tokens to some clients.
  const int64_t top_k = fields->Integer("top_k", {-1, kMany}).value_or(0);
  sampler->set_top_k(static_cast<int32_t>(std::max<int64_t>(top_k, 0)));
  sampler->set_penalty_presence(number("presence_penalty", {-2, 2}, 0));
  sampler->set_penalty_frequency(number("frequency_penalty", {-2, 2}, 0));
  const float repeat = number("repeat_penalty", {0, 10}, 0);
  sampler->set_penalty_repeat(number("repetition_penalty", {0, 10}, repeat));
  const bool penalties = sampler->penalty_presence() != 0 || sampler->penalty_frequency() != 0 ||
                         (sampler->penalty_repeat() != 0 && sampler->penalty_repeat() != 1);
  const int64_t last_n = fields->Integer("repeat_last_n", {-1, kMany}).value_or(penalties ? -1 : 0);
  sampler->set_penalty_last_n(static_cast<int32_t>(last_n));
  sampler->set_ignore_eog(fields->Bool("ignore_eos").value_or(false));
  ReadRareSettings(fields, sampler);
  ReadSeed(fields, sampler);
  ReadLogitBias(fields, sampler);
}

// The elements, or the one value. Bodies may be large: nothing is copied.
std::vector<const Json*> ListOf(const Json& json, bool several) {
  std::vector<const Json*> list;
  if (!several) {
    list.push_back(&json);
  } else {
    for (const Json& each : json) list.push_back(&each);
  }
  return list;
}

// Of one token at least.
std::optional<std::vector<int32_t>> TokensOf(const Json& json) {
  if (!json.is_array() || json.empty()) return std::nullopt;
  for (const Json& token : json) {
    if (!token.is_number_integer() || token.get<int64_t>() < 0 ||
        token.get<int64_t>() > std::numeric_limits<int32_t>::max()) {
      return std::nullopt;
    }
  }
  return json.get<std::vector<int32_t>>();
}

// The last of these fields counts. -1 is llama.cpp's for as many tokens as there is room for.
void ReadTokensMax(Fields* fields, ApiRequest* request) {
  if (!request->chat) request->tokens_max = kCompletionTokens;
  for (const char* name : {"max_tokens", "max_completion_tokens", "n_predict"}) {
    const auto tokens = fields->Integer(name, {-2, kTokensMax});
    if (!tokens) continue;
    request->tokens_max.reset();
    if (*tokens >= 0) request->tokens_max = static_cast<uint32_t>(*tokens);
  }
}

void ReadStops(Fields* fields, std::vector<std::string>* stops) {
  const Json* stop = fields->Find("stop");
  if (stop == nullptr) return;
  const std::vector<const Json*> list = ListOf(*stop, stop->is_array());
  if (list.size() > kApiStopsMax) {
    fields->Wrong("stop", absl::StrCat("may have at most ", kApiStopsMax, " strings"));
    return;
  }
  for (const Json* each : list) {
    const auto* text = each->get_ptr<const std::string*>();
    if (text == nullptr || text->empty() || text->size() > kApiStopBytesMax) {
      fields->Wrong("stop", absl::StrCat("must be a string or several, of 1 to ", kApiStopBytesMax,
                                         " bytes each"));
      return;
    }
    stops->push_back(*text);
  }
}

void ReadStream(Fields* fields, ApiRequest* request) {
  request->stream = fields->Bool("stream").value_or(false);
  const Json* options = fields->Find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) {
    fields->Wrong("stream_options", "must be an object");
    return;
  }
  if (const auto often = options->find("continuous_usage_stats");
      often != options->end() && !often->is_null() && *often != false) {
    fields->Fail(UnsupportedParam("stream_options.continuous_usage_stats"));
  }
  const auto usage = options->find("include_usage");
  if (usage == options->end() || usage->is_null()) return;
  if (!usage->is_boolean()) {
    fields->Wrong("stream_options.include_usage", "must be true or false");
    return;
  }
  request->include_usage = usage->get<bool>();
}

void ReadStopTokens(Fields* fields, wire::SamplerSettings* sampler) {
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

void CheckTokensMin(const ApiRequest& request, Fields* fields) {
  const bool has_form = !request.sampler.grammar().empty() || !request.answer_schema.empty() ||
                        request.tools.choice == ChatTools::Choice::kRequired;
  if (has_form && request.sampler.tokens_min() > 0) {
    fields->Wrong("min_tokens",
                  "cannot be combined with a grammar, a schema or a required tool call");
  }
}

void ReadCommon(Fields* fields, absl::string_view body, ApiRequest* request) {
  fields->Fail(CheckApiFields(fields->json(), request->chat ? ApiPath::kChat : ApiPath::kText));
  request->model = fields->Text("model").value_or("");
  request->n = static_cast<uint32_t>(fields->Integer("n", {1, double{kApiChoicesMax}}).value_or(1));
  ReadStream(fields, request);
  ReadSampler(fields, &request->sampler);
  request->shift_context = fields->Bool("context_shift").value_or(false);
  constexpr double kKeepMax = std::numeric_limits<int32_t>::max();
  request->keep_tokens =
      static_cast<uint32_t>(fields->Integer("n_keep", {-1, kKeepMax}).value_or(0));  // -1: all
  ReadStops(fields, &request->stops);
  ReadStopTokens(fields, &request->sampler);
  request->show_stop = fields->Bool("include_stop_str_in_output").value_or(false);
  ReadTokensMax(fields, request);
  request->sampler.set_tokens_min(
      static_cast<uint32_t>(fields->Integer("min_tokens", {0, kTokensMax}).value_or(0)));
  if (request->tokens_max && request->sampler.tokens_min() > *request->tokens_max) {
    fields->Wrong("min_tokens", "may not be more than max_tokens");
  }
  fields->Fail(ReadAnswerFormat(fields->json(), body, request));
  CheckTokensMin(*request, fields);
}

void EnableLogprobs(ApiRequest* request, uint32_t top) {
  request->logprobs = true;
  request->sampler.set_report_logprob(true);
  request->sampler.set_logprobs(top);
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
void ReadBestOf(Fields* fields, ApiRequest* request) {
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

void ReadPrompts(Fields* fields, ApiRequest* request) {
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
std::optional<std::string> ContentOf(const Json& json, const std::string& name, Fields* fields) {
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
    if (part["type"] != "text") {
      fields->Fail(UnsupportedParam(
          name, absl::StrCat("of type ", part["type"].get_ref<const std::string&>())));
      return std::nullopt;
    }
    if (!part.contains("text") || !part["text"].is_string()) {
      fields->Wrong(name, expected);
      return std::nullopt;
    }
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

// Neither a string nor parts.
bool IsPlainJson(const Json& content) {
  return content.is_object() || content.is_number() || content.is_boolean() ||
         (content.is_array() && std::any_of(content.begin(), content.end(), [](const Json& part) {
            return !part.is_object() || !part.contains("type");
          }));
}

void ReadMessages(Fields* fields, ApiRequest* request) {
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
    if (message.role != "system" && message.role != "user" && message.role != "assistant" &&
        message.role != "tool") {
      if (message.role == "function") {
        fields->Fail(UnsupportedParam(name + ".role", message.role));
      } else {
        fields->Wrong(name + ".role", "must be system, developer, user, assistant or tool");
      }
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
void ReadTemplate(Fields* fields, ApiRequest* request) {
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
  const Json* variables = fields->Find("chat_template_kwargs");
  if (variables == nullptr) return;
  if (!variables->is_object()) {
    fields->Wrong("chat_template_kwargs", "must be an object");
    return;
  }
  if (!variables->empty()) request->template_variables = variables->dump();
}

}  // namespace

absl::StatusOr<ApiRequest> ParseCompletion(absl::string_view body) {
  const std::string cleaned = WithoutLoneSurrogates(body);
  if (!cleaned.empty()) body = cleaned;
  auto json = ParseJson(body);
  if (!json.ok()) return json.status();
  Fields fields(*json);
  ApiRequest request;
  ReadCommon(&fields, body, &request);
  if (const auto top = fields.Integer("logprobs", {0, kApiTopLogprobsMax})) {
    EnableLogprobs(&request, static_cast<uint32_t>(*top));
  }
  request.echo = fields.Bool("echo").value_or(false);
  request.no_special = !fields.Bool("add_special_tokens").value_or(true);
  if (request.echo && request.logprobs) {
    fields.Fail(UnsupportedParam("echo", "with logprobs"));  // those of the prompt
  }
  ReadBestOf(&fields, &request);
  if (fields.status().ok()) ReadPrompts(&fields, &request);
  if (request.echo && std::any_of(request.prompts.begin(), request.prompts.end(),
                                  [](const ApiPrompt& prompt) { return !prompt.tokens.empty(); })) {
    fields.Fail(UnsupportedParam("echo", "of a prompt of tokens"));
  }
  if (!fields.status().ok()) return fields.status();
  return request;
}

absl::StatusOr<ApiRequest> ParseChat(absl::string_view body) {
  const std::string cleaned = WithoutLoneSurrogates(body);
  if (!cleaned.empty()) body = cleaned;
  auto json = ParseJson(body);
  if (!json.ok()) return json.status();
  Fields fields(*json);
  ApiRequest request;
  request.chat = true;
  ReadCommon(&fields, body, &request);
  const bool logprobs = fields.Bool("logprobs").value_or(false);
  const auto top = fields.Integer("top_logprobs", {0, kApiTopLogprobsMax});
  if (top && !logprobs) fields.Wrong("top_logprobs", "needs logprobs to be true");
  if (logprobs) EnableLogprobs(&request, static_cast<uint32_t>(top.value_or(0)));
  fields.Fail(ReadTools(*json, body, &request));
  CheckTokensMin(request, &fields);
  if (fields.status().ok()) ReadMessages(&fields, &request);
  if (fields.status().ok()) ReadTemplate(&fields, &request);
  if (fields.status().ok()) fields.Fail(ReadThinking(*json, &request));
  if (!fields.status().ok()) return fields.status();
  return request;
}

}  // namespace strata
