// Any bytes as a body of OpenAI's Responses API: parsing ends in a request within its bounds or in
// an error for the client.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "absl/strings/string_view.h"
#include "node/api/responses/responses_request.h"

namespace strata {
namespace {

void Check(bool right) {
  if (!right) std::abort();
}

void CheckBody(absl::string_view body) {
  ResponseStore store;
  store.Put("", "resp_1",
            {.output = R"([{"type":"function_call","id":"fc_1","call_id":"c",
                "name":"f","arguments":"{}"}])",
             .input = R"([{"type":"message","role":"user","content":"x"}])",
             .output_ids = {"fc_1"}});
  const absl::StatusOr<ResponsesRequest> request = ParseResponses(body, "", &store);
  if (!request.ok()) {
    Check(absl::IsInvalidArgument(request.status()) || absl::IsUnimplemented(request.status()) ||
          absl::IsResourceExhausted(request.status()));
    Check(!request.status().message().empty());
    return;
  }
  Check(request->api.chat && !request->api.messages.empty());
  Check(request->api.messages.size() <= kApiMessagesMax + 1);
  Check(request->api.tools.list.size() <= kApiToolsMax);
  Check(request->items.is_array() && request->echo.is_object());
}

}  // namespace
}  // namespace strata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  strata::CheckBody(absl::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
