#include "node/api/openai/openai_tools.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "coordinator/request/request_status.h"
#include "nlohmann/json.hpp"
#include "node/chat/tool_call_grammar.h"
#include "node/grammar/regex_grammar.h"
#include "node/grammar/schema_check.h"

namespace strata {
namespace {

using Json = nlohmann::json;

constexpr char kAnyObject[] = R"({"type":"object"})";

// The text of a member of the body, which is valid JSON; the last one of its name. Empty: none.
absl::string_view MemberText(absl::string_view body, absl::string_view name) {
  absl::string_view found, key;
  int depth = 0;
  size_t value_at = 0;  // 0: in a key
  for (size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (c == '"') {
      const size_t from = ++i;
      while (i < body.size() && body[i] != '"') i += body[i] == '\\' ? 2 : 1;
      if (depth == 1 && value_at == 0) key = body.substr(from, i - from);
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (depth == 1 && c == ':' && value_at == 0) {
      value_at = i + 1;
    } else if (c == '}' || c == ']' || c == ',') {
      if (depth == 1 && value_at != 0) {
        if (key == name) found = body.substr(value_at, i - value_at);
        value_at = 0;
      }
      if (c != ',') --depth;
    }
  }
  return found;
}

const Json* Member(const Json& json, const char* name) {
  if (!json.is_object()) return nullptr;
  const auto found = json.find(name);
  return found == json.end() || found->is_null() ? nullptr : &*found;
}
const std::string* Text(const Json& json, const char* name) {
  const Json* member = Member(json, name);
  return member == nullptr ? nullptr : member->get_ptr<const std::string*>();
}

// Wider than OpenAI's: MCP's names have slashes, colons and more letters.
bool IsName(absl::string_view name) {
  return !name.empty() && name.size() <= kApiToolNameBytesMax &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                  absl::StrContains("_-./:@", c);
         });
}

// The name in one of the forms that name a tool: OpenAI's of chats and of Responses, Anthropic's.
const std::string* NameIn(const Json& tool) {
  const Json* function = Member(tool, "function");
  return Text(function != nullptr ? *function : tool, "name");
}

absl::Status CheckOffered(const std::string& name, const ChatTools& tools) {
  const bool is_offered = std::any_of(tools.list.begin(), tools.list.end(),
                                      [&name](const ChatTool& tool) { return tool.name == name; });
  if (is_offered) return absl::OkStatus();
  return BadParam("tool_choice", absl::StrCat("there is no tool \"", name, "\""));
}

// {"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[…]}}: the others are not offered.
absl::Status AllowOnly(const Json& choice, ChatTools* tools) {
  const Json* nested = Member(choice, "allowed_tools");
  const Json& allowed = nested != nullptr ? *nested : choice;  // Responses has no such level
  const Json* list = Member(allowed, "tools");
  const std::string* mode = Text(allowed, "mode");
  if (list == nullptr || !list->is_array() || list->empty() || mode == nullptr ||
      (*mode != "auto" && *mode != "required")) {
    return BadParam("tool_choice.allowed_tools",
                    R"(must have "mode", "auto" or "required", and "tools", a list of some)");
  }
  std::vector<std::string> names;
  for (const Json& tool : *list) {
    const std::string* name = NameIn(tool);
    if (name == nullptr) return BadParam("tool_choice.allowed_tools.tools", "must have names");
    if (absl::Status status = CheckOffered(*name, *tools); !status.ok()) return status;
    names.push_back(*name);
  }
  std::erase_if(tools->list, [&names](const ChatTool& tool) {
    return std::find(names.begin(), names.end(), tool.name) == names.end();
  });
  if (*mode == "required") tools->choice = ChatTools::Choice::kRequired;
  return absl::OkStatus();
}

absl::Status ReadChoice(const Json& choice, ChatTools* tools) {
  const std::string expected =
      R"(must be "none", "auto", "required" or {"type":"function","function":{"name":…}})";
  const std::string* word = choice.get_ptr<const std::string*>();
  const std::string* type = word != nullptr ? word : Text(choice, "type");
  const std::string* name = word != nullptr ? nullptr : NameIn(choice);
  if (type == nullptr) return BadParam("tool_choice", expected);
  if (*type == "none") {
    tools->choice = ChatTools::Choice::kNone;
  } else if (*type == "required" || *type == "any") {  // the latter is Mistral's and Anthropic's
    tools->choice = ChatTools::Choice::kRequired;
    if (tools->list.empty()) {
      return BadParam("tool_choice",
                      absl::StrCat("is \"", *type, "\", but the request has no tools"));
    }
  } else if (*type == "allowed_tools" && word == nullptr) {
    return AllowOnly(choice, tools);
  } else if ((*type == "function" || *type == "tool") && name != nullptr) {
    if (absl::Status status = CheckOffered(*name, *tools); !status.ok()) return status;
    tools->choice = ChatTools::Choice::kRequired;
    tools->only = *name;
  } else if (*type != "auto") {
    return BadParam("tool_choice", expected);
  }
  return absl::OkStatus();
}

// Sets the request's output constraint; a second one is an error.
class OutputConstraint {
 public:
  OutputConstraint(absl::string_view body, ApiRequest* request) : body_(body), request_(request) {}

