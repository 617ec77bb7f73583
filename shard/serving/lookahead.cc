#include "shard/serving/lookahead.h"

#include <algorithm>

namespace strata {
namespace {

// Right predictions that are required before a step is begun: a sequence has started to decode.
constexpr uint32_t kInARowMin = 2;
// Microseconds; a begun step that is awaited for longer was still in flight when it came.
constexpr int64_t kWaitMin = 200;

}  // namespace

bool Lookahead::Observe(const wire::Step& step) {
  const bool is_right = known_ && step.edits().empty() && step.opens().empty() &&
                        std::ranges::equal(step.tokens(), tokens_) &&
                        std::ranges::equal(step.positions(), positions_) &&
                        std::ranges::equal(step.slots(), slots_) &&
                        std::ranges::equal(step.sample_rows(), output_rows_);
  in_a_row_ = is_right ? in_a_row_ + 1 : 0;
  known_ = false;
  return is_right;
}

int64_t Lookahead::RecordStep(const wire::Step& step, bool was_begun, int64_t came_us,
                              int64_t computed_us) {
  if (has_begun_) {
    rest_ = was_begun ? 0 : next_rest_;
    next_rest_ = was_begun ? 1 : std::min(2 * next_rest_, kRestMax);
  } else if (rest_ > 0) {
    --rest_;
  }
  has_begun_ = false;
  const int64_t all_us = computed_us - (was_begun ? since_us_ : came_us);
  if (was_begun && computed_us - came_us < kWaitMin && rows_ == step.tokens_size()) {
    return std::min(all_us, took_us_);
  }
  rows_ = step.tokens_size();
  took_us_ = all_us;
  return all_us;
}

void Lookahead::OnBegun(int64_t since_us) {
  has_begun_ = true;
  since_us_ = since_us;
}

bool Lookahead::Guess(const wire::Step& step, const wire::Result& result) {
  const int n = step.tokens_size();
  if (n == 0 || step.sample_rows_size() != n || result.tokens_size() != n ||
      result.errors_size() > 0) {
    return false;
  }
  tokens_.clear();
  positions_.clear();
  for (int i = 0; i < n; ++i) {
    if (result.tokens(i).end_of_generation()) return false;
    tokens_.push_back(result.tokens(i).token());
    positions_.push_back(step.positions(i) + 1);
  }
  slots_.assign(step.slots().begin(), step.slots().end());
  output_rows_.assign(step.sample_rows().begin(), step.sample_rows().end());
  known_ = true;
  return in_a_row_ >= kInARowMin && rest_ == 0;
}

Stage::Batch Lookahead::batch() const {
  Stage::Batch batch;
  batch.tokens = tokens_;
  batch.positions = positions_;
  batch.slots = slots_;
  batch.output_rows = output_rows_;
  return batch;
}

}  // namespace strata
