#include "shard/sampling/prompt_scores.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "shard/sampling/logprobs.h"
#include "shard/sampling/token_piece.h"

namespace strata {

PromptScores::PromptScores(absl::Span<const int32_t> prompt, uint32_t n_top,
                           const llama_vocab* vocab)
    : prompt_(prompt.begin(), prompt.end()), n_top_(n_top), vocab_(vocab) {}

absl::Status PromptScores::Check() const {
  const uint64_t n = prompt_.size() * (uint64_t{n_top_} + 1);
  if (n <= kPromptScoresMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("log-probabilities of a prompt of ", prompt_.size(), " tokens with ", n_top_,
                   " alternatives each are ", n, "; at most ", kPromptScoresMax, " are reported"));
}

wire::TokenLogprob PromptScores::Token(int32_t token) const {
  wire::TokenLogprob reported;
  reported.set_token(token);
  reported.set_piece(TokenPiece(vocab_, token, /*special=*/false));
  return reported;
}

absl::Status PromptScores::Add(int32_t position, absl::Span<const float> logits) {
  if (position < 0 || static_cast<size_t>(position) != scored_.size() ||
      scored_.size() + 1 >= prompt_.size()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "a prompt's row ", position, " is scored, where ", scored_.size(), " follows"));
  }
  if (!std::ranges::all_of(logits, [](float logit) { return logit < INFINITY; })) {
    return absl::InternalError("the model's logits are not numbers");
  }
  const Logprobs logprobs(logits);
  wire::PromptToken scored;
  *scored.mutable_token() = Token(prompt_[scored_.size() + 1]);
  scored.mutable_token()->set_logprob(logprobs.Of(scored.token().token()));
  for (const int32_t token : logprobs.Likeliest(n_top_)) {
    wire::TokenLogprob* top = scored.add_top();
    *top = Token(token);
    top->set_logprob(logprobs.Of(token));
  }
  scored_.push_back(std::move(scored));
  return absl::OkStatus();
}

absl::Status PromptScores::MoveTo(wire::SampledToken* token) {
  if (scored_.size() + 1 != prompt_.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("a prompt of ", prompt_.size(), " tokens has scores of ", scored_.size()));
  }
  *token->add_prompt()->mutable_token() = Token(prompt_[0]);
  for (wire::PromptToken& scored : scored_) *token->add_prompt() = std::move(scored);
  return absl::OkStatus();
}

}  // namespace strata
