// A status tells more of a request than its code and words, in payloads that go with it from where
// it arises to the socket. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace strata {

// When to try again, with a status that says that too many wait; nullopt: it does not say.
std::optional<int64_t> RetryAfterMs(const absl::Status& status);
absl::Status WithRetryAfterMs(absl::Status status, int64_t retry_after_ms);
// Where nothing better is known: what is in the way is being recovered, or ends by itself.
inline constexpr int64_t kRetrySoonMs = 2'000;
// Whether those who wait are this client's own; else everybody's.
bool IsOfOneClient(const absl::Status& status);
absl::Status AsOfOneClient(absl::Status status);
// Whether the text was let go of and not ended: another node may coordinate soon and go on with it.
bool IsLeaderChanged(const absl::Status& status);
absl::Status AsLeaderChanged(absl::Status status);

// kInvalidArgument about the field `param` of a request.
absl::Status BadParam(absl::string_view param, absl::string_view words);
// kUnimplemented about it: known, and not there yet. A 400 for the client.
absl::Status UnsupportedParam(absl::string_view param, absl::string_view words = "");
// `status` with the code that programs compare, "model_not_found".
absl::Status WithErrorCode(absl::Status status, absl::string_view code);
// The field and the code that a status has; empty: none.
std::string ParamOf(const absl::Status& status);
std::string ErrorCodeOf(const absl::Status& status);

}  // namespace strata
