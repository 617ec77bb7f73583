#include "coordinator/scheduler/draft_trial.h"

#include <algorithm>

namespace strata {

void DraftTrial::Mean::Add(double sample) {
  us = known ? us + (sample - us) / kTrialTokens : sample;
  known = true;
}

void DraftTrial::Observe(int64_t us) {
  if (++seen_ <= kSettleTokens) return;
  (drafts() ? with_ : without_).Add(static_cast<double>(us));
  if (seen_ < until_) return;
  seen_ = 0;
  is_trial_ = !is_trial_;
  if (is_trial_) {
    until_ = kSettleTokens + kTrialTokens;
    return;
  }
  const bool faster = with_.us <= without_.us;
  between_ = faster == faster_ ? std::min(2 * between_, kBetweenTokensMax) : kBetweenTokens;
  faster_ = faster;
  until_ = between_;
}

}  // namespace strata
