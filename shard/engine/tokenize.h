// Text to tokens and back, by libllama's tokenizer. Used by the compute thread of a stage with a
// vocabulary.
#pragma once

#include "absl/status/statusor.h"
#include "proto/node.pb.h"

struct llama_vocab;

namespace strata {

// Longest text, bytes. A longer one is a mistake, and libllama counts in int32.
inline constexpr size_t kTokenizeBytesMax = 16u << 20;

// kInvalidArgument: the text is too long, or the model has no tokenizer; retries are useless. An
// empty text gives the special tokens of `add_special`.
absl::StatusOr<wire::TokenizeResponse> TokenizeText(const llama_vocab* vocab,
                                                    const wire::TokenizeRequest& request,
                                                    uint32_t n_ctx_train);

// The texts of the tokens, one behind the other; control tokens have their name.
// kInvalidArgument: there is no such token, or the model has no tokenizer.
absl::StatusOr<wire::DetokenizeResponse> DetokenizeTokens(const llama_vocab* vocab,
                                                          const wire::DetokenizeRequest& request);

}  // namespace strata
