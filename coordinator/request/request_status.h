// Payloads that carry more about a failed request than its status's code and message, from where
// the status arises to the client's socket. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace strata {

// When to retry, in a status that says that the queue is full; nullopt: the status does not say.
std::optional<int64_t> RetryAfterMs(const absl::Status& status);
absl::Status WithRetryAfterMs(absl::Status status, int64_t retry_after_ms);
// The default: the obstacle is being recovered, or ends by itself.
inline constexpr int64_t kRetrySoonMs = 2'000;
// Whether the limit that was reached is this client's own, not the one for all clients.
bool IsClientLimit(const absl::Status& status);
absl::Status AsOfOneClient(absl::Status status);
// Whether the request was released, not ended: another node may become leader soon and resume it.
bool IsLeaderChanged(const absl::Status& status);
absl::Status AsLeaderChanged(absl::Status status);

// kInvalidArgument about the field `param` of a request.
absl::Status BadParam(absl::string_view param, absl::string_view words);
// kUnimplemented about a field that is known, but not supported yet. A 400 for the client.
absl::Status UnsupportedParam(absl::string_view param, absl::string_view words = "");
// `status` with the code that programs compare, "model_not_found".
absl::Status WithErrorCode(absl::Status status, absl::string_view code);
// The field and the code in a status; empty: none.
std::string ParamOf(const absl::Status& status);
std::string ErrorCodeOf(const absl::Status& status);

}  // namespace strata
