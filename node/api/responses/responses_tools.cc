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

class ToolsReader {
 public:
  ToolsReader(ChatTools* tools, std::vector<RenamedTool>* renamed)
      : tools_(tools), renamed_(renamed) {}

  absl::Status Add(const SchemaJson& tool, const std::string& path) {
    const std::string* type = TextMember(tool, "type");
    if (type == nullptr) return BadParam(path + ".type", "must be \"function\"");
    if (std::find(std::begin(kPassedOver), std::end(kPassedOver), *type) != std::end(kPassedOver)) {
      return absl::OkStatus();
    }
    return *type == "namespace" ? AddSpace(tool, path) : AddOne(tool, *type, "", path);
  }

 private:
  absl::Status AddSpace(const SchemaJson& space, const std::string& path) {
    const std::string* name = TextMember(space, "name");
    const SchemaJson* list = Member(space, "tools");
    if (name == nullptr || name->empty()) return BadParam(path + ".name", "must be a string");
    if (list == nullptr || !list->is_array() || list->size() > kApiToolsMax) {
      return BadParam(path + ".tools",
                      absl::StrCat("must be an array of at most ", kApiToolsMax, " tools"));
    }
    for (size_t i = 0; i < list->size(); ++i) {
      const SchemaJson& tool = (*list)[i];
      const std::string tool_path = absl::StrCat(path, ".tools[", i, "]");
      const std::string* type = TextMember(tool, "type");
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
    const std::string* name = TextMember(tool, "name");
    SchemaJson shown = name == nullptr ? SchemaJson() : SchemaJson(ShownToolName(space, *name));
    SchemaJson description, parameters;
    if (const SchemaJson* given = Member(tool, "description")) description = *given;
    if (is_custom) {
      absl::Status status = DescribeFormat(tool, path, &description);
      if (!status.ok()) return status;
      parameters = SchemaJson::parse(kCustomParameters);
    }
    absl::Status status =
        AddTool({.name = &shown,
                 .description = &description,
                 .parameters = is_custom ? &parameters : Member(tool, "parameters"),
                 .strict = is_custom ? nullptr : Member(tool, "strict"),
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
    const SchemaJson* format = Member(tool, "format");
    if (format == nullptr) return absl::OkStatus();
    const std::string* type = TextMember(*format, "type");
    if (type != nullptr && *type == "text") return absl::OkStatus();
    const std::string* syntax = type != nullptr ? TextMember(*format, "syntax") : nullptr;
    const std::string* definition = type != nullptr ? TextMember(*format, "definition") : nullptr;
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

std::string CustomArguments(const std::string& input) { return JsonText({{"input", input}}); }

std::string CustomInput(const std::string& arguments) {
  const auto json = ParseJsonObject(arguments);
  const std::string* input = json.ok() ? TextMember(*json, "input") : nullptr;
  return input != nullptr ? *input : arguments;
}

absl::Status ReadResponsesTools(const Json& json, absl::string_view body, ApiRequest* request,
                                std::vector<RenamedTool>* renamed, nlohmann::ordered_json* echo) {
  ChatTools& tools = request->tools;
  (*echo)["tools"] = nlohmann::ordered_json::array();
  const auto list = ReadToolList(json, body, "tools");
  if (!list.ok()) return list.status();
  ToolsReader reader(&tools, renamed);
  for (size_t i = 0; i < list->size(); ++i) {
    absl::Status status = reader.Add((*list)[i], absl::StrCat("tools[", i, "]"));
    if (!status.ok()) return status;
    nlohmann::ordered_json tool = (*list)[i];
    if (tool["type"] == "function") {  // members that clients' types require
      if (!tool.contains("parameters")) tool["parameters"] = nullptr;
      if (!tool.contains("strict")) tool["strict"] = false;
    }
    (*echo)["tools"].push_back(std::move(tool));
  }
  if (absl::Status status = ReadParallelCalls(json, &tools); !status.ok()) return status;
  (*echo)["parallel_tool_calls"] = tools.parallel;
  (*echo)["tool_choice"] = "auto";
  const Json* choice = Member(json, "tool_choice");
  if (choice == nullptr) return absl::OkStatus();
  (*echo)["tool_choice"] = *choice;
  return ReadToolChoice(KnownChoice(*choice), &tools);
}

}  // namespace strata
