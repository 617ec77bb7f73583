#include "coordinator/planner/explanation.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/planner/assignment.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/problem/moe_hosts.h"
#include "coordinator/planner/problem/solve.h"
#include "coordinator/planner/search/search.h"
#include "coordinator/planner/unit_text.h"

namespace strata {
namespace {

constexpr double kGainMin = 0.02;
constexpr size_t kHintsMax = 4;
constexpr size_t kHintRunsMax = 4;  // runs for one order, where devices share
constexpr double kHintWorkMax = 1e7;
constexpr size_t kHintDevicesMax = 8;  // among which a hint searches again
constexpr size_t kHintTriesMax = 16;   // devices that hints are about

struct Change {
  double cost = kNever;
  Pieces pieces;
};

class Explainer {
 public:
  Explainer(const PlanProblem& problem, const Pieces& pieces, bool is_by_hand)
      : problem_(problem),
        request_(problem.request()),
        pieces_(pieces),
        is_by_hand_(is_by_hand),
        aim_(AimOf(request_.objective)),
        limits_(NoLimits(problem)),
        cost_(CostOf(problem, aim_, pieces)),
        sum_(CostOf(problem, Aim::kSum, pieces)) {}

  std::string Used(size_t at) const;
  std::string LeftOut(size_t device) const;
  std::string MoeText(const Piece& piece) const;

 private:
  // Makes the pieces the best if they are allowed and cheaper than `best`.
  void Consider(const Pieces& pieces, Change* best) const {
    const double cost = CostOf(problem_, aim_, pieces);
    if (cost < best->cost && Allowed(pieces) && Keeps(problem_, limits_, pieces)) {
      *best = {cost, pieces};
    }
  }
  bool Allowed(const Pieces& pieces) const {
    return std::all_of(pieces.begin(), pieces.end(), [&](const Piece& piece) {
      return problem_.SizeAllowed(piece.begin, piece.end);
    });
  }
  // The plans with the stage at `at` grown to the next cut on its left or right.
  std::optional<Pieces> Grown(size_t at, bool left) const;
  // The best of the plans that give this candidate something of one stage, or all of it.
  Change With(size_t candidate) const;
  std::string More(double cost) const;

