// Random schemas against a validator of another make: what their grammars write meets them, and
// small values that meet them can be written; what a grammar does not keep, SchemaCheck finds.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json-schema.hpp"
#include "node/grammar/json_schema_grammar.h"
#include "node/grammar/schema_check.h"
#include "shard/sampling/gbnf.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/support/gbnf_text.h"

namespace strata {
namespace {

using Json = nlohmann::json;

constexpr int kDepthMax = 4;
constexpr size_t kTextsPerSchema = 3;

// Schemas of draft 7, which the other validator reads.
class SchemaMaker {
 public:
  explicit SchemaMaker(FuzzInput* input) : input_(*input) {}

  SchemaJson Make() {
    SchemaJson root = Schema(0);
    if (!uses_ref_ || !root.is_object()) return root;
    in_definition_ = true;
    root["definitions"]["d"] = Schema(1);
    return root;
  }

 private:
  uint32_t Pick(uint32_t n) { return input_.Number(1) % n; }
  bool Coin() { return Pick(2) == 0; }
  template <typename T, size_t N>
  T One(const T (&list)[N]) {
    return list[Pick(N)];
  }

  SchemaJson Schema(int depth) {
    const uint32_t kind = Pick(depth >= kDepthMax ? 7 : 13);
    switch (kind) {
      case 0:
        return {{"type", One({"null", "boolean", "string", "integer", "number"})}};
      case 1:
        return String();
      case 2:
        return {{"type", "string"},
                {"format",
                 One({"date", "time", "date-time", "uuid", "ipv4", "ipv6", "email", "hostname"})}};
      case 3:
        return Integer();
      case 4:
        return Number();
      case 5:
        return {{"enum", SchemaJson::array({Value(), Value(), Value()})}};
      case 6: {
        SchemaJson schema = {{"type", "string"}};
        schema["pattern"] = One({"^[a-c]{1,3}$", "b", "^a|b$", "^(?=.*1)[a-c1]+$", "^(?!a)[a-c]*$",
                                 "^(a|bc)*$", "^[^b]$", "^\\w+\\s\\d?$", "a(?!b)"});
        if (Coin()) schema["maxLength"] = Pick(6);
        return schema;
      }
      case 7:
      case 8:
        return Array(depth);
      case 9:
      case 10:
        return Object(depth);
      case 11: {
        SchemaJson schema = SchemaJson::object();
        schema[One({"anyOf", "oneOf", "allOf"})] =
            SchemaJson::array({Schema(depth + 1), Schema(depth + 1)});
        return schema;
      }
      default:
        return Rare(depth);
    }
  }
  SchemaJson Value() {
    constexpr const char* kValues[] = {"null",  "true",   "0",      "1",  "2.5", "-3", "\"\"",
                                       "\"a\"", "\"ab\"", "\"b1\"", "[]", "[1]", "{}", "{\"a\":1}"};
    return SchemaJson::parse(One(kValues));
  }
  SchemaJson String() {
    SchemaJson schema = {{"type", "string"}};
    if (Coin()) schema["minLength"] = Pick(4);
    if (Coin()) schema["maxLength"] = Pick(6);
    return schema;
  }
  SchemaJson Integer() {
    SchemaJson schema = {{"type", "integer"}};
    constexpr int64_t kBounds[] = {
        0, 1, -1, 7, -12, 99, 100, -1000, 9007199254740991, -9007199254740991};
    if (Coin()) schema[One({"minimum", "exclusiveMinimum"})] = One(kBounds);
    if (Coin()) schema[One({"maximum", "exclusiveMaximum"})] = One(kBounds);
    if (Pick(4) == 0) schema["multipleOf"] = 1 + Pick(13);
    return schema;
  }
  SchemaJson Number() {
    SchemaJson schema = {{"type", "number"}};
    constexpr double kBounds[] = {0, 0.5, -0.5, 1, 1.25, -2.75, 100, 1e-3, -1e-3, 12.5};
    if (Coin()) schema[One({"minimum", "exclusiveMinimum"})] = One(kBounds);
    if (Coin()) schema[One({"maximum", "exclusiveMaximum"})] = One(kBounds);
    if (Pick(4) == 0) schema["multipleOf"] = 0.5;
    return schema;
  }
  // Of an item or a property: a value that is smaller.
  SchemaJson Part(int depth) {
    ++parts_;
    SchemaJson schema = Schema(depth + 1);
    --parts_;
    return schema;
  }
  SchemaJson Array(int depth) {
    SchemaJson schema = {{"type", "array"}};
    if (Coin()) {
      schema["items"] = Part(depth);
    } else {
      schema["items"] = SchemaJson::array({Part(depth), Part(depth)});
      if (Coin()) schema["additionalItems"] = Part(depth);
    }
    if (Coin()) schema["minItems"] = Pick(3);
    if (Coin()) schema["maxItems"] = Pick(4);
    if (Pick(4) == 0) schema["uniqueItems"] = true;
    if (Pick(4) == 0) schema["contains"] = Part(depth);
    return schema;
  }
  SchemaJson Object(int depth) {
    SchemaJson schema = {{"type", "object"}};
    for (const char* name : {"a", "ab", "x\"y"}) {
      if (Coin()) schema["properties"][name] = Part(depth);
      if (Pick(4) == 0) schema["required"].push_back(name);
    }
    if (Coin()) schema["additionalProperties"] = Coin() ? SchemaJson(Coin()) : Part(depth);
    if (Pick(4) == 0) {
      schema["patternProperties"][One({"^a", "b$", "^[a-c]*$"})] = Part(depth);
      if (Coin()) schema["patternProperties"]["c"] = Part(depth);
    }
    if (Pick(4) == 0) schema["propertyNames"] = {{"pattern", One({"^[ab]*$", "b"})}};
    if (Pick(6) == 0) schema["minProperties"] = Pick(3);
    if (Pick(6) == 0) schema["maxProperties"] = Pick(3);
    if (Pick(6) == 0) schema["dependencies"]["a"] = SchemaJson::array({"ab"});
    return schema;
  }
  SchemaJson Rare(int depth) {
    SchemaJson schema = SchemaJson::object();
    switch (Pick(4)) {
      case 0:
        schema = Schema(depth + 1);
        if (schema.is_object() && !schema.contains("$ref")) schema["not"] = Schema(depth + 1);
        return schema;
      case 1:
        schema = Schema(depth + 1);
        if (!schema.is_object() || schema.contains("$ref")) return schema;
        schema["if"] = Schema(depth + 1);
        schema["then"] = Schema(depth + 1);
        return schema;
      case 2:
        return {{"const", Value()}};
      default:
        // The other validator's stack does not end in a circle.
        if (in_definition_ && parts_ == 0) return true;
        uses_ref_ = true;
        return {{"$ref", "#/definitions/d"}};
    }
  }

