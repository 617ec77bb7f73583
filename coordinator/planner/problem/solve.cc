#include "coordinator/planner/problem/solve.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace strata {
namespace {

constexpr size_t kDiveMax = 12;  // divisions, each of one shared resource

// The uses of each pool by its stages, and their sum.
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

  // The memory pool that is overfull the most, or nullptr.
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
// keeps to its part of it, for any parts that sum up to it. With parts in proportion to the uses,
// each part is less than the use, so no branch finds the same stages again.
enum class Resource { kMemory, kBandwidth, kCores };
std::vector<Limits> Branches(const Limits& limits, Resource resource, const Shares& shares,
                             double allowed) {
  std::vector<Limits> branches;
  for (const auto& [candidate, use] : shares.uses) {
    const double part = use * (allowed / shares.total);
    branches.push_back(limits);
    Caps& caps = branches.back().caps[candidate];
    switch (resource) {
      case Resource::kMemory:
        caps.memory_bytes = std::min(caps.memory_bytes, static_cast<uint64_t>(part));
        break;
      case Resource::kBandwidth:
        caps.memory_seconds = std::min(caps.memory_seconds, part);
        break;
      case Resource::kCores:
        caps.seconds = std::min(caps.seconds, part);
        break;
    }
  }
  return branches;
}

// Branches that forbid the overuse in `pieces`, or none when there is none. `least` is the cost of
// the best known; for kMax, sharing time makes stages worse rather than impossible.
std::vector<Limits> Divide(const PlanProblem& problem, Aim aim, const Limits& limits,
                           const Pieces& pieces, double least) {
  const AllPools pools(problem, pieces);
  double allowed = 0;
  if (const Shares* full = pools.FullMemory(problem, &allowed); full != nullptr) {
    return Branches(limits, Resource::kMemory, *full, allowed);
  }
  allowed = limits.pool_s;
  if (aim == Aim::kMax) allowed = std::min(allowed, least * (1 - kRounding));
  for (const auto& [resource, by_pool] : {std::pair(Resource::kBandwidth, &pools.bandwidth),
                                          std::pair(Resource::kCores, &pools.cores)}) {
    for (const auto& [pool, shares] : *by_pool) {
      if (shares.uses.size() > 1 && shares.total > allowed) {
        return Branches(limits, resource, shares, allowed);
      }
    }
  }
  return {};
}

// Limits that admit only one device of each memory pool: the fastest, or the largest.
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

Pieces PackLargestFirst(const PlanProblem& problem) {
  const auto& candidates = problem.candidates();
  std::vector<size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return candidates[a].memory_bytes > candidates[b].memory_bytes;
  });
  Pieces pieces;
  std::map<int, uint64_t> pool_taken;
  size_t reached = 0;
  for (const size_t c : order) {
    const int pool = candidates[c].memory_pool;
    Caps caps;
    if (pool != kOwnPool) caps.memory_bytes = problem.PoolBytes(pool) - pool_taken[pool];
    size_t end = problem.LatestEnds(c, caps)[reached];
    while (end > reached && !problem.SizeAllowed(reached, end)) --end;
    if (end == reached) continue;
    if (pool != kOwnPool) pool_taken[pool] += problem.StageBytes(reached, end);
    pieces.push_back({c, reached, end});
    reached = end;
  }
  return pieces;
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

Solution SolveShared(const PlanProblem& problem, Aim aim, const Limits& limits,
                     const SharedOptions& options, Relaxed relaxed) {
  struct Open {
    Solution solution;
    Limits limits;
  };
  const auto later = [](const Open& a, const Open& b) { return a.solution.cost > b.solution.cost; };
  std::vector<Open> open;  // a heap: the cheapest first
  Solution best;
  size_t runs = 0;
  const auto keep = [&](const Pieces& pieces) {
    if (pieces.empty() || pieces.back().end != problem.last_point()) return;
    const double cost = CostOf(problem, aim, pieces);
    const bool hops_keep = limits.hop_s == kNever || CostOf(problem, Aim::kMax, pieces) <=
                                                         std::max(limits.hop_s, limits.pool_s);
    if (cost < best.cost && hops_keep && Keeps(problem, limits, pieces)) {
      best.cost = cost;
      best.pieces = pieces;
    }
  };
  const auto solve = [&](const Limits& tried) {
    ++runs;
    Solution solution = relaxed(aim, tried);
    if (solution.found()) keep(solution.pieces);
    return solution;
  };
  const auto offer = [&](const Limits& tried) {
    Solution solution = solve(tried);
    if (!solution.found()) return;
    open.push_back({std::move(solution), tried});
    std::push_heap(open.begin(), open.end(), later);
  };
  // Dives to stages within the shared limits: all caps of a division at once.
  const auto dive = [&](Solution solution, Limits tried) {
    for (size_t depth = 0; depth < kDiveMax && solution.found(); ++depth) {
      const std::vector<Limits> branches = Divide(problem, aim, tried, solution.pieces, best.cost);
      if (branches.empty()) return;
      for (const Limits& branch : branches) {
        for (size_t c = 0; c < tried.caps.size(); ++c) {
          Caps& caps = tried.caps[c];
          caps.memory_bytes = std::min(caps.memory_bytes, branch.caps[c].memory_bytes);
          caps.seconds = std::min(caps.seconds, branch.caps[c].seconds);
          caps.memory_seconds = std::min(caps.memory_seconds, branch.caps[c].memory_seconds);
        }
      }
      solution = solve(tried);
    }
  };

  keep(options.known);
  offer(limits);
  bool dived = false;
  while (!open.empty()) {
    std::pop_heap(open.begin(), open.end(), later);
    const Open next = std::move(open.back());
    open.pop_back();
    if (next.solution.cost >= best.cost * (1 - kRounding)) break;  // no branch can be cheaper
    if (!dived) {
      dived = true;
      dive(next.solution, next.limits);
      keep(PackLargestFirst(problem));
      for (const bool fastest : {true, false}) {
        if (!best.found()) solve(OneOfEachPool(problem, limits, fastest));
      }
      // A cheaper solution may still be in the branches of these stages.
    }
    if (runs >= options.runs_max) break;
    for (const Limits& branch :
         Divide(problem, aim, next.limits, next.solution.pieces, best.cost)) {
      offer(branch);
    }
  }
  return best;
}

Solution SolveObjective(const PlanProblem& problem, const SharedOptions& options, Relaxed relaxed) {
  Limits limits = NoLimits(problem);
  if (problem.request().objective == Objective::kLatency) {
    return SolveShared(problem, Aim::kSum, limits, options, relaxed);
  }
  Solution fastest = SolveShared(problem, Aim::kMax, limits, options, relaxed);
  if (!fastest.found()) return fastest;
  const double slowest_s = fastest.cost * (1 + kRounding);
  for (Caps& caps : limits.caps) caps.seconds = slowest_s;
  limits.hop_s = limits.pool_s = slowest_s;
  SharedOptions again = options;
  again.known = fastest.pieces;
  const Solution shortest = SolveShared(problem, Aim::kSum, limits, again, relaxed);
  return shortest.found() ? shortest : fastest;
}

}  // namespace strata
