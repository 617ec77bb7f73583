#include "node/api/responses/responses_error.h"

#include "absl/strings/match.h"
#include "node/api/openai/openai_error.h"

namespace strata {

std::string ResponsesError(const ApiError& error) {
  constexpr absl::string_view kMessages = "messages";
  if (error.param != kMessages) return OpenAiError(error);
  ApiError named = error;
  named.param = "input";
  if (absl::StartsWith(named.message, kMessages)) {
    named.message.replace(0, kMessages.size(), named.param);
  }
  return OpenAiError(named);
}

}  // namespace strata