  FuzzInput& input_;
  bool uses_ref_ = false;
  bool in_definition_ = false;
  int parts_ = 0;
};

// The other validator; unusable where it takes the schema for no schema.
class OtherValidator {
 public:
  explicit OtherValidator(const Json& schema)
      : text_(schema.dump()),
        validator_(nullptr, nlohmann::json_schema::default_string_format_check) {
    try {
      validator_.set_root_schema(schema);
      usable_ = true;
    } catch (const std::exception&) {
    }
  }
  bool usable() const { return usable_; }
  // Its expressions read bytes, it takes large numbers for multiples of any, and 3e1 for no
  // integer.
  bool IsExactFor(const std::string& value) const {
    size_t digits = 0, most = 0;
    bool is_ascii = true, is_whole = true;
    for (const char c : value) {
      is_whole = is_whole && (digits == 0 || (c != '.' && c != 'e' && c != 'E'));
      digits = absl::ascii_isdigit(static_cast<unsigned char>(c)) ? digits + 1 : 0;
      most = std::max(most, digits);
      is_ascii = is_ascii && absl::ascii_isascii(static_cast<unsigned char>(c));
    }
    return (is_ascii || !absl::StrContains(text_, "attern")) &&
           (is_whole || !absl::StrContains(text_, "\"integer\"")) &&
           (most < 7 || !absl::StrContains(text_, "multipleOf"));
  }
  bool Meets(const Json& value) const {
    class Errors final : public nlohmann::json_schema::basic_error_handler {
    } errors;
    validator_.validate(value, errors);
    return !static_cast<bool>(errors);
  }

