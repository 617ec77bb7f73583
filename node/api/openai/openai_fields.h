// Which fields of a request the HTTP API knows, and what becomes of each: API.md shows the same to
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
  kKept,
  kRefused,   // but for its neutral values
  kNoEffect,  // nothing that is written depends on it
};
struct ApiField {
  absl::string_view name;
  ApiFate fate;
  // A JSON array of the values that ask for nothing and pass. So do null, "", [] and {}.
  absl::string_view neutral = "[]";
  bool chat = true, text = true;  // where it is known
};
// By fate, then by name.
const std::vector<ApiField>& ApiFields();

// kUnimplemented (UnsupportedParam): a field changes what is written, others keep it, and it is not
// kept here; named. Fields that are in no list are ignored, as OpenAI's clients rely on.
absl::Status CheckApiFields(const nlohmann::json& body, ApiPath path);

}  // namespace strata
