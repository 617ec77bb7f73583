#include "node/api/responses/responses_tools.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/request/request_status.h"
#include "node/api/field_reader.h"
#include "node/api/json_body.h"
#include "node/api/tool_fields.h"
#include "node/grammar/json_schema.h"

namespace strata {
namespace {

using Json = nlohmann::json;

// Codex offers these by itself, and works without them.
constexpr absl::string_view kPassedOver[] = {"web_search", "image_generation", "tool_search"};
constexpr char kCustomParameters[] =
    R"({"type":"object","properties":{"input":{"type":"string"}},"required":["input"],)"
    R"("additionalProperties":false})";

const SchemaJson* MemberOf(const SchemaJson& json, const char* name) {
  const auto found = json.find(name);
  return found == json.end() || found->is_null() ? nullptr : &*found;
}

const std::string* TextOf(const SchemaJson& json, const char* name) {
  const SchemaJson* member = MemberOf(json, name);
  return member == nullptr ? nullptr : member->get_ptr<const std::string*>();
}

class ToolsReader {
 public:
  ToolsReader(ChatTools* tools, std::vector<RenamedTool>* renamed)
      : tools_(tools), renamed_(renamed) {}

  absl::Status Add(const SchemaJson& tool, const std::string& path) {
    const std::string* type = tool.is_object() ? TextOf(tool, "type") : nullptr;
    if (type == nullptr) return BadParam(path + ".type", "must be \"function\"");
    if (std::find(std::begin(kPassedOver), std::end(kPassedOver), *type) != std::end(kPassedOver)) {
      return absl::OkStatus();
    }
    return *type == "namespace" ? AddSpace(tool, path) : AddOne(tool, *type, "", path);
  }

