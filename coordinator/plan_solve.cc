#include "coordinator/plan_solve.h"

#include <algorithm>
#include <map>
#include <utility>

namespace strata {
namespace {

// Sums in another order differ by rounding; what differs by less is equal.
constexpr double kRounding = 1e-9;

// What candidates' stages look like to the recurrence.
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

double Join(Aim aim, double a, double b) { return aim == Aim::kSum ? a + b : std::max(a, b); }

double Limited(double hop_s, const Limits& limits) {
  return hop_s <= limits.hop_s ? hop_s : kNever;
}

// Costs of reaching each point: with `device` about to begin there -> with its stage ending there.
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

// Where the stage of `device` that reaches `end` at least cost begins.
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

// Costs before a stage, from those after the ones that may precede it.
void AddHop(Aim aim, const double* after, double hop_s, std::vector<double>* before) {
  if (hop_s == kNever) return;
  for (size_t p = 1; p < before->size(); ++p) {
    (*before)[p] = std::min((*before)[p], Join(aim, after[p], hop_s));
  }
}

// What the stages of each pool take of it together.
struct Shares {
  std::vector<std::pair<size_t, double>> uses;  // candidate, bytes or seconds
  double total = 0;

  void Add(size_t candidate, double use) {
    uses.emplace_back(candidate, use);
    total += use;
  }
};
using Pools = std::map<int, Shares>;

struct AllPools {
  Pools memory, bandwidth, cores;

  AllPools(const PlanProblem& problem, const Pieces& pieces) {
    for (const Piece& piece : pieces) {
      const PlanProblem::Candidate& c = problem.candidates()[piece.candidate];
      if (c.memory_pool != kOwnPool) {
        memory[c.memory_pool].Add(piece.candidate,
                                  static_cast<double>(problem.StageBytes(piece.begin, piece.end)));
      }
      if (c.bandwidth_pool != kOwnPool) {
        bandwidth[c.bandwidth_pool].Add(piece.candidate, problem.StageMemorySeconds(piece));
      }
      if (c.cores_pool != kOwnPool) {
        cores[c.cores_pool].Add(piece.candidate, problem.StageSeconds(piece));
      }
    }
  }

  // The fullest memory pool that has not room for all, or nullptr.
  const Shares* FullMemory(const PlanProblem& problem, double* allowed) const {
    for (const auto& [pool, shares] : memory) {
      *allowed = static_cast<double>(problem.PoolBytes(pool));
      if (shares.total > *allowed) return &shares;
    }
    return nullptr;
  }