 private:
  const std::string text_;
  nlohmann::json_schema::json_validator validator_;
  bool usable_ = false;
};

void Expect(bool right, const char* what, const SchemaJson& schema, const std::string& value) {
  if (right) return;
  std::cerr << what << "\nschema: " << schema.dump() << "\nvalue: " << value << "\n";
  std::abort();
}

// Keys come in the schema's order and no others beside it: more is written than meets a schema of
// objects.
bool IsWithoutObjects(const std::string& schema) {
  for (const char* word : {"\"object\"", "{}", "{\"a\":1}", "additionalItems", "\"items\":["}) {
    if (absl::StrContains(schema, word)) return false;
  }
  return true;
}

void Try(FuzzInput input) {
  const SchemaJson schema = SchemaMaker(&input).Make();
  const OtherValidator other(schema);
  SchemaCheck check(schema);
  // Whether both tell the same of a value, and what.
  const auto meets = [&](const std::string& text) {
    const absl::Status status = check.CheckText(text);
    Expect(!absl::IsResourceExhausted(status), "too large", schema, text);
    if (other.usable() && other.IsExactFor(text)) {
      Expect(other.Meets(Json::parse(text)) == status.ok(),
             status.ok() ? "only we take it" : "only we refuse it", schema, text);
    }
    return status.ok();
  };
  constexpr const char* kValues[] = {
      "null",   "true",         "0",       "1",         "-3",
      "2.5",    "100",          "0.5",     "\"\"",      "\"a\"",
      "\"ab\"", "\"b1\"",       "\"a b\"", "[]",        "[1]",
      "[1,1]",  "[\"a\",null]", "{}",      "{\"a\":1}", "{\"a\":1,\"ab\":\"a\"}"};
  JsonGrammar grammar;
  auto root = grammar.Schema(schema, "schema");
  const auto printed = root.ok() ? grammar.Finish(*std::move(root), "schema")
                                 : absl::StatusOr<std::string>(root.status());
  const bool all_can_be_written = IsWithoutObjects(schema.dump());
  if (!printed.ok()) {
    for (const char* value : kValues) {
      const bool met = meets(value);
      Expect(!met || !all_can_be_written || !IsUnmet(printed.status()), "a value meets it", schema,
             value);
    }
    return;
  }
  const auto parsed = ParseGbnf(*printed);
  Expect(parsed.ok(), "no grammar", schema, *printed);
  const GbnfText texts(*parsed);
  for (const char* value : kValues) {
    const bool met = meets(value);
    Expect(!met || !all_can_be_written || texts.Reads(value), "cannot be written", schema, value);
    Expect(met || !grammar.relaxed().empty() || !texts.Reads(value), "can be written", schema,
           value);
  }
  for (size_t i = 0; i < kTextsPerSchema; ++i) {
    const std::string text = texts.Write([&](uint32_t n) { return input.Number(2) % n; }, 60);
    Expect(Json::accept(text), "is no JSON", schema, text);
    const bool met = meets(text);
    Expect(met || !grammar.relaxed().empty(), "is written, but does not meet it", schema, text);
  }
}

}  // namespace
}  // namespace strata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  strata::Try(strata::FuzzInput(data, size));
  return 0;
}
