// Decides by measurement whether drafts pay: stages that share a processor, or other programs on
// it, make the steps of drafts delay those that are waited for. Part of the scheduler: no I/O, one
// thread.
#pragma once

#include <cstdint>

namespace strata {

class DraftTrial {
 public:
  // Tokens in which the slower way is tried again, behind so many of the faster one at least.
  static constexpr uint32_t kTrialTokens = 12;
  static constexpr uint32_t kBetweenTokens = 256;

  // A token for which there was a draft came so long after the one before it, of a sequence that
  // had the stages for itself.
  void Observe(int64_t us);
  // Whether drafts are computed now.
  bool drafts() const { return faster_ != is_trial_; }

 private:
  // Tokens behind a change, which steps of before delay.
  static constexpr uint32_t kSettleTokens = 2;
  static constexpr uint32_t kBetweenTokensMax = 4096;

  struct Mean {
    double us = 0;
    bool known = false;
    void Add(double sample);
  };

  Mean with_, without_;
  bool is_trial_ = false;              // of the slower way
  uint32_t seen_ = 0;                  // tokens since the last change
  uint32_t until_ = 2 * kTrialTokens;  // of them until the next one
  uint32_t between_ = kBetweenTokens;  // twice as many each time that the faster way stays it
  bool faster_ = true;                 // as of the last trial: with drafts
};

}  // namespace strata