  absl::Status Grammar(const Json& grammar, const std::string& path) {
    if (absl::Status status = Claim(path); !status.ok()) return status;
    if (!grammar.is_string()) return BadParam(path, "must be a grammar in GBNF, a string");
    return SetGrammar(grammar.get_ref<const std::string&>(), path);
  }
  // A schema, or its text.
  absl::Status Schema(const SchemaJson& schema, const std::string& path) {
    if (absl::Status status = Claim(path); !status.ok()) return status;
    SchemaJson read = schema;
    if (const auto* text = schema.get_ptr<const std::string*>()) {
      auto parsed = ParseSchema(*text, path);
      if (!parsed.ok()) return parsed.status();
      read = *std::move(parsed);
    }
    request_->answer_path = path;
    request_->answer_schema = read.dump();
    return absl::OkStatus();
  }
  // A regular expression of the whole output.
  absl::Status Regex(const Json& regex, const std::string& path) {
    if (absl::Status status = Claim(path); !status.ok()) return status;
    const auto* pattern = regex.get_ptr<const std::string*>();
    if (pattern == nullptr) return BadParam(path, "must be a regular expression, a string");
    const auto grammar = RegexGrammar(*pattern);
    if (!grammar.ok()) return BadParam(path, grammar.status().message());
    return SetGrammar(PrintGbnf(*grammar), path);
  }
  absl::Status Choice(const Json& choice, const std::string& path) {
    if (absl::Status status = Claim(path); !status.ok()) return status;
    GbnfGrammar grammar;
    std::vector<GbnfExpr> strings;
    for (const Json& each : choice.is_array() ? choice : Json::array()) {
      const auto* text = each.get_ptr<const std::string*>();
      if (text == nullptr || text->empty()) strings.clear();
      if (text == nullptr || text->empty()) break;
      strings.push_back(GbnfExpr::Text(*text));
    }
    if (strings.empty() || strings.size() > kApiAnswerChoicesMax) {
      return BadParam(path,
                      absl::StrCat("must be an array of 1 to ", kApiAnswerChoicesMax, " strings"));
    }
    grammar.rules.push_back({.name = "root", .body = GbnfExpr::Choice(std::move(strings))});
    return SetGrammar(PrintGbnf(grammar), path);
  }
  // OpenAI's response_format.
  absl::Status Format(const Json& format);
  // vLLM's structured_outputs.
  absl::Status Structured(const Json& json);
  absl::Status AnyJson(const std::string& path) {
    return Schema(SchemaJson::parse(kAnyObject), path);
  }
  absl::StatusOr<SchemaJson> Ordered(const std::string& name) const {
    return ParseSchema(MemberText(body_, name), name);
  }

