#include "coordinator/text_request.h"

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace strata {
namespace {

constexpr absl::string_view kRetryAfterMs = "strata/retry_after_ms";
constexpr absl::string_view kOfOneClient = "strata/of_one_client";

}  // namespace

std::optional<int64_t> RetryAfterMs(const absl::Status& status) {
  const std::optional<absl::Cord> payload = status.GetPayload(kRetryAfterMs);
  int64_t ms = 0;
  if (!payload || !absl::SimpleAtoi(std::string(*payload), &ms)) return std::nullopt;
  return ms;
}

absl::Status WithRetryAfterMs(absl::Status status, int64_t retry_after_ms) {
  // Of a view: Cord's constructor from a string has another name in clang than in gcc, which built
  // the library.
  const std::string text = absl::StrCat(retry_after_ms);
  status.SetPayload(kRetryAfterMs, absl::Cord(absl::string_view(text)));
  return status;
}

bool IsOfOneClient(const absl::Status& status) {
  return status.GetPayload(kOfOneClient).has_value();
}

absl::Status AsOfOneClient(absl::Status status) {
  status.SetPayload(kOfOneClient, absl::Cord(absl::string_view("yes")));
  return status;
}

}  // namespace strata
