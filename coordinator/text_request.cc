#include "coordinator/text_request.h"

#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace strata {
namespace {

constexpr absl::string_view kRetryAfterMs = "strata/retry_after_ms";
constexpr absl::string_view kOfOneClient = "strata/of_one_client";
constexpr absl::string_view kHandedOver = "strata/handed_over";

bool IsMarked(const absl::Status& status, absl::string_view mark) {
  return status.GetPayload(mark).has_value();
}

absl::Status Marked(absl::Status status, absl::string_view mark) {
  status.SetPayload(mark, absl::Cord(absl::string_view("yes")));
  return status;
}

}  // namespace

std::string PromptTooLong(uint64_t prompt_tokens, uint32_t n_ctx) {
  return absl::StrCat("the prompt is too long: it has ", prompt_tokens,
                      " tokens, this model's maximum context length is ", n_ctx,
                      " tokens, and the context window holds the prompt and its answer. Shorten "
                      "the prompt, or load the model with a larger --ctx");
}

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

bool IsOfOneClient(const absl::Status& status) { return IsMarked(status, kOfOneClient); }
absl::Status AsOfOneClient(absl::Status status) { return Marked(std::move(status), kOfOneClient); }
bool IsHandedOver(const absl::Status& status) { return IsMarked(status, kHandedOver); }
absl::Status AsHandedOver(absl::Status status) { return Marked(std::move(status), kHandedOver); }

}  // namespace strata
