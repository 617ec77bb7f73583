// Any bytes as a body of /v1/messages: parsing ends in a request within its bounds or in an error
// for the client.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "absl/strings/string_view.h"
#include "node/api/anthropic/anthropic_request.h"

namespace strata {
namespace {

void Check(bool right) {
  if (!right) std::abort();
}

}  // namespace
}  // namespace strata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using strata::Check;
  const auto request =
      strata::ParseAnthropicMessages(absl::string_view(reinterpret_cast<const char*>(data), size));
  if (!request.ok()) {
    const absl::Status& status = request.status();
    Check(absl::IsInvalidArgument(status) || absl::IsUnimplemented(status) ||
          absl::IsResourceExhausted(status));
    Check(!status.message().empty());
    return 0;
  }
  Check(request->chat && request->n == 1 && !request->messages.empty());
  Check(request->messages.size() <= strata::kApiMessagesMax);
  Check(request->tools.list.size() <= strata::kApiToolsMax);
  Check(request->stops.size() <= strata::kApiStopsMax);
  return 0;
}
