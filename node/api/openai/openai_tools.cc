#include "node/api/openai/openai_tools.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "coordinator/request/request_status.h"
#include "nlohmann/json.hpp"
#include "node/api/answer_format.h"
#include "node/api/field_reader.h"
#include "node/api/json_body.h"
#include "node/api/tool_fields.h"

namespace strata {
namespace {

using Json = nlohmann::json;

// OpenAI's response_format.
absl::Status ReadResponseFormat(const Json& format, AnswerFormat* answer) {
  const std::string* type = TextMember(format, "type");
  if (type == nullptr ||
      (*type != "text" && *type != "json_object" && *type != "json_schema" && *type != "grammar")) {
    return BadParam("response_format.type",
                    R"(must be "text", "json_object", "json_schema" or "grammar")");
  }
  if (*type == "text") return absl::OkStatus();
  if (*type == "grammar") {  // llama.cpp's and Fireworks'
    const Json* grammar = Member(format, "grammar");
    return answer->Grammar(grammar != nullptr ? *grammar : Json(), "response_format.grammar");
  }
  auto ordered = answer->Ordered("response_format");
  if (!ordered.ok()) return ordered.status();
  if (*type == "json_object") {
    // As llama.cpp's server has it.
    if (ordered->is_object() && ordered->contains("schema") && (*ordered)["schema"].is_object()) {
      return answer->Schema((*ordered)["schema"], "response_format.schema");
    }
    return answer->AnyJson("response_format");
  }
  if (!ordered->is_object() || !ordered->contains("json_schema") ||
      !(*ordered)["json_schema"].is_object()) {
    return BadParam("response_format.json_schema", "must be an object");
  }
  const SchemaJson& described = (*ordered)["json_schema"];
  if (described.contains("strict") && !described["strict"].is_boolean() &&
      !described["strict"].is_null()) {
    return BadParam("response_format.json_schema.strict", "must be true or false");
  }
  answer->set_strict(described.contains("strict") && described["strict"] == true);
  if (described.contains("schema") && !described["schema"].is_null()) {
    return answer->Schema(described["schema"], "response_format.json_schema.schema");
  }
  return answer->AnyJson("response_format");
}

// vLLM's structured_outputs.
absl::Status ReadStructured(const Json& json, AnswerFormat* answer) {
  if (!json.is_object()) return BadParam("structured_outputs", "must be an object");
  auto ordered = answer->Ordered("structured_outputs");
  if (!ordered.ok()) return ordered.status();
  for (const auto& [key, value] : json.items()) {
    const std::string path = absl::StrCat("structured_outputs.", key);
    absl::Status status;
    if (value.is_null() || value == false || key == "backend" || key.starts_with("_backend")) {
      continue;
    } else if (key == "json" && ordered->contains("json")) {
      status = answer->Schema((*ordered)["json"], path);
    } else if (key == "grammar") {
      status = answer->Grammar(value, path);
    } else if (key == "regex") {
      status = answer->Regex(value, path);
    } else if (key == "choice") {
      status = answer->Choice(value, path);
    } else if (key == "json_object") {
      status = answer->AnyJson(path);
    } else {
      status = UnsupportedParam(path);
    }
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// Adds a function as "tools" and "functions" describe it; `path`: of its object.
absl::Status AddFunction(const SchemaJson& function, const std::string& path, ChatTools* tools) {
  return AddTool({.name = Keyword(function, "name"),
                  .description = Keyword(function, "description"),
                  .parameters = Keyword(function, "parameters"),
                  .strict = Keyword(function, "strict"),
                  .path = path,
                  .parameters_name = "parameters"},
                 tools);
}

// OpenAI's older form of tools: "functions" and "function_call".
absl::Status ReadFunctions(const Json& json, absl::string_view body, ApiRequest* request) {
  ChatTools& tools = request->tools;
  const auto list = ReadToolList(json, body, "functions");
  if (!list.ok()) return list.status();
  if (!list->empty() && !tools.list.empty()) {
    return BadParam("functions", "and tools cannot both be given");
  }
  for (size_t i = 0; i < list->size(); ++i) {
    absl::Status status = AddFunction((*list)[i], absl::StrCat("functions[", i, "]"), &tools);
    if (!status.ok()) return status;
  }
  if (!list->empty()) {
    request->calls_functions = true;
    tools.parallel = false;
  }
  const Json* call = Member(json, "function_call");
  if (call == nullptr) return absl::OkStatus();
  const std::string* name = TextMember(*call, "name");
  if (*call == "none") {
    tools.choice = ChatTools::Choice::kNone;
  } else if (name != nullptr) {
    if (CheckOffered(*name, tools).ok()) {
      tools.choice = ChatTools::Choice::kRequired;
      tools.only = *name;
    } else {
      return BadParam("function_call", absl::StrCat("there is no function \"", *name, "\""));
    }
  } else if (*call != "auto" && *call != "") {
    return BadParam("function_call", R"(must be "none", "auto" or {"name":…})");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadFormat(const Json& json, AnswerFormat* answer) {
  const Json* format = Member(json, "format");
  if (format == nullptr || *format == "") return absl::OkStatus();
  if (*format == "json") return answer->AnyJson("format");
  if (!format->is_object()) return BadParam("format", "must be \"json\" or a JSON Schema");
  auto ordered = answer->Ordered("format");
  if (!ordered.ok()) return ordered.status();
  return answer->Schema(*ordered, "format");
}

absl::Status ReadAnswerFormat(const Json& json, absl::string_view body, ApiRequest* request) {
  AnswerFormat constraint(body, request);
  for (const char* name : {"grammar", "guided_grammar"}) {
    const Json* grammar = Member(json, name);
    if (grammar == nullptr || *grammar == "") continue;
    if (absl::Status status = constraint.Grammar(*grammar, name); !status.ok()) return status;
  }
  for (const char* name : {"json_schema", "guided_json"}) {
    const Json* schema = Member(json, name);
    if (schema == nullptr || *schema == "") continue;
    auto ordered = constraint.Ordered(name);
    if (!ordered.ok()) return ordered.status();
    if (absl::Status status = constraint.Schema(*ordered, name); !status.ok()) return status;
  }
  for (const char* name : {"guided_regex", "regex"}) {
    const Json* regex = Member(json, name);
    if (regex == nullptr || *regex == "") continue;
    if (absl::Status status = constraint.Regex(*regex, name); !status.ok()) return status;
  }
  if (absl::Status status = ReadFormat(json, &constraint); !status.ok()) return status;
  if (const Json* choice = Member(json, "guided_choice"); choice != nullptr) {
    if (absl::Status status = constraint.Choice(*choice, "guided_choice"); !status.ok())
      return status;
  }
  if (const Json* structured = Member(json, "structured_outputs"); structured != nullptr) {
    if (absl::Status status = ReadStructured(*structured, &constraint); !status.ok()) return status;
  }
  const Json* format = Member(json, "response_format");
  return format == nullptr ? absl::OkStatus() : ReadResponseFormat(*format, &constraint);
}

absl::Status ReadTools(const Json& json, absl::string_view body, ApiRequest* request) {
  ChatTools& tools = request->tools;
  const auto list = ReadToolList(json, body, "tools");
  if (!list.ok()) return list.status();
  for (size_t i = 0; i < list->size(); ++i) {
    const SchemaJson& described = (*list)[i];
    const std::string path = absl::StrCat("tools[", i, "]");
    const SchemaJson* type = Keyword(described, "type");
    if (type == nullptr || *type != "function") {
      return BadParam(path + ".type", "must be \"function\"");
    }
    const SchemaJson* function = Keyword(described, "function");
    absl::Status status =
        AddFunction(function != nullptr ? *function : SchemaJson(), path + ".function", &tools);
    if (!status.ok()) return status;
    tools.list.back().json = described.dump();  // as the client wrote it
  }
  if (absl::Status status = ReadParallelCalls(json, &tools); !status.ok()) return status;
  if (const Json* choice = Member(json, "tool_choice"); choice != nullptr) {
    if (absl::Status status = ReadToolChoice(*choice, &tools); !status.ok()) return status;
  }
  if (absl::Status status = ReadFunctions(json, body, request); !status.ok()) return status;
  if (tools.choice == ChatTools::Choice::kRequired && !request->sampler.grammar().empty()) {
    return BadParam("tool_choice", "and grammar cannot both constrain the output");
  }
  return absl::OkStatus();
}

absl::Status ReadCallsOf(const Json& json, const std::string& name, ChatMessage* message) {
  const auto add = [message](const Json& function, const std::string& path, const std::string* id) {
    const std::string* called = TextMember(function, "name");
    const Json* arguments = Member(function, "arguments");
    if (called == nullptr || called->empty()) return BadParam(path + ".name", "is missing");
    // Some clients send the object itself.
    if (arguments == nullptr || !(arguments->is_string() || arguments->is_object())) {
      return BadParam(path + ".arguments", "must be a string or an object");
    }
    message->calls.push_back(
        {.id = id != nullptr ? *id : "",
         .name = *called,
         .arguments = arguments->is_string() ? arguments->get<std::string>() : arguments->dump()});
    return absl::OkStatus();
  };
  if (const Json* list = Member(json, "tool_calls"); list != nullptr) {
    if (!list->is_array() || list->size() > kApiToolsMax) {
      return BadParam(name + ".tool_calls",
                      absl::StrCat("must be an array of at most ", kApiToolsMax, " calls"));
    }
    for (size_t i = 0; i < list->size(); ++i) {
      const Json& call = (*list)[i];
      const Json* function = Member(call, "function");
      absl::Status status =
          add(function != nullptr ? *function : Json(),
              absl::StrCat(name, ".tool_calls[", i, "].function"), TextMember(call, "id"));
      if (!status.ok()) return status;
    }
  }
  if (const Json* call = Member(json, "function_call"); call != nullptr) {
    if (absl::Status status = add(*call, name + ".function_call", nullptr); !status.ok()) {
      return status;
    }
  }
  if (message->role == "tool") {
    const std::string* id = TextMember(json, "tool_call_id");
    if (id != nullptr) message->call_id = *id;
  }
  return absl::OkStatus();
}

}  // namespace strata