  double MaxSeconds() const {
    double seconds = 0;
    for (const Pools* pools : {&bandwidth, &cores}) {
      for (const auto& [pool, shares] : *pools) seconds = std::max(seconds, shares.total);
    }
    return seconds;
  }
};

// One branch for each device that shares: if all of them together keep to `allowed`, at least one
// keeps to its part of it, whatever the parts are that sum up to it. In proportion to what they
// took, each part is less than that, so no branch comes to the same stages again.
enum class Thing { kMemory, kBandwidth, kCores };
std::vector<Limits> Branches(const Limits& limits, Thing thing, const Shares& shares,
                             double allowed) {
  std::vector<Limits> branches;
  for (const auto& [candidate, use] : shares.uses) {
    const double part = use * (allowed / shares.total);
    branches.push_back(limits);
    Caps& caps = branches.back().caps[candidate];
    switch (thing) {
      case Thing::kMemory:
        caps.memory_bytes = std::min(caps.memory_bytes, static_cast<uint64_t>(part));
        break;
      case Thing::kBandwidth:
        caps.memory_seconds = std::min(caps.memory_seconds, part);
        break;
      case Thing::kCores:
        caps.seconds = std::min(caps.seconds, part);
        break;
    }
  }
  return branches;
}

// Branches that forbid what `pieces` do, or none when all is well. `least` is the cost of the best
// known; for kMax, sharing time makes stages worse rather than impossible.
std::vector<Limits> Divide(const PlanProblem& problem, Aim aim, const Limits& limits,
                           const Pieces& pieces, double least) {
  const AllPools pools(problem, pieces);
  double allowed = 0;
  if (const Shares* full = pools.FullMemory(problem, &allowed); full != nullptr) {
    return Branches(limits, Thing::kMemory, *full, allowed);
  }
  allowed = limits.pool_s;
  if (aim == Aim::kMax) allowed = std::min(allowed, least * (1 - kRounding));
  for (const auto& [thing, by_pool] :
       {std::pair(Thing::kBandwidth, &pools.bandwidth), std::pair(Thing::kCores, &pools.cores)}) {
    for (const auto& [pool, shares] : *by_pool) {
      if (shares.uses.size() > 1 && shares.total > allowed) {
        return Branches(limits, thing, shares, allowed);
      }
    }
  }
  return {};
}

// Limits under which of each memory pool only one device takes part: the fastest, or the largest.
Limits OneOfEachPool(const PlanProblem& problem, Limits limits, bool fastest) {
  std::map<int, size_t> chosen;
  const auto& candidates = problem.candidates();
  for (size_t c = 0; c < candidates.size(); ++c) {
    if (candidates[c].memory_pool == kOwnPool) continue;
    const auto [at, is_new] = chosen.emplace(candidates[c].memory_pool, c);
    if (is_new) continue;
    const auto& best = candidates[at->second];
    const bool better = fastest ? candidates[c].seconds.back() < best.seconds.back()
                                : candidates[c].memory_bytes > best.memory_bytes;
    limits.caps[better ? at->second : c].memory_bytes = 0;
    if (better) at->second = c;
  }
  return limits;
}

}  // namespace

Limits NoLimits(const PlanProblem& problem) {
  Limits limits;
  limits.caps.resize(problem.candidates().size());
  return limits;
}

double CostOf(const PlanProblem& problem, Aim aim, const Pieces& pieces) {
  double cost = problem.HopIn(pieces.front().candidate);
  for (size_t i = 0; i < pieces.size(); ++i) {
    cost = Join(aim, cost, problem.StageSeconds(pieces[i]));
    cost = Join(aim, cost,
                i + 1 < pieces.size() ? problem.Hop(pieces[i].candidate, pieces[i + 1].candidate)
                                      : problem.HopBack(pieces[i].candidate));
  }
  return aim == Aim::kSum ? cost : std::max(cost, AllPools(problem, pieces).MaxSeconds());
}

bool Keeps(const PlanProblem& problem, const Limits& limits, const Pieces& pieces) {
  for (const Piece& piece : pieces) {
    if (!problem.Fits(piece, limits.caps[piece.candidate])) return false;
  }
  return Divide(problem, Aim::kSum, limits, pieces, kNever).empty();
}

Solution SolveSubsets(const PlanProblem& problem, Aim aim, const Limits& limits) {
  const size_t n = problem.candidates().size();
  const size_t n_points = problem.points().size();
  std::vector<Device> devices;
  for (size_t c = 0; c < n; ++c) devices.push_back(MakeDevice(problem, limits, c));
  std::vector<double> hops(n * n);
  for (size_t from = 0; from < n; ++from) {
    for (size_t to = 0; to < n; ++to) hops[from * n + to] = Limited(problem.Hop(from, to), limits);
  }
  // after[set][last][point]: all of `set` used, `last` at the end, layers before `point` done.
  std::vector<double> after((size_t{1} << n) * n * n_points, kNever);
  const auto row = [&](size_t set, size_t last) { return &after[(set * n + last) * n_points]; };
  std::vector<double> before(n_points);
  const auto fill_before = [&](size_t set, size_t last) {
    std::fill(before.begin(), before.end(), kNever);
    const size_t others = set & ~(size_t{1} << last);
    if (others == 0) before[0] = Limited(problem.HopIn(last), limits);
    for (size_t other = 0; other < n; ++other) {
      if ((others >> other & 1) == 0) continue;
      AddHop(aim, row(others, other), hops[other * n + last], &before);
    }
  };

  Solution best;
  size_t best_set = 0, best_last = 0;
  for (size_t set = 1; set < size_t{1} << n; ++set) {
    for (size_t last = 0; last < n; ++last) {
      if ((set >> last & 1) == 0) continue;
      fill_before(set, last);
      AddStage(problem, aim, devices[last], before, row(set, last));
      const double cost =
          Join(aim, row(set, last)[problem.last_point()], Limited(problem.HopBack(last), limits));
      if (cost < best.cost) {
        best.cost = cost;
        best_set = set;
        best_last = last;
      }
    }
  }
  if (best.cost == kNever) return best;
  for (size_t set = best_set, last = best_last, end = problem.last_point(); set != 0;) {
    fill_before(set, last);
    const size_t begin = BestBegin(problem, aim, devices[last], before, end);
    best.pieces.push_back({last, begin, end});
    set &= ~(size_t{1} << last);
    size_t previous = 0;
    double least = kNever;
    for (size_t other = 0; other < n; ++other) {
      if ((set >> other & 1) == 0) continue;
      const double cost = Join(aim, row(set, other)[begin], hops[other * n + last]);
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

Solution SolveShared(const PlanProblem& problem, Aim aim, const Limits& limits, Relaxed relaxed,
                     size_t runs_max) {
  struct Open {
    Solution solution;
    Limits limits;
  };
  const auto later = [](const Open& a, const Open& b) { return a.solution.cost > b.solution.cost; };
  std::vector<Open> open;  // a heap: the cheapest first
  Solution best;
  size_t runs = 0;
  const auto offer = [&](const Limits& tried) {
    ++runs;
    Solution solution = relaxed(aim, tried);
    if (!solution.found()) return;
    const bool keeps = Keeps(problem, limits, solution.pieces);
    const double cost = aim == Aim::kSum ? solution.cost : CostOf(problem, aim, solution.pieces);
    if (keeps && cost < best.cost) {
      best.cost = cost;
      best.pieces = solution.pieces;
    }
    open.push_back({std::move(solution), tried});
    std::push_heap(open.begin(), open.end(), later);
  };
  offer(limits);
  while (!open.empty()) {
    std::pop_heap(open.begin(), open.end(), later);
    const Open next = std::move(open.back());
    open.pop_back();
    if (next.solution.cost >= best.cost * (1 - kRounding)) break;  // no branch can be cheaper
    if (runs >= runs_max) {
      best.is_exact = false;
      break;
    }
    for (const Limits& branch :
         Divide(problem, aim, next.limits, next.solution.pieces, best.cost)) {
      offer(branch);
    }
  }
  if (!best.is_exact) {
    for (const bool fastest : {true, false}) offer(OneOfEachPool(problem, limits, fastest));
  }
  return best;
}

Solution SolveObjective(const PlanProblem& problem, Relaxed relaxed, size_t runs_max) {
  Limits limits = NoLimits(problem);
  if (problem.request().objective == Objective::kLatency) {
    return SolveShared(problem, Aim::kSum, limits, relaxed, runs_max);
  }
  const Solution fastest = SolveShared(problem, Aim::kMax, limits, relaxed, runs_max);
  if (!fastest.found()) return fastest;
  const double slowest_s = fastest.cost * (1 + kRounding);
  for (Caps& caps : limits.caps) caps.seconds = slowest_s;
  limits.hop_s = limits.pool_s = slowest_s;
  Solution shortest = SolveShared(problem, Aim::kSum, limits, relaxed, runs_max);
  if (!shortest.found()) return fastest;
  shortest.is_exact = shortest.is_exact && fastest.is_exact;
  return shortest;
}

}  // namespace strata
