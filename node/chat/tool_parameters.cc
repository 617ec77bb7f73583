#include "node/chat/tool_parameters.h"

#include <algorithm>

namespace strata {
namespace {

// Where definitions of "$ref" are.
constexpr const char* kDefinitions[] = {"$defs", "definitions"};

bool IsRequired(const SchemaJson& schema, const std::string& name) {
  const SchemaJson* required = Keyword(schema, "required");
  return required != nullptr && required->is_array() &&
         std::find(required->begin(), required->end(), SchemaJson(name)) != required->end();
}

void ReadTypes(const SchemaJson& schema, const std::string& path, ToolParameter* parameter) {
  const auto types = TypesOf(schema, path);
  const bool known = types.ok() && !types->empty();
  parameter->is_text = known && types->size() == 1 && types->front() == "string";
  parameter->is_truth = known && types->size() == 1 && types->front() == "boolean";
  if (known) parameter->types = *types;
  if (!parameter->is_text) return;
  if (const SchemaJson* only = Keyword(schema, "const"); only != nullptr && only->is_string()) {
    parameter->choices.push_back(only->get<std::string>());
  } else if (const SchemaJson* list = Keyword(schema, "enum");
             list != nullptr && list->is_array()) {
    for (const SchemaJson& each : *list) {
      if (each.is_string()) parameter->choices.push_back(each.get<std::string>());
    }
  }
}

}  // namespace

bool ToolParameter::Takes(const std::string& value) const {
  if (std::find(types.begin(), types.end(), "string") == types.end()) return true;
  const SchemaJson json = SchemaJson::parse(value, nullptr, /*allow_exceptions=*/false);
  return std::any_of(types.begin(), types.end(),
                     [&json](const std::string& type) { return HasType(json, type); });
}

std::optional<std::vector<ToolParameter>> ParametersOf(const SchemaJson& schema) {
  const SchemaJson* properties = schema.is_object() ? Keyword(schema, "properties") : nullptr;
  if (properties == nullptr || !properties->is_object()) return std::nullopt;
  std::vector<ToolParameter> parameters;
  for (const auto& [name, property] : properties->items()) {
    ToolParameter parameter = {.name = name, .schema = property};
    parameter.required = IsRequired(schema, name);
    const SchemaJson* resolved = &property;
    if (property.is_object()) {
      for (const char* key : kDefinitions) {
        const SchemaJson* definitions = Keyword(schema, key);
        if (definitions != nullptr) parameter.schema[key] = *definitions;
      }
      const SchemaJson* ref = Keyword(property, "$ref");
      if (ref != nullptr && ref->is_string()) {
        const SchemaJson* found = FindRef(schema, ref->get<std::string>());
        if (found != nullptr) resolved = found;
      }
    }
    if (resolved->is_object()) ReadTypes(*resolved, name, &parameter);
    parameters.push_back(std::move(parameter));
  }
  return parameters;
}

}  // namespace strata
