#include "node/grammar/json_schema.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "coordinator/request/request_status.h"

namespace strata {
namespace {

constexpr absl::string_view kUnmet = "strata/unmet_schema";
constexpr absl::string_view kTypes[] = {"object",  "array",   "string", "number",
                                        "integer", "boolean", "null"};

absl::Status TooDeep(absl::string_view path) {
  return BadSchema(path, absl::StrCat("nests deeper than ", kSchemaDepthMax, " levels"));
}

std::vector<std::string> Intersect(const std::vector<std::string>& a,
                                   const std::vector<std::string>& b) {
  std::vector<std::string> both;
  for (const std::string& type : a) {
    for (const std::string& other : b) {
      if (type == other || (type == "integer" && other == "number")) both.push_back(type);
      if (type == "number" && other == "integer") both.push_back(other);
    }
  }
  return both;
}

// Follows a lone reference; null: it does not resolve, or is circular.
const SchemaJson* Follow(const SchemaJson& document, const SchemaJson& schema) {
  const SchemaJson* at = &schema;
  for (int i = 0; i < kSchemaDepthMax; ++i) {
    if (!at->is_object() || !at->contains("$ref")) return at;
    if (!(*at)["$ref"].is_string()) return nullptr;
    at = FindRef(document, (*at)["$ref"].get<std::string>());
    if (at == nullptr) return nullptr;
  }
  return nullptr;
}

SchemaJson Combined(const char* keyword, const SchemaJson& a, const SchemaJson& b) {
  SchemaJson schema = SchemaJson::object();
  schema[keyword] = SchemaJson::array({a, b});
  return schema;
}

std::vector<SchemaJson> ValuesOf(const SchemaJson& schema) {
  std::vector<SchemaJson> values;
  if (const SchemaJson* value = Keyword(schema, "const")) values.push_back(*value);
  if (const SchemaJson* list = Keyword(schema, "enum");
      values.empty() && list && list->is_array()) {
    values.assign(list->begin(), list->end());
  }
  return values;
}

bool Requires(const SchemaJson& schema, const std::string& key) {
  const SchemaJson* required = Keyword(schema, "required");
  return required != nullptr && required->is_array() &&
         std::find(required->begin(), required->end(), SchemaJson(key)) != required->end();
}

// Whether objects that the grammar of `schema` writes never have `key`.
bool NeverWrites(const SchemaJson& schema, const std::string& key) {
  const SchemaJson* properties = Keyword(schema, "properties");
  if (properties == nullptr || !properties->is_object() || properties->contains(key)) return false;
  const SchemaJson* more = Keyword(schema, "additionalProperties");
  return (more == nullptr || *more == false) && !Requires(schema, key);
}

bool RequiresWhatIsNeverIn(const SchemaJson& a, const SchemaJson& b) {
  const SchemaJson* required = Keyword(a, "required");
  if (required == nullptr || !required->is_array()) return false;
  return std::any_of(required->begin(), required->end(), [&b](const SchemaJson& key) {
    return key.is_string() && NeverWrites(b, key.get<std::string>());
  });
}

}  // namespace

absl::Status BadSchema(absl::string_view path, absl::string_view words) {
  return BadParam(path, words);
}
absl::Status UnmetSchema(absl::string_view path, absl::string_view words) {
  absl::Status status = BadParam(path, words);
  status.SetPayload(kUnmet, absl::Cord());
  return status;
}
bool IsUnmet(const absl::Status& status) { return status.GetPayload(kUnmet).has_value(); }

absl::StatusOr<SchemaJson> ParseSchema(absl::string_view text, absl::string_view path) {
  if (text.size() > kSchemaBytesMax) {
    return BadSchema(path, absl::StrCat("may have at most ", kSchemaBytesMax, " bytes"));
  }
  // An ordered object searches all its keys linearly.
  const auto values = std::count_if(text.begin(), text.end(),
                                    [](char c) { return c == ',' || c == '{' || c == '['; });
  if (static_cast<size_t>(values) > kSchemaValuesMax) {
    return BadSchema(path, absl::StrCat("may have at most ", kSchemaValuesMax, " values"));
  }
  int depth = 0, deepest = 0;
  for (const char c : text) {
    if (c == '{' || c == '[') deepest = std::max(deepest, ++depth);
    if (c == '}' || c == ']') --depth;
  }
  if (deepest > kSchemaDepthMax * 2) return TooDeep(path);
  SchemaJson json =
      SchemaJson::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return BadSchema(path, "is not JSON");
  return json;
}

namespace {

// The schema with "$id": `name`, or "$anchor": `name`.
template <typename Json>
const Json* FindNamed(const Json& schema, const char* keyword, const std::string& name) {
  if (schema.is_object()) {
    const auto own = schema.find(keyword);
    if (own != schema.end() && *own == name) return &schema;
  }
  for (const auto& each : schema) {
    if (!each.is_structured()) continue;
    if (const Json* found = FindNamed(each, keyword, name); found != nullptr) return found;
  }
  return nullptr;
}

}  // namespace

template <typename Json>
const Json* FindRef(const Json& document, const std::string& ref) {
  if (!absl::StartsWith(ref, "#")) return FindNamed(document, "$id", ref);
  if (ref.size() > 1 && ref[1] != '/') return FindNamed(document, "$anchor", ref.substr(1));
  const Json* at = &document;
  bool first = true;
  for (const std::string& each : std::vector<std::string>(absl::StrSplit(ref, '/'))) {
    if (std::exchange(first, false)) continue;
    const std::string key = absl::StrReplaceAll(each, {{"~1", "/"}, {"~0", "~"}, {"%25", "%"}});
    size_t index = 0;
    if (at->is_object() && at->contains(key)) {
      at = &(*at)[key];
    } else if (at->is_array() && absl::SimpleAtoi(key, &index) && index < at->size()) {
      at = &(*at)[index];
    } else {
      return nullptr;
    }
  }
  return at;
}
template const SchemaJson* FindRef(const SchemaJson&, const std::string&);
template const nlohmann::json* FindRef(const nlohmann::json&, const std::string&);

bool IsAnnotation(absl::string_view keyword) {
  constexpr absl::string_view kAnnotations[] = {
      "title",   "description", "default",       "examples", "example",         "$schema",
      "$id",     "$comment",    "deprecated",    "readOnly", "writeOnly",       "$defs",
      "$anchor", "definitions", "discriminator", "strict",   "contentEncoding", "contentMediaType"};
  return std::find(std::begin(kAnnotations), std::end(kAnnotations), keyword) !=
         std::end(kAnnotations);
}

absl::StatusOr<std::vector<std::string>> TypesOf(const SchemaJson& schema,
                                                 const std::string& path) {
  std::vector<std::string> types;
  const SchemaJson* type = Keyword(schema, "type");
  if (type == nullptr) return types;
  const SchemaJson list = type->is_array() ? *type : SchemaJson::array({*type});
  for (const SchemaJson& each : list) {
    const auto* name = each.get_ptr<const std::string*>();
    if (name == nullptr ||
        std::find(std::begin(kTypes), std::end(kTypes), *name) == std::end(kTypes)) {
      return BadSchema(path + ".type", "must be the name of a type, or several");
    }
    if (std::find(types.begin(), types.end(), *name) == types.end()) types.push_back(*name);
  }
  if (types.empty()) return UnmetSchema(path + ".type", "names no type: no value meets it");
  const SchemaJson* nullable = Keyword(schema, "nullable");
  if (nullable != nullptr && *nullable == true &&
      std::find(types.begin(), types.end(), "null") == types.end()) {
    types.emplace_back("null");
  }
  return types;
}

absl::StatusOr<SchemaJson> MergeSchemas(const SchemaMerge& merge, const SchemaJson& a,
                                        const SchemaJson& b, const std::string& path) {
  if (merge.depth > kSchemaDepthMax || --*merge.budget < 0) return TooDeep(path);
  if (a == false || b == false) return UnmetSchema(path, "no value meets it");
  if (a == true) return b;
  if (b == true || a == b) return a;
  for (const SchemaJson* each : {&a, &b}) {
    if (!each->is_object()) return BadSchema(path, "must be a schema");
    if (!each->contains("$ref")) continue;
    const SchemaJson* target = Follow(merge.document, *each);
    if (target == nullptr) {
      return BadSchema(path, absl::StrCat("$ref ", (*each)["$ref"].dump(), " does not resolve"));
    }
    SchemaJson rest = *each;
    rest.erase("$ref");
    const auto whole = MergeSchemas(merge.Deeper(), *target, rest, path);
    if (!whole.ok()) return whole.status();
    return each == &a ? MergeSchemas(merge.Deeper(), *whole, b, path)
                      : MergeSchemas(merge.Deeper(), a, *whole, path);
  }
  // Keys are searched linearly.
  *merge.budget -= static_cast<int>(
      std::min<size_t>(a.size() * b.size() / kSchemaKeyPairs, kSchemaMergesMax + 1));
  if (*merge.budget < 0) return TooDeep(path);
  SchemaJson merged = a;
  for (const auto& [key, value] : b.items()) {
    if (!merged.contains(key)) {
      merged[key] = value;
      continue;
    }
    SchemaJson& mine = merged[key];
    if (mine == value || IsAnnotation(key)) continue;
    if (key == "type") {
      auto left = TypesOf(a, path), right = TypesOf(b, path);
      if (!left.ok()) return left.status();
      if (!right.ok()) return right.status();
      const std::vector<std::string> both = Intersect(*left, *right);
      if (both.empty()) return UnmetSchema(path + ".type", "nothing is of both types");
      mine = both;
    } else if (key == "enum" && mine.is_array() && value.is_array()) {
      SchemaJson both = SchemaJson::array();
      const std::set<SchemaJson> theirs(value.begin(), value.end());
      for (const SchemaJson& each : mine) {
        if (theirs.contains(each)) both.push_back(each);
      }
      mine = std::move(both);
    } else if (key == "const") {
      return UnmetSchema(path + ".const", "nothing is both");
    } else if (key == "required" && mine.is_array() && value.is_array()) {
      std::set<SchemaJson> there(mine.begin(), mine.end());
      for (const SchemaJson& each : value) {
        if (there.insert(each).second) mine.push_back(each);
      }
    } else if (key == "properties" && mine.is_object() && value.is_object()) {
      std::set<std::string> there;  // an ordered object is searched from its begin
      for (const auto& member : mine.items()) there.insert(member.key());
      for (const auto& [name, property] : value.items()) {
        if (!there.contains(name)) {
          mine.get_ref<SchemaJson::object_t&>().emplace_back(name, property);
          continue;
        }
        auto both = MergeSchemas(merge.Deeper(), mine[name], property,
                                 absl::StrCat(path, ".properties.", name));
        if (!both.ok() && !IsUnmet(both.status())) return both.status();
        mine[name] = both.ok() ? *std::move(both) : SchemaJson(false);
      }
    } else if ((key == "items" || key == "additionalProperties")) {
      auto both = MergeSchemas(merge.Deeper(), mine, value, absl::StrCat(path, ".", key));
      if (!both.ok() && !IsUnmet(both.status())) return both.status();
      mine = both.ok() ? *std::move(both) : SchemaJson(false);
    } else if (absl::StartsWith(key, "min") || key == "exclusiveMinimum") {
      if (value.is_number() && mine.is_number()) mine = std::max(mine, value);
    } else if (absl::StartsWith(key, "max") || key == "exclusiveMaximum") {
      if (value.is_number() && mine.is_number()) mine = std::min(mine, value);
    } else if (key == "nullable") {
      mine = false;
    } else if (key == "allOf" && mine.is_array() && value.is_array()) {
      mine.insert(mine.end(), value.begin(), value.end());
    } else if ((key == "anyOf" || key == "oneOf") && mine.is_array() && value.is_array()) {
      SchemaJson pairs = SchemaJson::array();
      *merge.budget -=
          static_cast<int>(std::min<size_t>(mine.size() * value.size() / 4, kSchemaMergesMax + 1));
      if (*merge.budget < 0) return TooDeep(path);
      for (const SchemaJson& each : mine) {
        for (const SchemaJson& other : value) pairs.push_back(Combined("allOf", each, other));
      }
      mine = std::move(pairs);
    } else if (key == "pattern" && mine.is_string() && value.is_string()) {
      const auto found = [](const SchemaJson& pattern) {
        return absl::StrCat("(?=[^]*(?:", pattern.get_ref<const std::string&>(), "))");
      };
      // Look-aheads side by side, of which an automaton can be made.
      const auto& pattern = mine.get_ref<const std::string&>();
      mine = absl::StrCat(absl::StartsWith(pattern, "^(?=[^]*(?:") ? pattern : "^" + found(mine),
                          found(value));
    } else if (key == "not") {
      mine = Combined("anyOf", mine, value);
    } else if (key == "propertyNames") {
      mine = Combined("allOf", mine, value);
    } else {
      merge.relaxed->push_back(absl::StrCat(path, ".", key));
    }
  }
  // A schema without additional properties forbids those of the other schema.
  for (const auto& [closed, other] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    const SchemaJson* more = Keyword(*closed, "additionalProperties");
    const SchemaJson* theirs = Keyword(*other, "properties");
    if (more == nullptr || *more == true || theirs == nullptr || !theirs->is_object()) continue;
    const SchemaJson* mine = Keyword(*closed, "properties");
    for (const auto& [name, property] : theirs->items()) {
      if (mine != nullptr && mine->contains(name)) continue;
      auto both =
          MergeSchemas(merge.Deeper(), *more, property, absl::StrCat(path, ".properties.", name));
      if (!both.ok() && !IsUnmet(both.status())) return both.status();
      merged["properties"][name] = both.ok() ? *std::move(both) : SchemaJson(false);
    }
  }
  return merged;
}

bool AreDisjoint(const SchemaJson& document, const SchemaJson& a, const SchemaJson& b, int depth) {
  const SchemaJson* left = Follow(document, a);
  const SchemaJson* right = Follow(document, b);
  if (left == nullptr || right == nullptr || depth > kSchemaDepthMax) return false;
  if (!left->is_object() || !right->is_object()) return *left == false || *right == false;
  const std::vector<SchemaJson> values = ValuesOf(*left), others = ValuesOf(*right);
  if (!values.empty() && !others.empty()) {
    return std::none_of(values.begin(), values.end(), [&others](const SchemaJson& value) {
      return std::find(others.begin(), others.end(), value) != others.end();
    });
  }
  const auto types = TypesOf(*left, ""), other_types = TypesOf(*right, "");
  if (!types.ok() || !other_types.ok()) return false;
  const auto has_none = [](const std::vector<SchemaJson>& list,
                           const std::vector<std::string>& of) {
    return !of.empty() && std::none_of(list.begin(), list.end(), [&of](const SchemaJson& value) {
      return std::any_of(of.begin(), of.end(),
                         [&value](const std::string& type) { return HasType(value, type); });
    });
  };
  if (!values.empty() && has_none(values, *other_types)) return true;
  if (!others.empty() && has_none(others, *types)) return true;
  if (types->empty() || other_types->empty()) return false;
  const std::vector<std::string> both = Intersect(*types, *other_types);
  if (both.empty()) return true;
  if (both != std::vector<std::string>{"object"}) return false;
  // Objects: by a property with disjoint values.
  if (RequiresWhatIsNeverIn(*left, *right) && RequiresWhatIsNeverIn(*right, *left)) return true;
  const SchemaJson* properties = Keyword(*left, "properties");
  const SchemaJson* other = Keyword(*right, "properties");
  if (properties == nullptr || other == nullptr || !properties->is_object() ||
      !other->is_object()) {
    return false;
  }
  for (const auto& [name, property] : properties->items()) {
    if (Requires(*left, name) && Requires(*right, name) && other->contains(name) &&
        AreDisjoint(document, property, (*other)[name], depth + 1)) {
      return true;
    }
  }
  return false;
}

}  // namespace strata
