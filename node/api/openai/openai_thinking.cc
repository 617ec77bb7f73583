#include "node/api/openai/openai_thinking.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "coordinator/request/request_status.h"
#include "nlohmann/json.hpp"

namespace strata {
namespace {

using Json = nlohmann::json;

constexpr double kBudgetMax = 1 << 24;
constexpr absl::string_view kEfforts[] = {"none", "minimal", "low", "medium",
                                          "high", "xhigh",   "max"};

const Json* FieldOf(const Json& json, const char* name) {
  const auto found = json.find(name);
  return found == json.end() || found->is_null() || *found == "" ? nullptr : &*found;
}

// What the fields mean together; the last one that says something wins.
struct Thinking {
  std::optional<bool> on;
  std::optional<std::string> effort;
  std::optional<uint32_t> tokens_max;
};

absl::Status ReadSwitch(const Json& value, const std::string& path, Thinking* thinking) {
  if (!value.is_boolean()) return BadParam(path, "must be true or false");
  thinking->on = value.get<bool>();
  return absl::OkStatus();
}

absl::Status ReadEffort(const Json& value, const std::string& path, Thinking* thinking) {
  const auto* word = value.get_ptr<const std::string*>();
  if (word == nullptr ||
      std::find(std::begin(kEfforts), std::end(kEfforts), *word) == std::end(kEfforts)) {
    return BadParam(path,
                    R"(must be "none", "minimal", "low", "medium", "high", "xhigh" or "max")");
  }
  thinking->on = *word != "none";
  thinking->effort.reset();
  // Templates know the next one.
  if (*thinking->on) thinking->effort = *word == "minimal" ? "low" : *word;
  return absl::OkStatus();
}

// Below 0: no limit, as llama.cpp has it.
absl::Status ReadBudget(const Json& value, const std::string& path, Thinking* thinking) {
  const double tokens = value.is_number() ? value.get<double>() : std::nan("");
  if (!(tokens >= -1 && tokens <= kBudgetMax) || tokens != std::floor(tokens)) {
    return BadParam(path, absl::StrCat("must be a whole number of tokens, from -1, no limit, to ",
                                       static_cast<int64_t>(kBudgetMax)));
  }
  thinking->tokens_max.reset();
  if (tokens >= 0) thinking->tokens_max = static_cast<uint32_t>(tokens);
  thinking->on = tokens != 0;
  return absl::OkStatus();
}

// OpenRouter's and OpenAI's of Responses: {"effort", "enabled", "max_tokens", "exclude"}.
absl::Status ReadReasoning(const Json& json, ApiRequest* request, Thinking* thinking) {
  if (!json.is_object()) return BadParam("reasoning", "must be an object");
  absl::Status status;
  if (const Json* enabled = FieldOf(json, "enabled")) {
    status.Update(ReadSwitch(*enabled, "reasoning.enabled", thinking));
  }
  if (const Json* effort = FieldOf(json, "effort")) {
    status.Update(ReadEffort(*effort, "reasoning.effort", thinking));
  }
  if (const Json* tokens = FieldOf(json, "max_tokens")) {
    status.Update(ReadBudget(*tokens, "reasoning.max_tokens", thinking));
  }
  if (const Json* exclude = FieldOf(json, "exclude")) {
    if (!exclude->is_boolean()) return BadParam("reasoning.exclude", "must be true or false");
    request->shows_thoughts = !exclude->get<bool>();
  }
  return status;
}

// Anthropic's {"type": "enabled", "budget_tokens": 1024}; a plain switch elsewhere.
absl::Status ReadThinkingObject(const Json& json, Thinking* thinking) {
  if (json.is_boolean()) return ReadSwitch(json, "thinking", thinking);
  const Json* type = json.is_object() ? FieldOf(json, "type") : nullptr;
  if (type == nullptr ||
      (*type != "enabled" && *type != "disabled" && *type != "adaptive" && *type != "auto")) {
    return BadParam("thinking",
                    R"(must be true, false or {"type":"enabled"} or {"type":"disabled"})");
  }
  if (const Json* budget = FieldOf(json, "budget_tokens");
      budget != nullptr && *type == "enabled") {
    return ReadBudget(*budget, "thinking.budget_tokens", thinking);
  }
  if (*type == "enabled" || *type == "disabled") thinking->on = *type == "enabled";
  return absl::OkStatus();
}

absl::Status ReadFormat(const Json& json, ApiRequest* request) {
  if (const Json* format = FieldOf(json, "reasoning_format")) {
    if (*format != "none" && *format != "auto" && *format != "deepseek") {
      return BadParam("reasoning_format", R"(must be "none", "auto" or "deepseek")");
    }
    request->splits_thoughts = *format != "none";
  }
  if (const Json* shown = FieldOf(json, "include_reasoning")) {
    if (!shown->is_boolean()) return BadParam("include_reasoning", "must be true or false");
    request->shows_thoughts = shown->get<bool>();
  }
  return absl::OkStatus();
}

absl::Status ReadFields(const Json& json, ApiRequest* request, Thinking* thinking) {
  absl::Status status = ReadFormat(json, request);
  if (const Json* field = FieldOf(json, "enable_thinking")) {
    status.Update(ReadSwitch(*field, "enable_thinking", thinking));
  }
  if (const Json* field = FieldOf(json, "reasoning_effort")) {
    status.Update(ReadEffort(*field, "reasoning_effort", thinking));
  }
  if (const Json* field = FieldOf(json, "reasoning")) {
    status.Update(ReadReasoning(*field, request, thinking));
  }
  if (const Json* field = FieldOf(json, "think")) {  // Ollama's: a switch or an effort
    status.Update(field->is_boolean() ? ReadSwitch(*field, "think", thinking)
                                      : ReadEffort(*field, "think", thinking));
  }
  if (const Json* field = FieldOf(json, "thinking")) {
    status.Update(ReadThinkingObject(*field, thinking));
  }
  for (const char* name :
       {"thinking_budget", "thinking_token_budget", "thinking_budget_tokens", "reasoning_budget"}) {
    if (const Json* field = FieldOf(json, name)) status.Update(ReadBudget(*field, name, thinking));
  }
  return status;
}

}  // namespace

absl::Status ReadThinking(const Json& json, ApiRequest* request) {
  Thinking thinking;
  if (absl::Status status = ReadFields(json, request, &thinking); !status.ok()) return status;
  Json variables = Json::object();
  if (thinking.on) {
    // The names that templates have for it.
    variables["enable_thinking"] = variables["thinking"] = *thinking.on;
  }
  if (thinking.effort) {
    variables["reasoning_effort"] = variables["thinking_effort"] = *thinking.effort;
  }
  if (thinking.tokens_max) variables["thinking_budget"] = *thinking.tokens_max;
  request->thought_tokens_max = thinking.tokens_max;
  if (thinking.on == false) request->thought_tokens_max = 0;
  if (!request->template_variables.empty()) {
    const Json given = Json::parse(request->template_variables);
    variables.update(given);
    for (const char* name : {"enable_thinking", "thinking"}) {
      if (!thinking.on && given.contains(name) && given[name] == false) {
        request->thought_tokens_max = 0;
      }
    }
  }
  if (!variables.empty()) request->template_variables = variables.dump();
  return absl::OkStatus();
}

bool IsThoughtPart(const Json& part) {
  const auto type = part.is_object() ? part.find("type") : part.end();
  return part.is_object() && type != part.end() &&
         (*type == "thinking" || *type == "reasoning" || *type == "redacted_thinking");
}

std::string ThoughtOf(const Json& message) {
  for (const char* name : {"reasoning_content", "reasoning", "thinking"}) {
    const Json* field = FieldOf(message, name);
    if (field != nullptr && field->is_string()) return field->get<std::string>();
  }
  const Json* content = FieldOf(message, "content");
  std::string thought;
  if (content == nullptr || !content->is_array()) return thought;
  for (const Json& part : *content) {
    if (!IsThoughtPart(part)) continue;
    for (const char* name : {"thinking", "reasoning", "text"}) {
      const Json* text = FieldOf(part, name);
      if (text != nullptr && text->is_string()) {
        absl::StrAppend(&thought, thought.empty() ? "" : "\n\n",
                        text->get_ref<const std::string&>());
      }
    }
  }
  return thought;
}

}  // namespace strata
