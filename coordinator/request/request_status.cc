#include "coordinator/request/request_status.h"

#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "transport/rpc/status_details.h"

namespace strata {
namespace {

constexpr absl::string_view kParam = "strata/api_param";
constexpr absl::string_view kCode = "strata/api_code";
constexpr absl::string_view kRetryAfterMs = "strata/retry_after_ms";
constexpr absl::string_view kOfOneClient = "strata/of_one_client";
constexpr absl::string_view kLeaderChanged = "strata/handed_over";

bool IsMarked(const absl::Status& status, absl::string_view mark) {
  return status.GetPayload(mark).has_value();
}

absl::Status Marked(absl::Status status, absl::string_view mark) {
  status.SetPayload(mark, absl::Cord(absl::string_view("yes")));
  return status;
}

}  // namespace

std::optional<int64_t> RetryAfterMs(const absl::Status& status) {
  int64_t ms = 0;
  if (!absl::SimpleAtoi(PayloadText(status, kRetryAfterMs), &ms)) return std::nullopt;
  return ms;
}

absl::Status WithRetryAfterMs(absl::Status status, int64_t retry_after_ms) {
  // From a view: Cord's constructor from a string is mangled otherwise by clang than by gcc, which
  // built the library.
  const std::string text = absl::StrCat(retry_after_ms);
  status.SetPayload(kRetryAfterMs, absl::Cord(absl::string_view(text)));
  return status;
}

bool IsClientLimit(const absl::Status& status) { return IsMarked(status, kOfOneClient); }
absl::Status AsOfOneClient(absl::Status status) { return Marked(std::move(status), kOfOneClient); }
bool IsLeaderChanged(const absl::Status& status) { return IsMarked(status, kLeaderChanged); }
absl::Status AsLeaderChanged(absl::Status status) {
  return Marked(std::move(status), kLeaderChanged);
}

absl::Status BadParam(absl::string_view param, absl::string_view words) {
  absl::Status status = absl::InvalidArgumentError(absl::StrCat(param, ": ", words));
  status.SetPayload(kParam, absl::Cord(param));
  return status;
}

absl::Status UnsupportedParam(absl::string_view param, absl::string_view words) {
  absl::Status status = absl::UnimplementedError(
      absl::StrCat(param, words.empty() ? "" : absl::StrCat(" ", words), " is not supported yet"));
  status.SetPayload(kParam, absl::Cord(param));
  status.SetPayload(kCode, absl::Cord("unsupported_parameter"));
  return status;
}

absl::Status WithErrorCode(absl::Status status, absl::string_view code) {
  status.SetPayload(kCode, absl::Cord(code));
  return status;
}

std::string ParamOf(const absl::Status& status) { return PayloadText(status, kParam); }
std::string ErrorCodeOf(const absl::Status& status) { return PayloadText(status, kCode); }

}  // namespace strata
