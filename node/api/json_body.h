// JSON of requests, within bounds, and of responses. Pure; no byte of the input is trusted.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "nlohmann/json.hpp"

namespace strata {

// A request's body. Lone surrogates of its strings become U+FFFD, as browsers have it: JavaScript
// cuts strings inside of a character that has two escapes, and sends half of it, "\ud83d". JSON
// allows that, our parser does not.
class JsonBody {
 public:
  // REQUIRES: `text` outlives the body. kInvalidArgument: as ParseJsonObject().
  static absl::StatusOr<JsonBody> Parse(absl::string_view text);

  nlohmann::json& json() { return json_; }
  const nlohmann::json& json() const { return json_; }
  // The text that `json` was parsed from: there, objects have the order of their members.
  absl::string_view text() const { return cleaned_.empty() ? given_ : cleaned_; }

 private:
  absl::string_view given_;
  std::string cleaned_;  // empty: the given text is clean
  nlohmann::json json_;
};

// kInvalidArgument: the text is no JSON object, or exceeds kApiJsonDepthMax or kApiJsonValuesMax.
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text);

// JSON's text. Bytes that are not UTF-8 become U+FFFD: JSON cannot carry them.
std::string JsonText(const nlohmann::ordered_json& json);

// Numbers with as many digits as tell a float from all others.
nlohmann::ordered_json FloatsJson(absl::Span<const float> values);

// The texts of the elements of an array, which is valid JSON; none of any other value.
std::vector<absl::string_view> ElementTexts(absl::string_view array);

// The text of a member of the body, which is valid JSON; the last one of its name. Empty: none.
absl::string_view MemberText(absl::string_view body, absl::string_view name);

}  // namespace strata