 private:
  absl::Status AddSpace(const SchemaJson& space, const std::string& path) {
    const std::string* name = TextOf(space, "name");
    const SchemaJson* list = MemberOf(space, "tools");
    if (name == nullptr || name->empty()) return BadParam(path + ".name", "must be a string");
    if (list == nullptr || !list->is_array() || list->size() > kApiToolsMax) {
      return BadParam(path + ".tools",
                      absl::StrCat("must be an array of at most ", kApiToolsMax, " tools"));
    }
    for (size_t i = 0; i < list->size(); ++i) {
      const SchemaJson& tool = (*list)[i];
      const std::string tool_path = absl::StrCat(path, ".tools[", i, "]");
      const std::string* type = tool.is_object() ? TextOf(tool, "type") : nullptr;
      if (type == nullptr) return BadParam(tool_path + ".type", "must be \"function\"");
      if (absl::Status status = AddOne(tool, *type, *name, tool_path); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status AddOne(const SchemaJson& tool, const std::string& type, const std::string& space,
                      const std::string& path) {
    const bool is_custom = type == "custom";
    if (!is_custom && type != "function") {
      return UnsupportedParam(path + ".type", absl::StrCat("\"", type, "\""));
    }
    if (tools_->list.size() >= kApiToolsMax) {
      return BadParam("tools", absl::StrCat("must be at most ", kApiToolsMax, " tools"));
    }
    const std::string* name = TextOf(tool, "name");
    SchemaJson shown = name == nullptr ? SchemaJson() : SchemaJson(ShownToolName(space, *name));
    SchemaJson description, parameters;
    if (const SchemaJson* given = MemberOf(tool, "description")) description = *given;
    if (is_custom) {
      absl::Status status = DescribeFormat(tool, path, &description);
      if (!status.ok()) return status;
      parameters = SchemaJson::parse(kCustomParameters);
    }
    absl::Status status =
        AddTool({.name = &shown,
                 .description = &description,
                 .parameters = is_custom ? &parameters : MemberOf(tool, "parameters"),
                 .strict = is_custom ? nullptr : MemberOf(tool, "strict"),
                 .path = path,
                 .parameters_name = "parameters"},
                tools_);
    if (!status.ok()) return status;
    if (is_custom || !space.empty()) {
      renamed_->push_back({.shown = tools_->list.back().name,
                           .name_space = space,
                           .name = *name,
                           .is_custom = is_custom});
    }
    return absl::OkStatus();
  }

  // The grammar of a custom tool's text is told to the model.
  static absl::Status DescribeFormat(const SchemaJson& tool, const std::string& path,
                                     SchemaJson* description) {
    const SchemaJson* format = MemberOf(tool, "format");
    if (format == nullptr) return absl::OkStatus();
    const std::string* type = format->is_object() ? TextOf(*format, "type") : nullptr;
    if (type != nullptr && *type == "text") return absl::OkStatus();
    const std::string* syntax = type != nullptr ? TextOf(*format, "syntax") : nullptr;
    const std::string* definition = type != nullptr ? TextOf(*format, "definition") : nullptr;
    if (type == nullptr || *type != "grammar" || syntax == nullptr || definition == nullptr) {
      return BadParam(path + ".format",
                      R"(must be {"type":"text"} or {"type":"grammar","syntax":…,"definition":…})");
    }
    const auto* words = description->get_ptr<const std::string*>();
    *description = absl::StrCat(words != nullptr ? *words : "", "\n\nThe input's grammar (",
                                *syntax, "):\n", *definition);
    return absl::OkStatus();
  }

  ChatTools* const tools_;
  std::vector<RenamedTool>* const renamed_;
};

// As ReadToolChoice() knows it: a custom tool is a function there.
Json KnownChoice(Json choice) {
  const auto make_known = [](Json* named) {
    if (!named->is_object()) return;
    const std::string* type = TextMember(*named, "type");
    const std::string* name = TextMember(*named, "name");
    const std::string* space = TextMember(*named, "namespace");
    if (type != nullptr && *type == "custom") (*named)["type"] = "function";
    if (name != nullptr && space != nullptr) (*named)["name"] = ShownToolName(*space, *name);
  };
  make_known(&choice);
  if (choice.is_object() && choice.contains("tools") && choice["tools"].is_array()) {
    for (Json& tool : choice["tools"]) make_known(&tool);
  }
  return choice;
}

}  // namespace

std::string ShownToolName(absl::string_view name_space, absl::string_view name) {
  return name_space.empty() ? std::string(name) : absl::StrCat(name_space, ".", name);
}

std::string CustomArguments(const std::string& input) {
  const Json arguments = {{"input", input}};
  return arguments.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string CustomInput(const std::string& arguments) {
  const auto json = ParseJsonBody(arguments);
  const std::string* input = json.ok() ? TextMember(*json, "input") : nullptr;
  return input != nullptr ? *input : arguments;
}

absl::Status ReadResponsesTools(const Json& json, absl::string_view body, ApiRequest* request,
                                std::vector<RenamedTool>* renamed, nlohmann::ordered_json* echo) {
  ChatTools& tools = request->tools;
  (*echo)["tools"] = nlohmann::ordered_json::array();
  if (const Json* list = Member(json, "tools"); list != nullptr) {
    if (!list->is_array() || list->size() > kApiToolsMax) {
      return BadParam("tools",
                      absl::StrCat("must be an array of at most ", kApiToolsMax, " tools"));
    }
    const auto ordered = ParseSchema(MemberText(body, "tools"), "tools");
    if (!ordered.ok()) return ordered.status();
    // A name may be written with different escapes, and so come twice.
    if (Json::parse(ordered->dump()) != *list) return BadParam("tools", "is given more than once");
    ToolsReader reader(&tools, renamed);
    for (size_t i = 0; i < ordered->size(); ++i) {
      absl::Status status = reader.Add((*ordered)[i], absl::StrCat("tools[", i, "]"));
      if (!status.ok()) return status;
      nlohmann::ordered_json tool = (*ordered)[i];
      if (tool["type"] == "function") {  // members that clients' types require
        if (!tool.contains("parameters")) tool["parameters"] = nullptr;
        if (!tool.contains("strict")) tool["strict"] = false;
      }
      (*echo)["tools"].push_back(std::move(tool));
    }
  }
  if (const Json* parallel = Member(json, "parallel_tool_calls"); parallel != nullptr) {
    if (!parallel->is_boolean()) return BadParam("parallel_tool_calls", "must be true or false");
    tools.parallel = parallel->get<bool>();
  }
  (*echo)["parallel_tool_calls"] = tools.parallel;
  (*echo)["tool_choice"] = "auto";
  const Json* choice = Member(json, "tool_choice");
  if (choice == nullptr) return absl::OkStatus();
  (*echo)["tool_choice"] = *choice;
  return ReadToolChoice(KnownChoice(*choice), &tools);
}

}  // namespace strata
