// Any bytes as a body of Gemini's methods: parsing ends in a request within its bounds or in an
// error for the client.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "absl/strings/string_view.h"
#include "node/api/gemini/gemini_request.h"

namespace strata {
namespace {

void Check(bool right) {
  if (!right) std::abort();
}

void CheckError(const absl::Status& status) {
  Check(absl::IsInvalidArgument(status) || absl::IsUnimplemented(status) ||
        absl::IsResourceExhausted(status));
  Check(!status.message().empty());
}

void CheckChat(const absl::StatusOr<ApiRequest>& request) {
  if (!request.ok()) return CheckError(request.status());
  Check(request->chat && !request->messages.empty());
  Check(request->n >= 1 && request->n <= kApiChoicesMax);
  Check(request->tools.list.size() <= kApiToolsMax);
  Check(request->stops.size() <= kApiStopsMax);
}

}  // namespace
}  // namespace strata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view body(reinterpret_cast<const char*>(data), size);
  strata::CheckChat(strata::ParseGeminiGenerate(body));
  strata::CheckChat(strata::ParseGeminiCount(body));
  for (const bool is_batch : {false, true}) {
    const auto embed = strata::ParseGeminiEmbed(body, is_batch);
    if (embed.ok()) {
      strata::Check(!embed->inputs.empty() && embed->inputs.size() <= strata::kApiInputsMax);
    } else {
      strata::CheckError(embed.status());
    }
  }
  return 0;
}