  const PlanProblem& problem_;
  const PlanRequest& request_;
  const Pieces& pieces_;
  const bool is_by_hand_;
  const Aim aim_;
  const Limits limits_;
  const double cost_, sum_;
};

// A step's cost compared with the plan's.
std::string Explainer::More(double cost) const {
  const char* what = aim_ == Aim::kSum ? "a step" : "the slowest part";
  const double change = cost / cost_ - 1;
  if (change < -0.0005) {
    return absl::StrFormat("%s would take %s, %.1f %% less", what, TimeText(cost), -100 * change);
  }
  if (change < 0.0005) return absl::StrCat(what, " would take as long");
  return absl::StrFormat("%s would take %s instead of %s", what, TimeText(cost), TimeText(cost_));
}

std::optional<Pieces> Explainer::Grown(size_t at, bool left) const {
  Pieces pieces = pieces_;
  if (left) {
    if (at == 0) return std::nullopt;
    --pieces[at].begin;
    --pieces[at - 1].end;
    if (pieces[at - 1].begin == pieces[at - 1].end) {
      pieces.erase(pieces.begin() + static_cast<std::ptrdiff_t>(at - 1));
    }
  } else {
    if (at + 1 == pieces.size()) return std::nullopt;
    ++pieces[at].end;
    ++pieces[at + 1].begin;
    if (pieces[at + 1].begin == pieces[at + 1].end) {
      pieces.erase(pieces.begin() + static_cast<std::ptrdiff_t>(at + 1));
    }
  }
  return pieces;
}

std::string Explainer::Used(size_t at) const {
  const Piece& piece = pieces_[at];
  const auto& candidate = problem_.candidates()[piece.candidate];
  const LayerRange layers = problem_.Layers(piece);
  const uint64_t bytes = problem_.StageBytes(piece);
  const double in = at == 0 ? problem_.HopIn(piece.candidate)
                            : problem_.Hop(pieces_[at - 1].candidate, piece.candidate);
  std::string text = absl::StrFormat(
      "%s (%d of %d), %s of %s; computes %s and %s to reach it, of a step's %s", LayersText(layers),
      layers.size(), request_.costs->n_layer(), BytesText(bytes), BytesText(candidate.memory_bytes),
      TimeText(problem_.StageSeconds(piece)), TimeText(in), TimeText(sum_));
  absl::StrAppend(&text, MoeText(piece));
  if (pieces_.size() == 1) return absl::StrCat(text, "; it has the whole model");
  Change best;
  bool has_neighbour_place = false;
  uint64_t needed = UINT64_MAX, fetched = UINT64_MAX;
  for (const bool left : {true, false}) {
    const std::optional<Pieces> grown = Grown(at, left);
    if (!grown.has_value()) continue;
    has_neighbour_place = true;
    Consider(*grown, &best);
    const Piece more = {piece.candidate, piece.begin - (left ? 1 : 0), piece.end + (left ? 0 : 1)};
    needed = std::min(needed, problem_.StageBytes(more));
    fetched = std::min(fetched, problem_.FetchBytes(more));
  }
  if (best.cost < kNever) {
    absl::StrAppend(&text, "; with more layers ", More(best.cost));
  } else if (has_neighbour_place && needed > candidate.memory_bytes) {
    absl::StrAppend(&text, "; not more: the next layers need ", BytesText(needed - bytes),
                    ", free are ", BytesText(candidate.memory_bytes - bytes));
  } else if (has_neighbour_place && fetched > candidate.disk_free_bytes) {
    absl::StrAppend(&text, "; not more: ", DiskText(request_.nodes[candidate.node]));
  } else if (has_neighbour_place && candidate.memory_pool != kOwnPool) {
    absl::StrAppend(&text, "; not more: the machine's other device takes the rest of its memory");
  } else {
    absl::StrAppend(&text, "; not more: the architecture or a missing link does not allow it");
  }
  return text;
}

std::string Explainer::MoeText(const Piece& piece) const {
  const PlanDevice& device = request_.devices[problem_.candidates()[piece.candidate].device];
  if (device.moe_host == kNoHost || device.cpu_moe.size() == 0) return "";
  uint64_t bytes = 0;
  for (uint32_t i = device.cpu_moe.begin; i < device.cpu_moe.end; ++i) {
    bytes += request_.costs->layers[i].ExpertBytes();
  }
  const LayerRange layers = problem_.Layers(piece);
  return absl::StrFormat(
      "; the experts of %s, %s, are computed by %s",
      device.cpu_moe.size() == layers.size() ? "these" : LayersText(device.cpu_moe),
      BytesText(bytes), PlaceName(request_, static_cast<size_t>(device.moe_host)));
}

Change Explainer::With(size_t candidate) const {
  Change best;
  const auto offset = [](size_t i) { return static_cast<std::ptrdiff_t>(i); };
  for (size_t at = 0; at < pieces_.size(); ++at) {
    const Piece whole = pieces_[at];
    Pieces replaced = pieces_;
    replaced[at].candidate = candidate;
    Consider(replaced, &best);
    for (size_t cut = whole.begin + 1; cut < whole.end; ++cut) {
      Pieces split = pieces_;
      split[at].begin = cut;
      split.insert(split.begin() + offset(at), {candidate, whole.begin, cut});
      Consider(split, &best);
      split = pieces_;
      split[at].end = cut;
      split.insert(split.begin() + offset(at + 1), {candidate, cut, whole.end});
      Consider(split, &best);
    }
  }
  return best;
}

std::string Explainer::LeftOut(size_t device) const {
  for (const std::string& place : request_.exclude) {
    if (PlaceMeans(request_, place, device)) return "left out: excluded by hand";
  }
  const PlanDevice& facts = request_.devices[device];
  const std::string& kept_out = request_.nodes[facts.node].kept_out;
  if (!kept_out.empty()) return absl::StrCat("left out: ", kept_out);
  if (facts.speed.types.empty()) return "left out: its speed has not been measured";
  if (IsMoeHost(request_, device)) return "computes experts for the node's other device";
  if (SharesMoeHost(request_, device)) {
    return "left out: its memory is kept for the experts of another device's layers";
  }
  const auto& candidates = problem_.candidates();
  const auto found = std::find_if(candidates.begin(), candidates.end(),
                                  [&](const auto& c) { return c.device == device; });
  if (found == candidates.end()) {
    uint64_t least = UINT64_MAX;
    for (size_t begin = 0; begin < problem_.last_point(); ++begin) {
      least = std::min(least, problem_.StageBytes(begin, begin + 1));
    }
    return absl::StrCat("left out: the smallest possible stage needs ", BytesText(least),
                        ", free are ", BytesText(facts.memory_free_bytes), " less the reserve");
  }
  const Change with = With(static_cast<size_t>(found - candidates.begin()));
  if (with.cost == kNever) {
    const PlanNode& node = request_.nodes[facts.node];
    if (!node.fetch_bytes.empty()) return absl::StrCat("left out: ", DiskText(node));
    return "left out: no stage fits it beside the others";
  }
  return absl::StrCat(is_by_hand_ ? "left out by hand: with it " : "left out: with it ",
                      More(with.cost));
}

// The request reduced to these devices, for planning again.
PlanRequest Reduced(const PlanRequest& request, const std::vector<size_t>& devices) {
  PlanRequest reduced = request;
  reduced.devices = WithMoeHosts(request, devices);
  reduced.assignments.clear();
  reduced.with_hints = false;
  return reduced;
}

// The cost of the best plan that is found quickly; kNever when there is none.
double Replan(const PlanRequest& request, bool search) {
  const PlanProblem problem(request, StepOf(request));
  if (problem.candidates().empty()) return kNever;
  Solution solution;
  if (search) {
    solution = SearchPlan(problem, kHintWorkMax);
  } else {
    // Too many to try all orders: keeps the present one.
    std::vector<size_t> sequence(problem.candidates().size());
    std::iota(sequence.begin(), sequence.end(), size_t{0});
    solution = SolveObjective(
        problem, {.runs_max = kHintRunsMax},
        [&](Aim aim, const Limits& limits) { return SolveOrder(problem, aim, limits, sequence); });
  }
  if (!solution.found()) return kNever;
  return CostOf(problem, AimOf(request.objective), solution.pieces);
}

}  // namespace

std::vector<DeviceLine> ExplainDevices(const PlanProblem& problem, const Pieces& pieces,
                                       bool is_by_hand) {
  const Explainer explainer(problem, pieces, is_by_hand);
  std::vector<DeviceLine> lines(problem.request().devices.size());
  for (size_t at = 0; at < pieces.size(); ++at) {
    DeviceLine& line = lines[problem.candidates()[pieces[at].candidate].device];
    absl::StrAppend(&line.text, line.is_used ? "; and " : "", explainer.Used(at));
    line.is_used = true;
  }
  for (size_t d = 0; d < lines.size(); ++d) {
    lines[d].device = d;
    if (!lines[d].is_used) lines[d].text = explainer.LeftOut(d);
  }
  return lines;
}

std::vector<std::string> Hints(const PlanRequest& request, const PlanProblem& problem,
                               const Pieces& pieces) {
  const Aim aim = AimOf(request.objective);
  const double cost = CostOf(problem, aim, pieces);
  std::vector<size_t> devices;
  for (const Piece& piece : pieces) {
    devices.push_back(problem.candidates()[piece.candidate].device);
  }
  const size_t n_used = devices.size();
  const bool search = n_used <= kHintDevicesMax;
  // The fastest unused devices may join when something gets better.
  std::vector<size_t> others;
  for (size_t c = 0; c < problem.candidates().size(); ++c) {
    const size_t device = problem.candidates()[c].device;
    if (std::find(devices.begin(), devices.end(), device) == devices.end()) others.push_back(c);
  }
  std::stable_sort(others.begin(), others.end(), [&](size_t a, size_t b) {
    return problem.candidates()[a].seconds.back() < problem.candidates()[b].seconds.back();
  });
  for (const size_t c : others) {
    if (devices.size() >= kHintDevicesMax) break;
    devices.push_back(problem.candidates()[c].device);
  }
  const PlanRequest base = Reduced(request, devices);

  std::vector<std::pair<double, std::string>> gains;
  const auto offer = [&](const PlanRequest& better, const std::string& what) {
    const double now = Replan(better, search);
    if (now < cost * (1 - kGainMin)) {
      gains.emplace_back(
          now, absl::StrFormat("%s: %s would take %s or less instead of %s (%.0f %% less)", what,
                               aim == Aim::kSum ? "a step" : "the slowest part", TimeText(now),
                               TimeText(cost), 100 * (1 - now / cost)));
    }
  };
  std::vector<size_t> tried(devices.size());
  std::iota(tried.begin(), tried.end(), size_t{0});
  if (n_used > kHintTriesMax) {  // the slowest stages have the most to gain
    std::stable_sort(tried.begin(), tried.end(), [&](size_t a, size_t b) {
      return problem.StageSeconds(pieces[a]) > problem.StageSeconds(pieces[b]);
    });
    tried.resize(kHintTriesMax);
  }
  for (const size_t i : tried) {
    PlanRequest better = base;
    PlanDevice& device = better.devices[i];
    const uint64_t more = device.memory_free_bytes;
    device.memory_free_bytes += more;
    if (device.memory_pool != kOwnPool) {
      better.memory_pools[static_cast<size_t>(device.memory_pool)].free_bytes += more;
    }
    offer(better,
          absl::StrCat(BytesText(more), " more memory on ", PlaceName(request, devices[i])));
  }
  double best_rtt = kNever, best_bytes = 0;
  for (size_t from = 0; from < request.nodes.size(); ++from) {
    for (size_t to = 0; to < request.nodes.size(); ++to) {
      if (from == to || !request.Link(from, to).usable()) continue;
      best_rtt = std::min(best_rtt, request.Link(from, to).round_trip_s);
      best_bytes = std::max(best_bytes, request.Link(from, to).bytes_per_s);
    }
  }
  // Every node's links, all at once: a cable instead of Wi-Fi, say.
  std::set<size_t> nodes;
  for (const size_t i : tried) {
    const size_t node = request.devices[devices[i]].node;
    if (i >= n_used || !nodes.insert(node).second) continue;
    PlanRequest better = base;
    const size_t n_nodes = request.nodes.size();
    for (size_t other = 0; other < n_nodes; ++other) {
      if (other == node) continue;
      for (PlanLink* link :
           {&better.links[node * n_nodes + other], &better.links[other * n_nodes + node]}) {
        *link = {.round_trip_s = best_rtt, .bytes_per_s = best_bytes};
      }
    }
    offer(better,
          absl::StrCat("links of ", request.nodes[node].name, " as fast as the fastest here (",
                       absl::StrFormat("%.0f Mbit/s, %s", best_bytes * 8e-6, TimeText(best_rtt)),
                       ")"));
  }
  std::stable_sort(gains.begin(), gains.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> hints;
  for (auto& [now, text] : gains) {
    if (hints.size() < kHintsMax) hints.push_back(std::move(text));
  }
  return hints;
}

}  // namespace strata
