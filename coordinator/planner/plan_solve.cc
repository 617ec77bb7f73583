#include "coordinator/planner/plan_solve.h"

#include <algorithm>
#include <utility>

namespace strata {
namespace {

// A candidate's stages, as the recurrence reads them.
struct Device {
  std::vector<double> seconds;  // [points], of all layers before; the last with the head
  double overhead_s = 0;
  std::vector<size_t> latest;  // [points]
};

Device MakeDevice(const PlanProblem& problem, const Limits& limits, size_t c) {
  const PlanProblem::Candidate& candidate = problem.candidates()[c];
  Device device = {candidate.seconds, candidate.overhead_s, problem.LatestEnds(c, limits.caps[c])};
  device.seconds.back() += candidate.head_s;
  return device;
}

double Limited(double hop_s, const Limits& limits) {
  return hop_s <= limits.hop_s ? hop_s : kNever;
}

// From the costs of reaching each point with `device` about to begin there, to the costs with its
// stage ending there.
void AddStage(const PlanProblem& problem, Aim aim, const Device& device,
              const std::vector<double>& before, double* after) {
  const double* seconds = device.seconds.data();
  for (size_t begin = 0; begin < problem.last_point(); ++begin) {
    if (before[begin] == kNever) continue;
    const size_t stop = device.latest[begin] + 1;
    const double reached = before[begin];
    const double offset = device.overhead_s - seconds[begin];
    for (const auto& [first, last] : problem.Runs(begin)) {
      const size_t end_stop = std::min(last, stop);
      if (aim == Aim::kSum) {
        const double sum = reached + offset;
        for (size_t end = first; end < end_stop; ++end) {
          after[end] = std::min(after[end], sum + seconds[end]);
        }
      } else {
        for (size_t end = first; end < end_stop; ++end) {
          after[end] = std::min(after[end], std::max(reached, offset + seconds[end]));
        }
      }
    }
  }
}

// The begin of the stage of `device` that reaches `end` at the least cost.
size_t BestBegin(const PlanProblem& problem, Aim aim, const Device& device,
                 const std::vector<double>& before, size_t end) {
  size_t best = end;
  double least = kNever;
  for (size_t begin = 0; begin < end; ++begin) {
    if (device.latest[begin] < end || !problem.SizeAllowed(begin, end)) continue;
    const double stage = device.overhead_s - device.seconds[begin] + device.seconds[end];
    const double cost = Join(aim, before[begin], stage);
    if (cost < least) {
      least = cost;
      best = begin;
    }
  }
  return best;
}

// Costs before a stage, from the costs after those that may precede it.
void AddHop(Aim aim, const double* after, double hop_s, std::vector<double>* before) {
  if (hop_s == kNever) return;
  for (size_t p = 1; p < before->size(); ++p) {
    (*before)[p] = std::min((*before)[p], Join(aim, after[p], hop_s));
  }
}

}  // namespace

Solution SolveOrder(const PlanProblem& problem, Aim aim, const Limits& limits,
                    absl::Span<const size_t> order) {
  const size_t n_points = problem.points().size();
  std::vector<Device> devices;
  for (const size_t c : order) devices.push_back(MakeDevice(problem, limits, c));
  std::vector<double> after(order.size() * n_points, kNever);
  std::vector<double> before(n_points);
  const auto fill_before = [&](size_t at) {
    std::fill(before.begin(), before.end(), kNever);
    before[0] = Limited(problem.HopIn(order[at]), limits);
    for (size_t other = 0; other < at; ++other) {
      AddHop(aim, &after[other * n_points], Limited(problem.Hop(order[other], order[at]), limits),
             &before);
    }
  };
  Solution best;
  size_t best_last = 0;
  for (size_t at = 0; at < order.size(); ++at) {
    fill_before(at);
    AddStage(problem, aim, devices[at], before, &after[at * n_points]);
    const double cost = Join(aim, after[at * n_points + problem.last_point()],
                             Limited(problem.HopBack(order[at]), limits));
    if (cost < best.cost) {
      best.cost = cost;
      best_last = at;
    }
  }
  if (best.cost == kNever) return best;
  for (size_t last = best_last, end = problem.last_point();;) {
    fill_before(last);
    const size_t begin = BestBegin(problem, aim, devices[last], before, end);
    best.pieces.push_back({order[last], begin, end});
    if (begin == 0) break;
    size_t previous = 0;
    double least = kNever;
    for (size_t other = 0; other < last; ++other) {
      const double cost = Join(aim, after[other * n_points + begin],
                               Limited(problem.Hop(order[other], order[last]), limits));
      if (cost < least) {
        least = cost;
        previous = other;
      }
    }
    last = previous;
    end = begin;
  }
  std::reverse(best.pieces.begin(), best.pieces.end());
  return best;
}

}  // namespace strata
