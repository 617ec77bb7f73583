#include "shard/engine/tokenize.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "llama.h"
#include "shard/sampling/token_piece.h"

namespace strata {

absl::StatusOr<wire::TokenizeResponse> TokenizeText(const llama_vocab* vocab,
                                                    const wire::TokenizeRequest& request,
                                                    uint32_t n_ctx_train) {
  if (llama_vocab_type(vocab) == LLAMA_VOCAB_TYPE_NONE) {
    return absl::InvalidArgumentError("the model has no tokenizer");
  }
  const std::string& text = request.text();
  if (text.size() > kTokenizeBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a text of ", text.size(), " bytes; at most ", kTokenizeBytesMax));
  }
  // Rarely more tokens than bytes; libllama says how many it needs when there are.
  std::vector<llama_token> tokens(text.size() + 8);
  const auto length = static_cast<int32_t>(text.size());
  for (int attempt = 0; attempt < 2; ++attempt) {
    const int32_t n = llama_tokenize(vocab, text.data(), length, tokens.data(),
                                     static_cast<int32_t>(tokens.size()), request.add_special(),
                                     request.parse_special());
    if (n >= 0) {
      wire::TokenizeResponse response;
      response.mutable_tokens()->Add(tokens.begin(), tokens.begin() + n);
      response.set_n_ctx_train(n_ctx_train);
      return response;
    }
    if (n == INT32_MIN) break;
    tokens.resize(static_cast<size_t>(-static_cast<int64_t>(n)));
  }
  return absl::InvalidArgumentError("libllama could not tokenize the text");
}

absl::StatusOr<wire::DetokenizeResponse> DetokenizeTokens(const llama_vocab* vocab,
                                                          const wire::DetokenizeRequest& request) {
  if (llama_vocab_type(vocab) == LLAMA_VOCAB_TYPE_NONE) {
    return absl::InvalidArgumentError("the model has no tokenizer");
  }
  const int32_t n_vocab = llama_vocab_n_tokens(vocab);
  std::string text;
  for (const int32_t token : request.tokens()) {
    if (token < 0 || token >= n_vocab) {
      return absl::InvalidArgumentError(
          absl::StrCat("there is no token ", token, "; the model has ", n_vocab));
    }
    text += TokenPiece(vocab, token, /*special=*/true);
    if (text.size() > kTokenizeBytesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("the tokens' text has more than ", kTokenizeBytesMax, " bytes"));
    }
  }
  wire::DetokenizeResponse response;
  response.set_text(std::move(text));
  return response;
}

}  // namespace strata
