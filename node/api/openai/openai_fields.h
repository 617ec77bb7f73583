// The request fields that the HTTP API knows, and how it treats each: API.md shows the same to
// people. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace strata {

enum class ApiPath { kText, kChat };  // /v1/completions, /v1/chat/completions

enum class ApiFate {
  kSupported,
  kRefused,   // but for its neutral values
  kNoEffect,  // the output does not depend on it
};
struct ApiField {
  absl::string_view name;
  ApiFate fate;
  // A JSON array of the values that change nothing and pass. So do null, "", [] and {}.
  absl::string_view neutral = "[]";
  bool chat = true, text = true;  // the paths that know it
};
// By fate, then by name.
const std::vector<ApiField>& ApiFields();

// kUnimplemented (UnsupportedParam, with the field's name): other servers support a field that
// would change the output, and this one does not. Fields in no list are ignored, as OpenAI's
// clients expect.
absl::Status CheckApiFields(const nlohmann::json& body, ApiPath path);

}  // namespace strata
