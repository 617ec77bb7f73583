#include "coordinator/step_costs.h"

#include <algorithm>
#include <bit>

namespace strata {
namespace {

// Weight of a new observation: a stage's speed drifts with the context and with who else uses the
// machine, and single steps are noisy.
constexpr double kNewWeight = 0.25;
// One step that something else held up must not make its size look too slow to be tried again.
constexpr double kSlowerMax = 1.5;
constexpr double kTickUs = 100;  // less is nothing
// What was observed longer ago than so many steps is tried again.
constexpr uint64_t kStepsFresh = 64;
// So many times the rows that were tried lately, and one more, are the next to try.
constexpr double kTryTimes = 1.25;

// Plays steps through stages that each take one step at a time.
class Playback {
 public:
  explicit Playback(const StepCosts& costs) : costs_(costs), free_us_(costs.n_stages(), 0) {}

  // The last stage was busy until then.
  void LastStageWasBusyUntil(double us) { free_us_.back() = std::max(free_us_.back(), us); }

  // When the step comes back.
  double Run(double submitted_us, uint32_t rows) {
    double us = submitted_us;
    for (uint32_t stage = 0; stage < costs_.n_stages(); ++stage) {
      us = std::max(us, free_us_[stage]) + costs_.Us(stage, rows);
      free_us_[stage] = us;
    }
    return us;
  }

 private:
  const StepCosts& costs_;
  std::vector<double> free_us_;  // [n_stages]
};

double LargestStageUs(const StepCosts& costs, uint32_t rows) {
  double us = 0;
  for (uint32_t k = 0; k < costs.n_stages(); ++k) us = std::max(us, costs.Us(k, rows));
  return us;
}

double PathUs(const StepCosts& costs, uint32_t rows) {
  double us = 0;
  for (uint32_t k = 0; k < costs.n_stages(); ++k) us += costs.Us(k, rows);
  return us;
}

bool KeepsTo(const StepCosts& costs, const ChunkQuestion& q, uint32_t chunk) {
  // A round of decodes without prompts: each group waits for the others at the slowest stage.
  double round_us = q.decode_rows > 0 ? LargestStageUs(costs, q.decode_rows) : 0;
  uint32_t group_rows = q.decode_rows;
  for (const StepUnderWay& step : q.in_flight) {
    if (step.samples > 0) round_us += LargestStageUs(costs, step.samples);
    group_rows = std::max(group_rows, step.samples);
  }
  const auto own_us = [&](uint32_t rows) { return std::max(round_us, PathUs(costs, rows)); };
  // All that carry chunks alike: small ones cost more for each row, and a large one would leave the
  // other stages without work.
  const double round_max_us = own_us(group_rows) + static_cast<double>(q.mean_wait_us);
  const double mean_us =
      q.n_apart > 0 ? (round_max_us - round_us) / q.n_apart : round_max_us / costs.n_stages();
  for (uint32_t k = 0; k < costs.n_stages(); ++k) {
    if (costs.LeastUs(k, q.decode_rows + chunk) > mean_us) return false;
  }

  Playback playback(costs);
  playback.LastStageWasBusyUntil(static_cast<double>(q.last_result_us));
  const auto now_us = static_cast<double>(q.now_us);
  struct Next {
    double at_us;
    uint32_t rows;
  };
  std::vector<Next> next;
  for (const StepUnderWay& step : q.in_flight) {
    const double back_us =
        std::max(now_us, playback.Run(static_cast<double>(step.submitted_us), step.rows));
    if (step.samples > 0) next.push_back({back_us, step.samples});
  }
  const auto wait_us = static_cast<double>(q.wait_us);
  const double back_us = playback.Run(now_us, q.decode_rows + chunk);
  if (q.decode_rows > 0 && back_us - now_us > own_us(q.decode_rows) + wait_us) return false;
  for (const Next& step : next) {
    const double took_us = playback.Run(step.at_us, step.rows) - step.at_us;
    if (took_us > own_us(step.rows) + wait_us) return false;
  }
  return true;
}

}  // namespace

size_t StepCosts::BucketOf(uint32_t rows) {
  if (rows <= kSingles) return rows - 1;
  const int power = std::bit_width(rows) - 1;  // rows in [2^power, 2^(power+1))
  constexpr int kFirstPower = std::bit_width(kSingles) - 1;
  const uint32_t quarter = rows >> (power - 2) & 3;
  return std::min<size_t>(kBuckets - 1,
                          kSingles - 1 + static_cast<size_t>(4 * (power - kFirstPower)) + quarter);
}

void StepCosts::Observe(uint32_t stage, uint32_t rows, int64_t us) {
  if (stage >= stages_.size() || rows == 0 || us < 0) return;
  const size_t bucket = BucketOf(rows);
  Point& point = stages_[stage].points[bucket];
  const bool is_first = point.rows == 0;
  const double weight = is_first ? 1 : kNewWeight;
  const auto took_us = static_cast<double>(us);
  const double believed_us =
      is_first ? took_us : std::min(took_us, kSlowerMax * (point.us + kTickUs));
  point.rows += weight * (rows - point.rows);
  point.us += weight * (believed_us - point.us);
  point.observed = ++stages_[stage].n_observed;
  // Fewer rows take no longer: a step that was held up by something else, of a size that is not
  // tried again because of it, is found out by larger ones.
  for (size_t i = 0; i < bucket; ++i) {
    Point& smaller = stages_[stage].points[i];
    smaller.us = std::min(smaller.us, point.us);
  }
}

bool StepCosts::known() const {
  return std::all_of(stages_.begin(), stages_.end(), [](const Stage& stage) {
    return std::any_of(std::begin(stage.points), std::end(stage.points),
                       [](const Point& point) { return point.rows > 0; });
  });
}

double StepCosts::Us(uint32_t stage, uint32_t rows) const {
  if (rows == 0) return 0;
  const Point* before = nullptr;
  double before_us = 0;  // never falls
  double slope = 0;
  for (const Point& point : stages_[stage].points) {
    if (point.rows == 0) continue;
    const double us = std::max(point.us, before_us);
    if (before == nullptr) {
      slope = us / point.rows;
      if (rows <= point.rows) return rows * slope;
    } else {
      slope = (us - before_us) / (point.rows - before->rows);
      if (rows <= point.rows) return before_us + (rows - before->rows) * slope;
    }
    before = &point;
    before_us = us;
  }
  if (before == nullptr) return 0;
  return before_us + (rows - before->rows) * slope;
}

double StepCosts::LeastUs(uint32_t stage, uint32_t rows) const {
  if (rows == 0) return 0;
  const Stage& s = stages_[stage];
  const size_t bucket = BucketOf(rows);
  double us = 0;
  double rows_tried = 0;
  bool is_tried = false;
  for (size_t i = 0; i <= bucket; ++i) {
    const Point& point = s.points[i];
    if (point.rows == 0 || point.observed + kStepsFresh < s.n_observed) continue;
    us = std::max(us, point.us);
    rows_tried = point.rows;
    is_tried = i == bucket;
  }
  if (is_tried || rows <= kTryTimes * rows_tried + 1) return us;
  return std::max(us, Us(stage, rows));
}

uint32_t ChunkWithin(const StepCosts& costs, const ChunkQuestion& question) {
  uint32_t fits = 0;  // a step without prompts is always right
  uint32_t above = question.chunk_max + 1;
  while (above - fits > 1) {
    const uint32_t middle = fits + (above - fits) / 2;
    (KeepsTo(costs, question, middle) ? fits : above) = middle;
  }
  return fits;
}

}  // namespace strata
