// What JSON Schema says of a value, with references followed and allOf made one: the plain form
// from which node/grammar/json_schema_grammar.h writes. Pure; every schema is a stranger's.
//
// JSON Schema: https://json-schema.org/draft/2020-12
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace strata {

// Keeps the order of properties, in which they are written.
using SchemaJson = nlohmann::ordered_json;

inline constexpr int kSchemaDepthMax = 64;
inline constexpr size_t kSchemaBytesMax = 128 * 1024;
inline constexpr size_t kSchemaValuesMax = 16 * 1024;

// kInvalidArgument with the schema's path as its param: it is none, cannot be met, cannot be
// expressed.
absl::Status BadSchema(absl::string_view path, absl::string_view words);
// That no value meets it: an alternative like this may be left out.
absl::Status UnmetSchema(absl::string_view path, absl::string_view words);
bool IsUnmet(const absl::Status& status);

// Reads a schema's text, keeping the order of its keys.
absl::StatusOr<SchemaJson> ParseSchema(absl::string_view text, absl::string_view path);

// The value of the keyword `name` in an object; null: it has none.
inline const SchemaJson* Keyword(const SchemaJson& schema, const char* name) {
  const auto found = schema.find(name);
  return found == schema.end() ? nullptr : &*found;
}

// The schema that `ref` names in `document`; null: there is none.
const SchemaJson* FindRef(const SchemaJson& document, const std::string& ref);

struct SchemaMerge {
  const SchemaJson& document;  // references are followed here
  int* budget;                 // how many more may be put together
  int depth = 0;
  SchemaMerge Deeper() const { return {document, budget, depth + 1}; }
};
inline constexpr int kSchemaMergesMax = 500;
// So many pairs of keys, of the two that are put together, count as one more.
inline constexpr size_t kSchemaKeyPairs = 4096;
// A schema that is met by what meets both.
absl::StatusOr<SchemaJson> MergeSchemas(const SchemaMerge& merge, const SchemaJson& a,
                                        const SchemaJson& b, const std::string& path);

// Whether nothing that is written from `a` meets `b`, and the other way round. False: who knows.
bool AreDisjoint(const SchemaJson& document, const SchemaJson& a, const SchemaJson& b,
                 int depth = 0);

// Whether a keyword says nothing about values.
bool IsAnnotation(absl::string_view keyword);

// The types that it may have: of "type", "enum", "const" and "nullable". Empty: it does not say.
absl::StatusOr<std::vector<std::string>> TypesOf(const SchemaJson& schema, const std::string& path);
bool HasType(const SchemaJson& value, absl::string_view type);

}  // namespace strata
