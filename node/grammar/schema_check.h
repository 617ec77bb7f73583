// Whether a value meets a JSON Schema, for what no grammar keeps: with references followed and any
// keyword of drafts 4 to 2020-12 that is about values, but "unevaluated…", which the grammar keeps.
// Bounded in time and stack, whatever the schema. Pure; neither schema nor value is trusted.
//
// JSON Schema: https://json-schema.org/draft/2020-12/json-schema-validation
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "node/grammar/json_schema.h"
#include "node/grammar/text_matcher.h"

namespace strata {

inline constexpr size_t kSchemaCheckStepsMax = 1'000'000;
inline constexpr int kSchemaCheckDepthMax = 400;

// Not thread-safe. Its references are resolved in the schema that it is made of.
class SchemaCheck {
 public:
  using Json = nlohmann::json;

  explicit SchemaCheck(const SchemaJson& document) : document_(document) {}

  // kFailedPrecondition: the value does not meet the schema; the message names the keyword.
  // kResourceExhausted: telling that takes too long, or too deep a stack.
  absl::Status CheckText(absl::string_view text);  // of a value
  absl::Status Check(const Json& schema, const Json& value);

  // kInvalidArgument (BadSchema): a part of the schema that cannot be checked exactly.
  static absl::Status CanCheck(const SchemaJson& schema, const std::string& path);

 private:
  class Run;
  struct Pattern {
    std::optional<TextMatcher> matcher;  // null: not exact, or too large: anything matches
  };
  const Pattern& PatternOf(const std::string& regex);

  const Json document_;
  std::map<std::string, Pattern> patterns_;
  std::map<std::string, const Json*> refs_;  // their targets
};

}  // namespace strata
