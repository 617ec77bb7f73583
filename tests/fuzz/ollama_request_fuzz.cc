// Any bytes as a body of Ollama's API: parsing ends in a request within its bounds or in an error
// for the client.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "absl/strings/string_view.h"
#include "node/api/ollama/ollama_request.h"

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

void CheckRequest(const absl::StatusOr<OllamaRequest>& parsed) {
  if (!parsed.ok()) return CheckError(parsed.status());
  const ApiRequest& request = parsed->request;
  Check(parsed->only_loads || !(request.chat ? request.messages.empty() : request.prompts.empty()));
  Check(request.messages.size() <= kApiMessagesMax && request.tools.list.size() <= kApiToolsMax);
  Check(request.n == 1 && request.stops.size() <= kApiStopsMax);
  if (request.chat) Check(AsCompletion(request).prompts.size() == 1);
}

}  // namespace
}  // namespace strata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view body(reinterpret_cast<const char*>(data), size);
  strata::CheckRequest(strata::ParseOllamaChat(body));
  strata::CheckRequest(strata::ParseOllamaGenerate(body));
  if (const auto model = strata::ParseOllamaModel(body); !model.ok()) {
    strata::CheckError(model.status());
  }
  for (const auto& request :
       {strata::ParseOllamaEmbed(body), strata::ParseOllamaEmbeddings(body)}) {
    if (!request.ok()) strata::CheckError(request.status());
  }
  return 0;
}
