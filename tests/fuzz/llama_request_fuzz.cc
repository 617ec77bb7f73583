// Any bytes as a body of /completion, /tokenize or /rerank: parsing ends in a request within its
// bounds or in an error for the client.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "absl/strings/string_view.h"
#include "node/api/llama/llama_request.h"
#include "node/api/llama/llama_rerank.h"

namespace strata {
namespace {

void Check(bool right) {
  if (!right) std::abort();
}

void CheckError(const absl::Status& status) {
  Check(absl::IsInvalidArgument(status) || absl::IsUnimplemented(status));
  Check(!status.message().empty());
}

}  // namespace
}  // namespace strata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using strata::Check;
  const absl::string_view body(reinterpret_cast<const char*>(data), size);
  if (const auto completion = strata::ParseLlamaCompletion(body); completion.ok()) {
    const strata::ApiRequest& request = completion->request;
    Check(!request.prompts.empty());
    Check(request.prompts.size() * request.n <= strata::kApiChoicesMax);
    Check(request.stops.size() <= strata::kApiStopsMax);
    Check(!strata::LlamaSettingsJson(*completion).empty());
  } else {
    strata::CheckError(completion.status());
  }
  if (const auto tokenize = strata::ParseLlamaTokenize(body); tokenize.ok()) {
    Check(tokenize->chat || tokenize->prompts.size() == 1);
  } else {
    strata::CheckError(tokenize.status());
  }
  if (const auto detokenize = strata::ParseLlamaDetokenize(body); !detokenize.ok()) {
    strata::CheckError(detokenize.status());
  }
  if (const auto rerank = strata::ParseLlamaRerank(body); rerank.ok()) {
    const size_t n = rerank->request.documents.size();
    Check(n >= 1 && n <= strata::kApiInputsMax);
    Check(rerank->n_top >= 1 && rerank->n_top <= n);
    const strata::ApiScores scores = {.scores = std::vector<double>(n, 0.5)};
    Check(!strata::LlamaRerankJson("m", *rerank, scores).empty());
  } else {
    strata::CheckError(rerank.status());
  }
  return 0;
}
