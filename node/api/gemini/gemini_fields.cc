#include "node/api/gemini/gemini_fields.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"
#include "node/api/field_reader.h"

namespace strata {
namespace {

bool IsOneOf(absl::string_view name, std::initializer_list<absl::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The members of an object, or the elements of an array, as schemas.
SchemaJson GeminiSchemasIn(SchemaJson schemas) {
  for (SchemaJson& each : schemas) each = GeminiSchema(each);
  return schemas;
}

}  // namespace

const SchemaJson* GeminiField(const SchemaJson& json, const char* name) {
  if (!json.is_object()) return nullptr;
  if (const SchemaJson* found = Member(json, name)) return found;
  std::string other;
  for (const char c : absl::string_view(name)) {
    if (absl::ascii_isupper(static_cast<unsigned char>(c))) other += '_';
    other += absl::ascii_tolower(static_cast<unsigned char>(c));
  }
  return Member(json, other.c_str());
}

SchemaJson GeminiSchema(const SchemaJson& schema) {
  if (!schema.is_object()) return schema;
  SchemaJson json = SchemaJson::object();
  for (const auto& [name, value] : schema.items()) {
    if (name == "type" && value.is_string()) {
      json[name] = absl::AsciiStrToLower(value.get<std::string>());
    } else if (name == "format" && value == "enum") {
      continue;  // says that there is an "enum"
    } else if (IsOneOf(name, {"items", "additionalProperties"})) {
      json[name] = GeminiSchema(value);
    } else if (IsOneOf(name, {"properties", "anyOf", "any_of", "prefixItems"})) {
      json[name == "any_of" ? "anyOf" : name] = GeminiSchemasIn(value);
    } else if (!IsOneOf(name, {"nullable", "propertyOrdering", "property_ordering", "example"})) {
      json[name] = value;
    }
  }
  // Counts are strings in this JSON, as they have 64 bits.
  for (const char* name :
       {"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"}) {
    const auto count = json.find(name);
    if (count == json.end() || !count->is_string()) continue;
    const SchemaJson number = SchemaJson::parse(count->get<std::string>(), nullptr, false);
    if (number.is_number_unsigned()) *count = number;
  }
  const auto nullable = schema.find("nullable");
  if (nullable == schema.end() || *nullable != true) return json;
  return {{"anyOf", SchemaJson::array({std::move(json), {{"type", "null"}}})}};
}

}  // namespace strata
