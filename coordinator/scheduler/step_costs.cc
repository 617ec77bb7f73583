#include "coordinator/scheduler/step_costs.h"

#include <algorithm>

namespace strata {
namespace {

// Weight of a new observation beside all before it: a stage's speed drifts with the context and
// with the machine's other load.
constexpr double kNewWeight = 0.1;
// A step that took longer than so many times the expected time was delayed by something else and
// counts as that limit, unless the step before it was as slow.
constexpr double kSlowerMax = 1.5;
// But nothing makes a step faster than it can be: then the expectation was wrong, and starts anew.
constexpr double kFasterMax = 2;
constexpr double kTickUs = 100;  // smaller differences are ignored
// The fixed cost of a step, in rows. It sets the line's slope as long as the observed numbers of
// rows deviate from their mean by less than a share of it (kSpread). A cell costs nothing as long
// as their numbers do.
constexpr double kStepRows = 3;
constexpr double kSpread = 0.2;
// The least slope, as a share of that one: else the largest steps might seem to cost nothing more.
constexpr double kSlopeMin = 0.25;
// The estimate for several rows is trusted for so many steps of one row. Then several are tried
// again, as if they took no longer than one by one: steps of one row say nothing about them.
constexpr uint32_t kOnesMax = 16;

// Simulates steps through stages that each take one step at a time.
class Playback {
 public:
  explicit Playback(const StepCosts& costs) : costs_(costs), free_us_(costs.n_stages(), 0) {}

  // The last stage was busy until then.
  void LastStageWasBusyUntil(double us) { free_us_.back() = std::max(free_us_.back(), us); }

  // When the step comes back.
  double Run(double submitted_us, StepSize size) {
    double us = submitted_us;
    for (uint32_t stage = 0; stage < costs_.n_stages(); ++stage) {
      us = std::max(us, free_us_[stage]) + costs_.Us(stage, size);
      free_us_[stage] = us;
    }
    return us;
  }

