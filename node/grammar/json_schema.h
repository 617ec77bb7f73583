// JSON Schemas with references followed and allOf merged: the plain form from which
// node/grammar/json_schema_grammar.h builds grammars. Pure; no schema is trusted.
//
// JSON Schema: https://json-schema.org/draft/2020-12
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace strata {

// Keeps the order of properties, in which the model writes them.
using SchemaJson = nlohmann::ordered_json;

inline constexpr int kSchemaDepthMax = 64;
inline constexpr size_t kSchemaBytesMax = 128 * 1024;
inline constexpr size_t kSchemaValuesMax = 16 * 1024;

// kInvalidArgument with the schema's path as its param: it is invalid, or no value meets it.
absl::Status BadSchema(absl::string_view path, absl::string_view words);
// As BadSchema(), where no value meets the schema: such an alternative may be left out.
absl::Status UnmetSchema(absl::string_view path, absl::string_view words);
bool IsUnmet(const absl::Status& status);

// Reads a schema's text, keeping the order of its keys.
absl::StatusOr<SchemaJson> ParseSchema(absl::string_view text, absl::string_view path);

// The value of the keyword `name` in an object; null: it has none.
inline const SchemaJson* Keyword(const SchemaJson& schema, const char* name) {
  const auto found = schema.find(name);
  return found == schema.end() ? nullptr : &*found;
}

// The schema that `ref` names in `document`, by its place, "$anchor" or "$id"; null: there is none.
// Of nlohmann::json, too.
template <typename Json>
const Json* FindRef(const Json& document, const std::string& ref);

struct SchemaMerge {
  const SchemaJson& document;  // the document of references
  int* budget;                 // merges left
  std::vector<std::string>*
      relaxed;  // takes the paths of what is in one of both and not in the merged
  int depth = 0;
  SchemaMerge Deeper() const { return {document, budget, relaxed, depth + 1}; }
};
inline constexpr int kSchemaMergesMax = 500;
// Each such number of pairs of keys of two merged schemas counts as one more merge.
inline constexpr size_t kSchemaKeyPairs = 4096;
// A schema that a value meets if it meets both, but for what is relaxed.
absl::StatusOr<SchemaJson> MergeSchemas(const SchemaMerge& merge, const SchemaJson& a,
                                        const SchemaJson& b, const std::string& path);

// Whether no value of `a`'s grammar meets `b`, nor the other way round. False: not known.
bool AreDisjoint(const SchemaJson& document, const SchemaJson& a, const SchemaJson& b,
                 int depth = 0);

// Whether a keyword does not constrain values.
bool IsAnnotation(absl::string_view keyword);

// The types that "type", "enum", "const" and "nullable" allow. Empty: any.
absl::StatusOr<std::vector<std::string>> TypesOf(const SchemaJson& schema, const std::string& path);
template <typename Json>
bool HasType(const Json& value, absl::string_view type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "number") return value.is_number();
  if (type != "integer" || !value.is_number()) return false;
  if (value.is_number_integer()) return true;
  const auto number = value.template get<double>();
  return number == std::floor(number);
}

}  // namespace strata
