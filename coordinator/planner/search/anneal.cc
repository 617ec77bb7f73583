#include "coordinator/planner/search/anneal.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace strata {
namespace {

constexpr double kHot = 0.05, kCold = 2e-5;  // how much worse a change may be, of the cost
constexpr double kStageWork = 8;             // steps that evaluating a stage counts as
constexpr double kStepsMax = 200;            // of each device at each point
constexpr size_t kShiftMax = 12;             // points that a cut is shifted at once

// Numbers of pools, from 0 and without gaps.
class PoolNumbers {
 public:
  int Of(int pool) {
    if (pool == kOwnPool) return kOwnPool;
    const auto at = std::find(pools_.begin(), pools_.end(), pool);
    if (at != pools_.end()) return static_cast<int>(at - pools_.begin());
    pools_.push_back(pool);
    return static_cast<int>(pools_.size()) - 1;
  }
  const std::vector<int>& pools() const { return pools_; }

 private:
  std::vector<int> pools_;
};

class Annealing {
 public:
  Annealing(const PlanProblem& problem, const AnnealOptions& options);
  Pieces Run(const Pieces& pieces);

 private:
  // The state: the devices in their order, and where their stages begin; one more cut for the end.
  struct Chain {
    std::vector<size_t> devices;  // candidates
    std::vector<size_t> cuts;     // points
    size_t size() const { return devices.size(); }
  };
  struct Cost {
    double energy = kNever;  // to be minimized; kNever: not allowed
    double cost = kNever;
  };

  static Chain ChainOf(const Pieces& pieces, size_t last_point);
  Cost CostOf(const Chain& chain);
  bool Change(Chain* chain);
  bool Shift(Chain* chain);
  bool Insert(Chain* chain);
  bool Drop(Chain* chain);
  bool Reorder(Chain* chain);
  bool Exchange(Chain* chain);
  bool DrawUnused(const Chain& chain, size_t* candidate);
  size_t Below(size_t n) { return static_cast<size_t>(random_() % n); }
  size_t DrawShift();
  double Pressure(double seconds) const;