 private:
  absl::Status Claim(const std::string& path) {
    if (claimed_by_.empty()) {
      claimed_by_ = path;
      return absl::OkStatus();
    }
    return BadParam(path, absl::StrCat("and ", claimed_by_, " cannot both constrain the output"));
  }
  absl::Status SetGrammar(const std::string& grammar, const std::string& path) {
    const auto parsed = ParseGbnf(grammar);
    const absl::Status status = parsed.ok() ? CheckGbnf(*parsed) : parsed.status();
    if (!status.ok()) {
      absl::string_view words = status.message();  // "grammar, line 1: …", "grammar has …"
      if (absl::ConsumePrefix(&words, "grammar")) {
        while (!words.empty() && absl::StrContains(":, ", words[0])) words.remove_prefix(1);
      }
      return BadParam(path, words);
    }
    request_->sampler.set_grammar(grammar);
    return absl::OkStatus();
  }

  const absl::string_view body_;
  ApiRequest* const request_;
  std::string claimed_by_;
};

absl::Status OutputConstraint::Format(const Json& format) {
  const std::string* type = Text(format, "type");
  if (type == nullptr || (*type != "text" && *type != "json_object" && *type != "json_schema")) {
    return BadParam("response_format.type", R"(must be "text", "json_object" or "json_schema")");
  }
  if (*type == "text") return absl::OkStatus();
  auto ordered = Ordered("response_format");
  if (!ordered.ok()) return ordered.status();
  if (*type == "json_object") {
    // As llama.cpp's server has it.
    if (ordered->is_object() && ordered->contains("schema") && (*ordered)["schema"].is_object()) {
      return Schema((*ordered)["schema"], "response_format.schema");
    }
    return AnyJson("response_format");
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
  request_->answer_strict = described.contains("strict") && described["strict"] == true;
  if (described.contains("schema") && !described["schema"].is_null()) {
    return Schema(described["schema"], "response_format.json_schema.schema");
  }
  return AnyJson("response_format");
}

absl::Status OutputConstraint::Structured(const Json& json) {
  if (!json.is_object()) return BadParam("structured_outputs", "must be an object");
  auto ordered = Ordered("structured_outputs");
  if (!ordered.ok()) return ordered.status();
  for (const auto& [key, value] : json.items()) {
    const std::string path = absl::StrCat("structured_outputs.", key);
    absl::Status status;
    if (value.is_null() || value == false || key == "backend" || key.starts_with("_backend")) {
      continue;
    } else if (key == "json" && ordered->contains("json")) {
      status = Schema((*ordered)["json"], path);
    } else if (key == "grammar") {
      status = Grammar(value, path);
    } else if (key == "regex") {
      status = Regex(value, path);
    } else if (key == "choice") {
      status = Choice(value, path);
    } else if (key == "json_object") {
      status = AnyJson(path);
    } else {
      status = UnsupportedParam(path);
    }
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadAnswerFormat(const Json& json, absl::string_view body, ApiRequest* request) {
  OutputConstraint constraint(body, request);
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
  if (const Json* format = Member(json, "format"); format != nullptr && *format != "") {
    // Ollama's: "json", or a schema.
    auto ordered = constraint.Ordered("format");
    if (!ordered.ok()) return ordered.status();
    if (!format->is_object() && *format != "json") {
      return BadParam("format", "must be \"json\" or a JSON Schema");
    }
    absl::Status status =
        format->is_object() ? constraint.Schema(*ordered, "format") : constraint.AnyJson("format");
    if (!status.ok()) return status;
  }
  if (const Json* choice = Member(json, "guided_choice"); choice != nullptr) {
    if (absl::Status status = constraint.Choice(*choice, "guided_choice"); !status.ok())
      return status;
  }
  if (const Json* structured = Member(json, "structured_outputs"); structured != nullptr) {
    if (absl::Status status = constraint.Structured(*structured); !status.ok()) return status;
  }
  const Json* format = Member(json, "response_format");
  return format == nullptr ? absl::OkStatus() : constraint.Format(*format);
}

absl::Status ReadTools(const Json& json, absl::string_view body, ApiRequest* request) {
  ChatTools& tools = request->tools;
  if (const Json* list = Member(json, "tools"); list != nullptr) {
    if (!list->is_array() || list->size() > kApiToolsMax) {
      return BadParam("tools",
                      absl::StrCat("must be an array of at most ", kApiToolsMax, " tools"));
    }
    const auto ordered = ParseSchema(MemberText(body, "tools"), "tools");
    if (!ordered.ok()) return ordered.status();
    // A name may be written with different escapes, and so come twice.
    if (Json::parse(ordered->dump()) != *list) return BadParam("tools", "is given more than once");
    for (size_t i = 0; i < ordered->size(); ++i) {
      const std::string path = absl::StrCat("tools[", i, "]");
      const std::string* type = Text((*list)[i], "type");
      if (type == nullptr || *type != "function") {
        return BadParam(path + ".type", "must be \"function\"");
      }
      const Json* function = Member((*list)[i], "function");
      const std::string* name = function != nullptr ? Text(*function, "name") : nullptr;
      if (name == nullptr || !IsName(*name)) {
        return BadParam(path + ".function.name", absl::StrCat("must be 1 to ", kApiToolNameBytesMax,
                                                              " letters, digits and _ - . / : @"));
      }
      if (std::any_of(tools.list.begin(), tools.list.end(),
                      [name](const ChatTool& tool) { return tool.name == *name; })) {
        return BadParam(path + ".function.name",
                        absl::StrCat("several tools are named \"", *name, "\""));
      }
      ChatTool tool = {.name = *name, .json = (*ordered)[i].dump(), .parameters = {}};
      if (const Json* parameters = Member(*function, "parameters"); parameters != nullptr) {
        if (!parameters->is_object())
          return BadParam(path + ".function.parameters", "must be an object");
        if (!parameters->empty()) tool.parameters = (*ordered)[i]["function"]["parameters"].dump();
      }
      if (const Json* strict = Member(*function, "strict"); strict != nullptr) {
        if (!strict->is_boolean())
          return BadParam(path + ".function.strict", "must be true or false");
        tool.strict = strict->get<bool>();
      }
      tools.list.push_back(std::move(tool));
    }
  }
  if (const Json* parallel = Member(json, "parallel_tool_calls"); parallel != nullptr) {
    if (!parallel->is_boolean()) return BadParam("parallel_tool_calls", "must be true or false");
    tools.parallel = parallel->get<bool>();
  }
  if (const Json* choice = Member(json, "tool_choice"); choice != nullptr) {
    if (absl::Status status = ReadChoice(*choice, &tools); !status.ok()) return status;
  }
  if (tools.choice == ChatTools::Choice::kRequired && !request->sampler.grammar().empty()) {
    return BadParam("tool_choice", "and grammar cannot both constrain the output");
  }
  return absl::OkStatus();
}

absl::Status ReadCallsOf(const Json& json, const std::string& name, ChatMessage* message) {
  if (const Json* list = Member(json, "tool_calls"); list != nullptr) {
    if (!list->is_array() || list->size() > kApiToolsMax) {
      return BadParam(name + ".tool_calls",
                      absl::StrCat("must be an array of at most ", kApiToolsMax, " calls"));
    }
    for (size_t i = 0; i < list->size(); ++i) {
      const std::string path = absl::StrCat(name, ".tool_calls[", i, "]");
      const Json* function = Member((*list)[i], "function");
      const std::string* called = function != nullptr ? Text(*function, "name") : nullptr;
      const Json* arguments = function != nullptr ? Member(*function, "arguments") : nullptr;
      if (called == nullptr || called->empty())
        return BadParam(path + ".function.name", "is missing");
      // Some clients send the object itself.
      if (arguments == nullptr || !(arguments->is_string() || arguments->is_object())) {
        return BadParam(path + ".function.arguments", "must be a string or an object");
      }
      const std::string* id = Text((*list)[i], "id");
      message->calls.push_back({.id = id != nullptr ? *id : "",
                                .name = *called,
                                .arguments = arguments->is_string() ? arguments->get<std::string>()
                                                                    : arguments->dump()});
    }
  }
  if (message->role == "tool") {
    const std::string* id = Text(json, "tool_call_id");
    if (id != nullptr) message->call_id = *id;
  }
  return absl::OkStatus();
}

absl::Status MatchResults(std::vector<ChatMessage>* messages) {
  size_t unnamed = 0;
  std::vector<ChatToolCall> open;  // calls without a result yet
  for (size_t i = 0; i < messages->size(); ++i) {
    ChatMessage& message = (*messages)[i];
    for (ChatToolCall& call : message.calls) {
      if (call.id.empty()) call.id = absl::StrFormat("call%05d", ++unnamed);
      open.push_back(call);
    }
    if (message.role != "tool") continue;
    // Without an id it is the first result that the tool, or any, still owes.
    const auto call = std::find_if(open.begin(), open.end(), [&message](const ChatToolCall& each) {
      return !message.call_id.empty() ? each.id == message.call_id
                                      : message.name.empty() || message.name == each.name;
    });
    if (call == open.end() && message.call_id.empty()) {
      return BadParam(absl::StrCat("messages[", i, "].tool_call_id"),
                      "is missing, and no call before it waits for a result");
    }
    if (call == open.end()) continue;
    message.call_id = call->id;
    open.erase(call);
  }
  return absl::OkStatus();
}

namespace {

// Where the grammar is relaxed, what must be strict is checked once it is whole.
absl::Status CheckAtTheEnd(bool answers, ApiRequest* request) {
  const auto can_check = [](const std::string& schema, const std::string& path) {
    const auto json = ParseSchema(schema, path);
    return json.ok() ? SchemaCheck::CanCheck(*json, path) : json.status();
  };
  if (answers && request->answer_strict) {
    request->checks_answer = true;
    absl::Status status = can_check(request->answer_schema, request->answer_path);
    if (!status.ok()) return status;
  }
  const std::vector<ChatTool>& tools = request->tools.list;
  for (size_t i = 0; i < tools.size() && request->tools.offered(); ++i) {
    if (!tools[i].strict || tools[i].parameters.empty()) continue;
    request->checked_tools.push_back(tools[i].name);
    absl::Status status = can_check(tools[i].parameters, ToolPath(i));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

std::string ToolPath(size_t i) { return absl::StrCat("tools[", i, "].function.parameters"); }

absl::Status Constrain(const ChatFormat& format, ApiRequest* request) {
  const ChatTools& tools = request->tools;
  const bool must_call = tools.offered() && tools.choice == ChatTools::Choice::kRequired;
  const bool answers = !must_call && !request->answer_schema.empty();
  if (!must_call && !answers) return absl::OkStatus();
  JsonGrammar grammar;
  std::vector<GbnfExpr> parts;
  if (answers) {
    const auto json = ParseSchema(request->answer_schema, request->answer_path);
    if (!json.ok()) return json.status();
    auto answer = grammar.Schema(*json, request->answer_path);
    if (!answer.ok()) return answer.status();
    if (request->chat && format.is_harmony) {
      answer =
          GbnfExpr::Sequence({GbnfExpr::Text("<|channel|>final<|message|>"), *std::move(answer)});
    }
    parts.push_back(*std::move(answer));
  }
  if (tools.offered()) {
    std::vector<CallableTool> list;
    for (size_t i = 0; i < tools.list.size(); ++i) {
      if (!tools.only.empty() && tools.list[i].name != tools.only) continue;
      list.push_back({.name = tools.list[i].name,
                      .parameters = tools.list[i].parameters,
                      .path = ToolPath(i)});
    }
    // Harmony's end of a call ends the generation.
    const bool several = tools.parallel && tools.only.empty() && !format.is_harmony;
    auto call = ToolCallGrammar(format.calls, list, several, &grammar);
    if (!call.ok()) return call.status();
    parts.push_back(*std::move(call));
  }
  auto text =
      grammar.Finish(GbnfExpr::Choice(std::move(parts)), answers ? request->answer_path : "tools");
  if (!text.ok()) return text.status();
  request->sampler.set_grammar(*std::move(text));
  request->constrains_answer = true;
  return grammar.relaxed().empty() ? absl::OkStatus() : CheckAtTheEnd(answers, request);
}

}  // namespace strata
