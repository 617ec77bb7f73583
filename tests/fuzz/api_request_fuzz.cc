// Any bytes as a body of the HTTP API: parsing ends in a request within its bounds or in an error
// for the client, and so does making its grammar.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/string_view.h"
#include "node/api/answer_grammar.h"
#include "node/api/openai/openai_embeddings.h"
#include "node/api/openai/openai_request.h"
#include "node/chat/known_tool_calls.h"
#include "shard/sampling/gbnf.h"

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

void CheckRequest(absl::StatusOr<ApiRequest> request, bool chat) {
  if (!request.ok()) {
    CheckError(request.status());
    return;
  }
  Check(request->chat == chat);
  Check(chat ? !request->messages.empty() : !request->prompts.empty());
  Check(request->messages.size() <= kApiMessagesMax && request->tools.list.size() <= kApiToolsMax);
  Check(request->n >= 1 &&
        request->n * std::max<size_t>(request->prompts.size(), 1) <= kApiChoicesMax);
  Check(request->stops.size() <= kApiStopsMax);
  Check(static_cast<size_t>(request->sampler.logit_bias_size()) <= kApiLogitBiasMax);
  for (const ToolCallForm& form : KnownToolCallForms()) {
    ApiRequest constrained = *request;
    if (absl::Status status = Constrain({.calls = form}, &constrained); !status.ok()) {
      CheckError(status);
    } else if (!constrained.sampler.grammar().empty()) {
      Check(ParseGbnf(constrained.sampler.grammar(), constrained.sampler.grammar_root()).ok());
    }
  }
}

void CheckEmbeddings(const absl::StatusOr<EmbeddingRequest>& request) {
  if (!request.ok()) return CheckError(request.status());
  Check(!request->inputs.empty() && request->inputs.size() <= kApiInputsMax);
  for (const ApiPrompt& input : request->inputs) Check(input.text.empty() != input.tokens.empty());
}

}  // namespace
}  // namespace strata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view body(reinterpret_cast<const char*>(data), size);
  strata::CheckRequest(strata::ParseCompletion(body), /*chat=*/false);
  strata::CheckRequest(strata::ParseChat(body), /*chat=*/true);
  strata::CheckEmbeddings(strata::ParseEmbeddings(body));
  return 0;
}
