#include "node/openai_request.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/random/random.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "node/openai_error.h"
#include "node/openai_tools.h"

namespace strata {
namespace {

using Json = nlohmann::json;

constexpr uint32_t kCompletionTokens = 16;  // where a completion does not say
constexpr uint32_t kTokensMax = 1u << 24;

absl::StatusOr<Json> ParseJson(absl::string_view body) {
  // Asked before the tree is made: a deep one takes the stack when it is copied or destroyed, and
  // one of many small values takes far more memory than its text.
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
  Json json = Json::parse(body.begin(), body.end(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    return absl::InvalidArgumentError("the body is no JSON in UTF-8");
  }
  if (!json.is_object()) return absl::InvalidArgumentError("the body is no JSON object");
  return json;
}

// Reads fields of one object; the first thing that is wrong stays.
class Fields {
 public:
  explicit Fields(const Json& json) : json_(json) {}

  const Json& json() const { return json_; }
  const absl::Status& status() const { return status_; }
  void Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  void Wrong(absl::string_view name, absl::string_view words) { Fail(BadParam(name, words)); }

  // Null where it is not there, or null.
  const Json* Find(const char* name) const {
    const auto field = json_.find(name);
    return field == json_.end() || field->is_null() ? nullptr : &*field;
  }
  std::optional<bool> Bool(const char* name) {
    const Json* field = Find(name);
    if (field == nullptr) return std::nullopt;
    if (field->is_boolean()) return field->get<bool>();
    Wrong(name, "wants true or false");
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
    Wrong(name, absl::StrCat("wants a number from ", range.low, " to ", range.high));
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
    Wrong(name, absl::StrCat("wants a whole number from ", static_cast<int64_t>(range.low), " to ",
                             static_cast<int64_t>(range.high)));
    return std::nullopt;
  }
  std::optional<std::string> Text(const char* name) {
    const Json* field = Find(name);
    if (field == nullptr) return std::nullopt;
    if (field->is_string()) return field->get<std::string>();
    Wrong(name, "wants a string");
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
    fields->Wrong("seed", "wants a whole number");
  }
}

void ReadLogitBias(Fields* fields, wire::SamplerSettings* sampler) {
  const Json* biases = fields->Find("logit_bias");
  if (biases == nullptr) return;
  if (!biases->is_object()) {
    fields->Wrong("logit_bias", "wants an object of token ids and numbers");
    return;
  }
  if (biases->size() > kApiLogitBiasMax) {
    fields->Wrong("logit_bias", absl::StrCat("may have ", kApiLogitBiasMax, " entries"));
    return;
  }
  for (const auto& [key, value] : biases->items()) {
    int32_t token = 0;
    const double bias = value.is_number() ? value.get<double>() : std::nan("");
    if (!absl::SimpleAtoi(key, &token) || token < 0 || !(bias >= -100 && bias <= 100)) {
      fields->Wrong("logit_bias", "wants token ids, each with a number from -100 to 100");
      return;
    }
    wire::LogitBias* entry = sampler->add_logit_bias();
    entry->set_token(token);
    entry->set_bias(static_cast<float>(bias));
  }
}

void ReadSampler(Fields* fields, wire::SamplerSettings* sampler) {
  constexpr double kMany = std::numeric_limits<int32_t>::max();
  const auto number = [&](const char* name, Fields::Range range, double otherwise) {
    return static_cast<float>(fields->Number(name, range).value_or(otherwise));
  };
  sampler->set_temperature(number("temperature", {0, 2}, 1));
  // 0 is none but the likeliest; to the sampler it would be off.
  sampler->set_top_p(std::max(number("top_p", {0, 1}, 1), std::numeric_limits<float>::min()));
  sampler->set_min_p(number("min_p", {0, 1}, 0));
  // -1 means all of them to some clients.
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
  ReadSeed(fields, sampler);
  ReadLogitBias(fields, sampler);
}

// The elements, or the one that there is. Bodies may be large: nothing is copied.
std::vector<const Json*> ListOf(const Json& json, bool several) {
  std::vector<const Json*> list;
  if (!several) {
    list.push_back(&json);
  } else {
    for (const Json& each : json) list.push_back(&each);
  }
  return list;
}

void ReadStops(Fields* fields, std::vector<std::string>* stops) {
  const Json* stop = fields->Find("stop");
  if (stop == nullptr) return;
  const std::vector<const Json*> list = ListOf(*stop, stop->is_array());
  if (list.size() > kApiStopsMax) {
    fields->Wrong("stop", absl::StrCat("may have ", kApiStopsMax, " strings"));
    return;
  }
  for (const Json* each : list) {
    const auto* text = each->get_ptr<const std::string*>();
    if (text == nullptr || text->empty() || text->size() > kApiStopBytesMax) {
      fields->Wrong("stop", absl::StrCat("wants a string or several, of 1 to ", kApiStopBytesMax,
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
    fields->Wrong("stream_options", "wants an object");
    return;
  }
  const auto usage = options->find("include_usage");
  if (usage == options->end() || usage->is_null()) return;
  if (!usage->is_boolean()) {
    fields->Wrong("stream_options.include_usage", "wants true or false");
    return;
  }
  request->include_usage = usage->get<bool>();
}

// What is there in OpenAI's API and not here: said, never passed over in silence.
void RefuseUnsupported(Fields* fields) {
  const auto is_empty = [](const Json& json) { return json.is_structured() && json.empty(); };
  for (const char* name : {"functions", "audio", "web_search_options", "suffix"}) {
    const Json* field = fields->Find(name);
    const bool empty = field == nullptr || is_empty(*field) || *field == "";
    if (!empty) fields->Fail(UnsupportedParam(name));
  }
  if (const Json* call = fields->Find("function_call");
      call != nullptr && *call != "none" && *call != "auto") {
    fields->Fail(UnsupportedParam("function_call"));
  }
  if (const Json* modalities = fields->Find("modalities");
      modalities != nullptr && *modalities != Json::array({"text"})) {
    fields->Fail(UnsupportedParam("modalities"));
  }
}

void ReadCommon(Fields* fields, absl::string_view body, ApiRequest* request) {
  request->model = fields->Text("model").value_or("");
  request->n = static_cast<uint32_t>(fields->Integer("n", {1, double{kApiChoicesMax}}).value_or(1));
  ReadStream(fields, request);
  ReadSampler(fields, &request->sampler);
  request->shift_context = fields->Bool("context_shift").value_or(false);
  constexpr double kKeepMax = std::numeric_limits<int32_t>::max();
  request->keep_tokens =
      static_cast<uint32_t>(fields->Integer("n_keep", {0, kKeepMax}).value_or(0));
  ReadStops(fields, &request->stops);
  RefuseUnsupported(fields);
  fields->Fail(ReadAnswerFormat(fields->json(), body, request));
}

std::optional<uint32_t> ReadTokensMax(Fields* fields, const char* name) {
  const auto tokens = fields->Integer(name, {1, kTokensMax});
  if (!tokens) return std::nullopt;
  return static_cast<uint32_t>(*tokens);
}

void WantLogprobs(ApiRequest* request, uint32_t top) {
  request->logprobs = true;
  request->sampler.set_report_logprob(true);
  request->sampler.set_logprobs(top);
}

bool IsTokens(const Json& json) {
  if (!json.is_array() || json.empty()) return false;
  for (const Json& token : json) {
    if (!token.is_number_integer() || token.get<int64_t>() < 0 ||
        token.get<int64_t>() > std::numeric_limits<int32_t>::max()) {
      return false;
    }
  }
  return true;
}

std::optional<ApiPrompt> PromptOf(const Json& json) {
  ApiPrompt prompt;
  if (json.is_string()) {
    prompt.text = json.get<std::string>();
  } else if (IsTokens(json)) {
    prompt.tokens = json.get<std::vector<int32_t>>();
  } else {
    return std::nullopt;
  }
  return prompt;
}

// `n` becomes how many are written; best_of how many of them are told.
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
      "wants a string, tokens, or an array of such, none of them empty";
  const Json* prompt = fields->Find("prompt");
  if (prompt == nullptr) {
    fields->Wrong("prompt", "is missing");
    return;
  }
  const bool several = prompt->is_array() && !IsTokens(*prompt);
  const std::vector<const Json*> list = ListOf(*prompt, several);
  if (list.size() * request->n > kApiChoicesMax) {
    fields->Wrong(several ? "prompt" : "n",
                  absl::StrCat("one request may ask for ", kApiChoicesMax, " texts"));
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

// A message's content is a string, or parts of which we read those of text.
std::optional<std::string> ContentOf(const Json& json, const std::string& name, Fields* fields) {
  if (json.is_null()) return "";
  if (json.is_string()) return json.get<std::string>();
  std::string text;
  const std::string wants = "wants a string or an array of text parts";
  if (!json.is_array()) {
    fields->Wrong(name, wants);
    return std::nullopt;
  }
  for (const Json& part : json) {
    if (!part.is_object() || !part.contains("type") || !part["type"].is_string()) {
      fields->Wrong(name, wants);
      return std::nullopt;
    }
    if (part["type"] != "text") {
      fields->Fail(UnsupportedParam(
          name, absl::StrCat("of type ", part["type"].get_ref<const std::string&>())));
      return std::nullopt;
    }
    if (!part.contains("text") || !part["text"].is_string()) {
      fields->Wrong(name, wants);
      return std::nullopt;
    }
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

void ReadMessages(Fields* fields, ApiRequest* request) {
  const Json* messages = fields->Find("messages");
  if (messages == nullptr) {
    fields->Wrong("messages", "is missing");
    return;
  }
  if (!messages->is_array() || messages->empty() || messages->size() > kApiMessagesMax) {
    fields->Wrong("messages", absl::StrCat("wants an array of 1 to ", kApiMessagesMax));
    return;
  }
  for (size_t i = 0; i < messages->size(); ++i) {
    const Json& each = (*messages)[i];
    const std::string name = absl::StrCat("messages[", i, "]");
    if (!each.is_object() || !each.contains("role") || !each["role"].is_string()) {
      fields->Wrong(name, "wants an object with a role");
      return;
    }
    ApiMessage message;
    message.role = each["role"].get<std::string>();
    if (message.role == "developer") message.role = "system";
    if (message.role != "system" && message.role != "user" && message.role != "assistant" &&
        message.role != "tool") {
      if (message.role == "function") {
        fields->Fail(UnsupportedParam(name + ".role", message.role));
      } else {
        fields->Wrong(name + ".role", "wants system, developer, user, assistant or tool");
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
      auto content = ContentOf(each["content"], name + ".content", fields);
      if (!content) return;
      message.content = *std::move(content);
    }
    if (each.contains("name") && each["name"].is_string()) {
      message.name = each["name"].get<std::string>();
    }
    request->messages.push_back(std::move(message));
  }
}

}  // namespace

absl::StatusOr<ApiRequest> ParseCompletion(absl::string_view body) {
  auto json = ParseJson(body);
  if (!json.ok()) return json.status();
  Fields fields(*json);
  ApiRequest request;
  ReadCommon(&fields, body, &request);
  request.tokens_max = ReadTokensMax(&fields, "max_tokens").value_or(kCompletionTokens);
  if (const auto top = fields.Integer("logprobs", {0, kApiTopLogprobsMax})) {
    WantLogprobs(&request, static_cast<uint32_t>(*top));
  }
  request.echo = fields.Bool("echo").value_or(false);
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
  auto json = ParseJson(body);
  if (!json.ok()) return json.status();
  Fields fields(*json);
  ApiRequest request;
  request.chat = true;
  ReadCommon(&fields, body, &request);
  request.tokens_max = ReadTokensMax(&fields, "max_completion_tokens");
  const auto older = ReadTokensMax(&fields, "max_tokens");
  if (!request.tokens_max) request.tokens_max = older;
  const bool logprobs = fields.Bool("logprobs").value_or(false);
  const auto top = fields.Integer("top_logprobs", {0, kApiTopLogprobsMax});
  if (top && !logprobs) fields.Wrong("top_logprobs", "wants logprobs to be true");
  if (logprobs) WantLogprobs(&request, static_cast<uint32_t>(top.value_or(0)));
  fields.Fail(ReadTools(*json, body, &request));
  if (fields.status().ok()) ReadMessages(&fields, &request);
  if (!fields.status().ok()) return fields.status();
  return request;
}

}  // namespace strata