  const PlanProblem& problem_;
  const AnnealOptions options_;
  const size_t n_;
  std::vector<std::vector<double>> seconds_,
      memory_seconds_;             // [candidates, points], with the head
  std::vector<double> in_, back_;  // [candidates], hops
  std::vector<int> memory_pool_, bandwidth_pool_, cores_pool_;  // [candidates], numbered anew
  std::vector<double> pool_bytes_;
  std::vector<double> bytes_, bandwidth_, cores_;  // [pools], of the chain being evaluated
  std::mt19937 random_;
  double scale_ = 1;  // seconds that pressure is relative to
  double work_ = 0;
};

Annealing::Annealing(const PlanProblem& problem, const AnnealOptions& options)
    : problem_(problem),
      options_(options),
      n_(problem.candidates().size()),
      random_(static_cast<uint32_t>(n_)) {
  PoolNumbers memory, bandwidth, cores;
  for (const PlanProblem::Candidate& c : problem.candidates()) {
    seconds_.push_back(c.seconds);
    seconds_.back().back() += c.head_s;
    memory_seconds_.push_back(c.memory_seconds);
    memory_seconds_.back().back() += c.head_memory_s;
    in_.push_back(problem.HopIn(in_.size()));
    back_.push_back(problem.HopBack(back_.size()));
    memory_pool_.push_back(memory.Of(c.memory_pool));
    bandwidth_pool_.push_back(bandwidth.Of(c.bandwidth_pool));
    cores_pool_.push_back(cores.Of(c.cores_pool));
  }
  for (const int pool : memory.pools()) {
    pool_bytes_.push_back(static_cast<double>(problem.PoolBytes(pool)));
  }
  bytes_.resize(pool_bytes_.size());
  bandwidth_.resize(bandwidth.pools().size());
  cores_.resize(cores.pools().size());
}

Annealing::Chain Annealing::ChainOf(const Pieces& pieces, size_t last_point) {
  Chain chain;
  for (const Piece& piece : pieces) {
    chain.devices.push_back(piece.candidate);
    chain.cuts.push_back(piece.begin);
  }
  chain.cuts.push_back(last_point);
  return chain;
}

// Counts all parts that are nearly the slowest, so that there is a way down when several are
// equally slow.
double Annealing::Pressure(double seconds) const {
  const double x = seconds / scale_;
  const double x2 = x * x, x4 = x2 * x2, x8 = x4 * x4;
  return x8 * x8;
}

Annealing::Cost Annealing::CostOf(const Chain& chain) {
  work_ += kStageWork * static_cast<double>(chain.size());
  std::fill(bytes_.begin(), bytes_.end(), 0.0);
  std::fill(bandwidth_.begin(), bandwidth_.end(), 0.0);
  std::fill(cores_.begin(), cores_.end(), 0.0);
  const size_t n = chain.size();
  double sum = 0, slowest = 0, pressure = 0;
  const auto add = [&](double seconds) {
    sum += seconds;
    slowest = std::max(slowest, seconds);
  };
  const auto& candidates = problem_.candidates();
  for (size_t i = 0; i < n; ++i) {
    const size_t c = chain.devices[i], begin = chain.cuts[i], end = chain.cuts[i + 1];
    if (!problem_.SizeAllowed(begin, end)) return {};
    if (!problem_.Fits({c, begin, end}, {})) return {};
    const auto bytes = static_cast<double>(problem_.StageBytes({c, begin, end}));
    if (const int pool = memory_pool_[c]; pool != kOwnPool) {
      double& taken = bytes_[static_cast<size_t>(pool)];
      taken += bytes;
      if (taken > pool_bytes_[static_cast<size_t>(pool)]) return {};
    }
    const double seconds = seconds_[c][end] - seconds_[c][begin] + candidates[c].overhead_s;
    add(seconds);
    add(i == 0 ? in_[c] : problem_.Hop(chain.devices[i - 1], c));
    const int bandwidth = bandwidth_pool_[c], cores = cores_pool_[c];
    if (bandwidth != kOwnPool) {
      bandwidth_[static_cast<size_t>(bandwidth)] +=
          memory_seconds_[c][end] - memory_seconds_[c][begin];
    }
    if (cores != kOwnPool) cores_[static_cast<size_t>(cores)] += seconds;
    if (options_.aim == Aim::kMax && cores == kOwnPool) pressure += Pressure(seconds);
  }
  add(back_[chain.devices.back()]);
  if (sum == kNever) return {};
  for (const std::vector<double>* pools : {&bandwidth_, &cores_}) {
    for (const double seconds : *pools) {
      slowest = std::max(slowest, seconds);
      if (options_.aim == Aim::kMax) pressure += Pressure(seconds);
    }
  }
  if (slowest > options_.seconds_max) return {};
  if (options_.aim == Aim::kSum) return {sum, sum};
  return {std::max(slowest, scale_ * std::pow(pressure, 1.0 / 16)), slowest};
}

size_t Annealing::DrawShift() {
  size_t shift = 1;
  while (shift < kShiftMax && Below(3) != 0) ++shift;
  return shift;
}

bool Annealing::DrawUnused(const Chain& chain, size_t* candidate) {
  *candidate = Below(n_);
  work_ += static_cast<double>(chain.size());
  return std::find(chain.devices.begin(), chain.devices.end(), *candidate) == chain.devices.end();
}

// Moves layers from one stage to another; the stages between shift along.
bool Annealing::Shift(Chain* chain) {
  const size_t n = chain->size();
  if (n < 2) return false;
  size_t a = Below(n), b = Below(2) == 0 ? a + 1 : Below(n);
  if (b >= n || a == b) return false;
  if (a > b) std::swap(a, b);
  const size_t shift = DrawShift();
  const bool forwards = Below(2) == 0;
  const size_t giver = forwards ? b : a;
  if (chain->cuts[giver + 1] - chain->cuts[giver] <= shift) return false;
  for (size_t i = a + 1; i <= b; ++i) {
    chain->cuts[i] = forwards ? chain->cuts[i] + shift : chain->cuts[i] - shift;
  }
  return true;
}

// Adds an unused device, with layers of a neighbour.
bool Annealing::Insert(Chain* chain) {
  size_t candidate = 0;
  if (!DrawUnused(*chain, &candidate)) return false;
  const size_t at = Below(chain->size());
  const size_t begin = chain->cuts[at], end = chain->cuts[at + 1];
  if (end - begin < 2) return false;
  const size_t layers = 1 + Below(end - begin - 1);
  const bool before = Below(2) == 0;
  const auto place = static_cast<std::ptrdiff_t>(before ? at : at + 1);
  chain->devices.insert(chain->devices.begin() + place, candidate);
  chain->cuts.insert(chain->cuts.begin() + static_cast<std::ptrdiff_t>(at) + 1,
                     before ? begin + layers : end - layers);
  return true;
}

// Removes a stage; its layers go to both neighbours or to one.
bool Annealing::Drop(Chain* chain) {
  const size_t n = chain->size();
  if (n < 2) return false;
  const size_t at = Below(n);
  const size_t begin = chain->cuts[at], end = chain->cuts[at + 1];
  size_t cut = begin + Below(end - begin + 1);
  if (at == 0) cut = begin;
  if (at + 1 == n) cut = end;
  chain->devices.erase(chain->devices.begin() + static_cast<std::ptrdiff_t>(at));
  // One of the two cuts is removed, the other becomes the boundary of the neighbours.
  chain->cuts.erase(chain->cuts.begin() + static_cast<std::ptrdiff_t>(at));
  if (at > 0 && at + 1 < n) chain->cuts[at] = cut;
  if (at == 0) chain->cuts[0] = 0;
  if (at + 1 == n) chain->cuts.back() = end;
  return true;
}

// Moves a stage, or exchanges two, with their numbers of layers.
bool Annealing::Reorder(Chain* chain) {
  const size_t n = chain->size();
  if (n < 2) return false;
  size_t a = Below(n), b = Below(n);
  if (a == b) return false;
  std::vector<size_t> lengths;
  for (size_t i = 0; i < n; ++i) lengths.push_back(chain->cuts[i + 1] - chain->cuts[i]);
  const auto turn = [&](std::vector<size_t>* v, size_t from, size_t to) {
    const auto at = [&](size_t i) { return v->begin() + static_cast<std::ptrdiff_t>(i); };
    if (from < to) {
      std::rotate(at(from), at(from) + 1, at(to) + 1);
    } else {
      std::rotate(at(to), at(from), at(from) + 1);
    }
  };
  switch (Below(3)) {
    case 0:
      turn(&chain->devices, a, b);
      turn(&lengths, a, b);
      break;
    case 1:
      std::swap(chain->devices[a], chain->devices[b]);
      std::swap(lengths[a], lengths[b]);
      break;
    default: {
      if (a > b) std::swap(a, b);
      const auto reverse = [&](std::vector<size_t>* v) {
        std::reverse(v->begin() + static_cast<std::ptrdiff_t>(a),
                     v->begin() + static_cast<std::ptrdiff_t>(b) + 1);
      };
      reverse(&chain->devices);
      reverse(&lengths);
      break;
    }
  }
  for (size_t i = 0; i < n; ++i) chain->cuts[i + 1] = chain->cuts[i] + lengths[i];
  return true;
}

// Exchanges the devices of two stages, or one for an unused device.
bool Annealing::Exchange(Chain* chain) {
  const size_t a = Below(chain->size());
  if (Below(2) == 0) {
    const size_t b = Below(chain->size());
    std::swap(chain->devices[a], chain->devices[b]);
    return a != b;
  }
  size_t candidate = 0;
  if (!DrawUnused(*chain, &candidate)) return false;
  chain->devices[a] = candidate;
  return true;
}

bool Annealing::Change(Chain* chain) {
  switch (Below(8)) {
    case 0:
      return Insert(chain);
    case 1:
      return Drop(chain);
    case 2:
      return Reorder(chain);
    case 3:
      return Exchange(chain);
    default:
      return Shift(chain);
  }
}

Pieces Annealing::Run(const Pieces& pieces) {
  Chain now = ChainOf(pieces, problem_.last_point());
  Cost cost = CostOf(now);
  if (cost.cost == kNever) return pieces;
  scale_ = cost.cost;
  cost = CostOf(now);
  Chain best = now, next;
  double least = cost.cost * (1 - kRounding);
  bool is_better = false;
  const double begin = cost.energy;
  const auto n = static_cast<double>(n_), points = static_cast<double>(problem_.last_point());
  const double work_max =
      std::min(options_.work_max, kStepsMax * n * points * kStageWork * std::min(n, points));
  while (work_ < work_max) {
    const double progress = work_ / work_max;
    const double warmth = begin * kHot * std::pow(kCold / kHot, progress);
    work_ += 1;
    next.devices.assign(now.devices.begin(), now.devices.end());
    next.cuts.assign(now.cuts.begin(), now.cuts.end());
    if (!Change(&next)) continue;
    const Cost changed = CostOf(next);
    if (changed.energy == kNever) continue;
    const double worse = changed.energy - cost.energy;
    const double chance = static_cast<double>(random_()) / 4294967296.0;
    if (worse > 0 && chance >= std::exp(-worse / warmth)) continue;
    std::swap(now, next);
    cost = changed;
    if (cost.cost < least) {
      least = cost.cost;
      best = now;
      is_better = true;
    }
  }
  if (!is_better) return pieces;
  Pieces found;
  for (size_t i = 0; i < best.size(); ++i) {
    found.push_back({best.devices[i], best.cuts[i], best.cuts[i + 1]});
  }
  return found;
}

}  // namespace

Pieces Anneal(const PlanProblem& problem, const AnnealOptions& options, const Pieces& pieces) {
  if (pieces.empty() || pieces.back().end != problem.last_point()) return pieces;
  return Annealing(problem, options).Run(pieces);
}

}  // namespace strata
