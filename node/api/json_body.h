// JSON's text of a request's body, within bounds. Pure; no byte of the input is trusted.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace strata {

// Lone surrogates of strings become U+FFFD, as browsers have it: JavaScript cuts strings inside of
// a character that has two escapes, and sends half of it, "\ud83d". JSON allows that, our parser
// does not. Empty: there are none in the body.
std::string WithoutLoneSurrogates(absl::string_view body);

// REQUIRES: `body` has no lone surrogates. kInvalidArgument: it is no JSON object, or exceeds
// kApiJsonDepthMax or kApiJsonValuesMax.
absl::StatusOr<nlohmann::json> ParseJsonBody(absl::string_view body);

// The texts of the elements of an array, which is valid JSON; none of any other value.
std::vector<absl::string_view> ElementTexts(absl::string_view array);

// The text of a member of the body, which is valid JSON; the last one of its name. Empty: none.
absl::string_view MemberText(absl::string_view body, absl::string_view name);

}  // namespace strata