 private:
  const StepCosts& costs_;
  std::vector<double> free_us_;  // [n_stages]
};

double LargestStageUs(const StepCosts& costs, StepSize size) {
  double us = 0;
  for (uint32_t k = 0; k < costs.n_stages(); ++k) us = std::max(us, costs.Us(k, size));
  return us;
}

double PathUs(const StepCosts& costs, StepSize size) {
  double us = 0;
  for (uint32_t k = 0; k < costs.n_stages(); ++k) us += costs.Us(k, size);
  return us;
}

bool KeepsTo(const StepCosts& costs, const ChunkQuery& q, uint32_t chunk) {
  // A round of decodes without prompts: each group waits for the others at the slowest stage.
  double round_us = q.decodes.rows > 0 ? LargestStageUs(costs, q.decodes) : 0;
  double path_us = PathUs(costs, q.decodes);  // of the group that takes longest
  for (const PendingStep& step : q.in_flight) {
    if (step.next.rows > 0) round_us += LargestStageUs(costs, step.next);
    path_us = std::max(path_us, PathUs(costs, step.next));
  }
  const auto own_us = [&](StepSize size) { return std::max(round_us, PathUs(costs, size)); };
  const StepSize formed = q.decodes + StepSize::Of(q.prompt_position, chunk);
  // All steps that carry chunks get the same share: small ones cost more for each row, and a large
  // one would leave the other stages without work.
  const double round_max_us = std::max(round_us, path_us) + static_cast<double>(q.mean_wait_us);
  const double mean_us =
      q.n_apart > 0 ? (round_max_us - round_us) / q.n_apart : round_max_us / costs.n_stages();
  for (uint32_t k = 0; k < costs.n_stages(); ++k) {
    if (costs.Us(k, formed) > mean_us) return false;
  }

  Playback playback(costs);
  playback.LastStageWasBusyUntil(static_cast<double>(q.last_result_us));
  const auto now_us = static_cast<double>(q.now_us);
  struct Next {
    double at_us;
    StepSize size;
  };
  std::vector<Next> next;
  for (const PendingStep& step : q.in_flight) {
    const double back_us =
        std::max(now_us, playback.Run(static_cast<double>(step.submitted_us), step.size));
    if (step.next.rows > 0) next.push_back({back_us, step.next});
  }
  const auto wait_us = static_cast<double>(q.wait_us);
  const double back_us = playback.Run(now_us, formed);
  if (q.decodes.rows > 0 && back_us - now_us > own_us(q.decodes) + wait_us) return false;
  for (const Next& step : next) {
    const double took_us = playback.Run(step.at_us, step.size) - step.at_us;
    if (took_us > own_us(step.size) + wait_us) return false;
  }
  return true;
}

}  // namespace

// Least squares, drawn to `usual` for a row and to nothing for a cell as long as their numbers vary
// little.
double StepCosts::Plane::Us(double rows, double cells) const {
  const double usual = us_ / (rows_ + kStepRows);
  const auto square = [](double value) { return value * value; };
  const double row_ridge = square(kSpread * rows_);
  const double row_row = rows_rows_ - square(rows_) + row_ridge;
  const double cell_cell = cells_cells_ - square(cells_) + square(kSpread * cells_);
  const double row_cell = rows_cells_ - rows_ * cells_;
  const double row_us = rows_us_ - rows_ * us_ + row_ridge * usual;
  const double cell_us = cells_us_ - cells_ * us_;
  const double determinant = row_row * cell_cell - row_cell * row_cell;
  const double row_min = kSlopeMin * usual;
  double of_cell = 0;
  if (cells_ > 0 && determinant > 0) {
    of_cell = std::clamp((cell_us * row_row - row_us * row_cell) / determinant, 0.0,
                         (us_ - row_min * rows_) / cells_);
  }
  const double of_row = std::clamp((row_us - of_cell * row_cell) / row_row, row_min,
                                   (us_ - of_cell * cells_) / rows_);
  return us_ + of_row * (rows - rows_) + of_cell * (cells - cells_);
}

void StepCosts::Plane::Observe(double rows, double cells, double us) {
  if (known()) {
    const double expected_us = Us(rows, cells) + kTickUs;
    const bool is_slow = us > kSlowerMax * expected_us;
    if (is_slow && !was_slow_) us = kSlowerMax * expected_us;
    was_slow_ = is_slow;
    if (kFasterMax * (us + kTickUs) < expected_us) weight_ = 0;
  }
  weight_ = 1 + (1 - kNewWeight) * weight_;
  const auto take = [&](double value, double* mean) { *mean += (value - *mean) / weight_; };
  take(rows, &rows_);
  take(cells, &cells_);
  take(us, &us_);
  take(rows * rows, &rows_rows_);
  take(rows * cells, &rows_cells_);
  take(cells * cells, &cells_cells_);
  take(rows * us, &rows_us_);
  take(cells * us, &cells_us_);
}

void StepCosts::Observe(uint32_t stage, StepSize size, int64_t us) {
  if (stage >= stages_.size() || size.rows == 0 || us < 0) return;
  Stage& s = stages_[stage];
  (size.rows == 1 ? s.one : s.more)
      .Observe(size.rows, static_cast<double>(size.cells), static_cast<double>(us));
  s.ones = size.rows == 1 ? s.ones + 1 : 0;
}

bool StepCosts::known() const {
  return std::all_of(stages_.begin(), stages_.end(),
                     [](const Stage& s) { return s.one.known() || s.more.known(); });
}

double StepCosts::Us(uint32_t stage, StepSize size) const {
  const Stage& s = stages_[stage];
  if (size.rows == 0) return 0;
  const auto cells = static_cast<double>(size.cells);
  const double more_us = s.more.known() ? s.more.Us(size.rows, cells) : 0;
  if (!s.one.known()) return more_us;
  const double one_us = s.one.Us(1, cells / size.rows);
  if (size.rows == 1 || !s.more.known()) return size.rows * one_us;
  const double us = std::max(more_us, one_us);
  return s.ones > kOnesMax ? std::min(us, size.rows * one_us) : us;
}

uint32_t ChunkWithin(const StepCosts& costs, const ChunkQuery& query) {
  uint32_t fits = 0;  // a step without prompts is always allowed
  uint32_t above = query.chunk_max + 1;
  while (above - fits > 1) {
    const uint32_t middle = fits + (above - fits) / 2;
    (KeepsTo(costs, query, middle) ? fits : above) = middle;
  }
  return fits;
}

uint32_t ChunkForThroughput(const StepCosts& costs, const ThroughputQuery& q) {
  if (!costs.known()) return q.chunk_min;
  const auto stage_us = [&](uint32_t chunk) {
    const uint32_t rows = std::min(chunk, q.rows_left);
    return LargestStageUs(costs, {rows, uint64_t{rows} * q.position});
  };
  const auto all_us = [&](uint32_t chunk) {
    const uint32_t n_steps = (q.rows_left + chunk - 1) / chunk + costs.n_stages() - 1;
    return n_steps * stage_us(chunk);
  };
  uint32_t best = q.chunk_min;
  for (uint32_t chunk = 2 * q.chunk_min; chunk <= q.chunk_max && best < q.rows_left; chunk *= 2) {
    if (stage_us(chunk) > static_cast<double>(q.stage_us_max)) break;
    // Equal for one stage, where steps of that size have not been observed: taking it observes
    // them.
    if (all_us(chunk) <= all_us(best)) best = chunk;
  }
  return best;
}

}  // namespace strata
