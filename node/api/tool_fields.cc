#include "node/api/tool_fields.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/request/request_status.h"
#include "node/api/api_request.h"
#include "node/api/field_reader.h"
#include "node/api/json_body.h"

namespace strata {
namespace {

using Json = nlohmann::json;

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
  return TextMember(function != nullptr ? *function : tool, "name");
}

// {"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[…]}}: the others are not offered.
absl::Status AllowOnly(const Json& choice, ChatTools* tools) {
  const Json* nested = Member(choice, "allowed_tools");
  const Json& allowed = nested != nullptr ? *nested : choice;  // Responses has no such level
  const Json* list = Member(allowed, "tools");
  const std::string* mode = TextMember(allowed, "mode");
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

}  // namespace

absl::StatusOr<SchemaJson> ReadToolList(const Json& json, absl::string_view body,
                                        const std::string& name) {
  const Json* list = Member(json, name.c_str());
  if (list == nullptr) return SchemaJson::array();
  if (!list->is_array() || list->size() > kApiToolsMax) {
    return BadParam(name, absl::StrCat("must be an array of at most ", kApiToolsMax, " ", name));
  }
  auto ordered = ParseSchema(MemberText(body, name), name);
  if (!ordered.ok()) return ordered.status();
  // A name may be written with different escapes, and so come twice.
  if (Json::parse(ordered->dump()) != *list) return BadParam(name, "is given more than once");
  return ordered;
}

absl::Status AddTool(const ToolFields& fields, ChatTools* tools) {
  const auto* name = fields.name == nullptr ? nullptr : fields.name->get_ptr<const std::string*>();
  if (name == nullptr || !IsName(*name)) {
    return BadParam(fields.path + ".name", absl::StrCat("must be 1 to ", kApiToolNameBytesMax,
                                                        " letters, digits and _ - . / : @"));
  }
  if (std::any_of(tools->list.begin(), tools->list.end(),
                  [name](const ChatTool& tool) { return tool.name == *name; })) {
    return BadParam(fields.path + ".name", absl::StrCat("several tools are named \"", *name, "\""));
  }
  ChatTool tool = {.name = *name, .path = absl::StrCat(fields.path, ".", fields.parameters_name)};
  SchemaJson function = {{"name", *name}};
  if (fields.description != nullptr && !fields.description->is_null()) {
    function["description"] = *fields.description;
  }
  if (fields.parameters != nullptr && !fields.parameters->is_null()) {
    if (!fields.parameters->is_object()) return BadParam(tool.path, "must be an object");
    if (!fields.parameters->empty()) tool.parameters = fields.parameters->dump();
    function["parameters"] = *fields.parameters;
  }
  if (fields.strict != nullptr && !fields.strict->is_null()) {
    if (!fields.strict->is_boolean())
      return BadParam(fields.path + ".strict", "must be true or false");
    tool.strict = fields.strict->get<bool>();
  }
  tool.json = SchemaJson({{"type", "function"}, {"function", std::move(function)}}).dump();
  tools->list.push_back(std::move(tool));
  return absl::OkStatus();
}

absl::Status CheckOffered(const std::string& name, const ChatTools& tools) {
  const bool is_offered = std::any_of(tools.list.begin(), tools.list.end(),
                                      [&name](const ChatTool& tool) { return tool.name == name; });
  if (is_offered) return absl::OkStatus();
  return BadParam("tool_choice", absl::StrCat("there is no tool \"", name, "\""));
}

absl::Status ReadParallelCalls(const Json& json, ChatTools* tools) {
  const Json* parallel = Member(json, "parallel_tool_calls");
  if (parallel == nullptr) return absl::OkStatus();
  if (!parallel->is_boolean()) return BadParam("parallel_tool_calls", "must be true or false");
  tools->parallel = parallel->get<bool>();
  return absl::OkStatus();
}

absl::Status ReadToolChoice(const Json& choice, ChatTools* tools) {
  const std::string expected =
      R"(must be "none", "auto", "required" or {"type":"function","function":{"name":…}})";
  const std::string* word = choice.get_ptr<const std::string*>();
  const std::string* type = word != nullptr ? word : TextMember(choice, "type");
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

}  // namespace strata
