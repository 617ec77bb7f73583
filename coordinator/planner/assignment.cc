#include "coordinator/planner/assignment.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "coordinator/planner/costs/cut.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/problem/solve.h"
#include "coordinator/planner/unit_text.h"
#include "transport/rpc/status_details.h"

namespace strata {
namespace {

constexpr size_t kShownMax = 8;  // names in one message

std::string Names(const PlanRequest& request) {
  std::vector<std::string> names;
  for (const PlanNode& node : request.nodes) names.push_back(node.name);
  const size_t shown = std::min(names.size(), kShownMax);
  return absl::StrCat(
      absl::StrJoin(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
      shown < names.size() ? ", …" : "");
}

std::string Assigned(LayerRange layers) {
  return absl::StrCat(LayersText(layers), layers.size() == 1 ? " is" : " are", " assigned");
}

// Checks that the assignments follow each other from the first layer to the last.
absl::Status CheckCover(const std::vector<Assignment>& assignments, uint32_t n_layer) {
  uint32_t next = 0;
  for (size_t i = 0; i < assignments.size(); ++i) {
    const Assignment& each = assignments[i];
    if (each.layers.end > n_layer) {
      return absl::InvalidArgumentError(absl::StrCat(each.place, "=", each.layers.begin, "-",
                                                     each.layers.end - 1, ": the model has ",
                                                     n_layer, " layers, 0 to ", n_layer - 1));
    }
    if (each.layers.begin > next) {
      return absl::InvalidArgumentError(
          absl::StrCat(Assigned({next, each.layers.begin}), " to no device"));
    }
    if (each.layers.begin < next) {
      return absl::InvalidArgumentError(
          absl::StrCat(Assigned({each.layers.begin, std::min(next, each.layers.end)}), " to both ",
                       assignments[i - 1].place, " and ", each.place));
    }
    next = each.layers.end;
  }
  if (next < n_layer) {
    return absl::InvalidArgumentError(absl::StrCat(Assigned({next, n_layer}), " to no device"));
  }
  return absl::OkStatus();
}

std::vector<size_t> Matching(const PlanProblem& problem, const std::string& place) {
  std::vector<size_t> matching;
  for (size_t c = 0; c < problem.candidates().size(); ++c) {
    if (PlaceMeans(problem.request(), place, problem.candidates()[c].device)) matching.push_back(c);
  }
  return matching;
}

// The reason why none of a place's devices can be used.
absl::Status NobodyThere(const PlanProblem& problem, const std::string& place) {
  const PlanRequest& request = problem.request();
  std::vector<std::string> there;
  for (size_t d = 0; d < request.devices.size(); ++d) {
    if (PlaceMeans(request, place, d)) there.push_back(PlaceName(request, d));
  }
  if (there.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no node or device \"", place, "\"; there are ", Names(request)));
  }
  for (const std::string& excluded : request.exclude) {
    for (size_t d = 0; d < request.devices.size(); ++d) {
      if (!PlaceMeans(request, place, d) || !PlaceMeans(request, excluded, d)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(place, " is both assigned layers and excluded"));
    }
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(place, " has not been measured, or has no memory free for any layer"));
}

}  // namespace

std::string DiskText(const PlanNode& node) {
  if (node.disk_free_bytes == 0) {
    return absl::StrCat("the disk of ", node.name, " has no room for weights");
  }
  return absl::StrCat("the disk of ", node.name, " has room for ", BytesText(node.disk_free_bytes),
                      " of weights");
}

absl::StatusOr<Pieces> AssignedPieces(const PlanProblem& problem) {
  const PlanRequest& request = problem.request();
  std::vector<Assignment> assignments = request.assignments;
  for (const Assignment& each : assignments) {
    if (Matching(problem, each.place).empty()) return NobodyThere(problem, each.place);
  }
  std::stable_sort(
      assignments.begin(), assignments.end(),
      [](const Assignment& a, const Assignment& b) { return a.layers.begin < b.layers.begin; });
  const uint32_t n_layer = request.costs->n_layer();
  if (absl::Status status = CheckCover(assignments, n_layer); !status.ok()) return status;
  std::vector<uint32_t> cuts;
  for (size_t i = 1; i < assignments.size(); ++i) cuts.push_back(assignments[i].layers.begin);
  if (auto ranges = CutAt(n_layer, request.rule, cuts); !ranges.ok()) return ranges.status();

  const auto point = [&](uint32_t layer) {
    const auto& points = problem.points();
    return static_cast<size_t>(std::lower_bound(points.begin(), points.end(), layer) -
                               points.begin());
  };
  Pieces pieces;
  for (const Assignment& each : assignments) {
    Piece best;
    bool found = false, taken = false, fits = false;
    for (const size_t c : Matching(problem, each.place)) {
      const Piece piece = {c, point(each.layers.begin), point(each.layers.end)};
      if (std::any_of(pieces.begin(), pieces.end(),
                      [&](const Piece& p) { return p.candidate == c; })) {
        taken = true;
        continue;
      }
      const bool this_fits = problem.Fits(piece, {});
      if (found && (fits > this_fits || (fits == this_fits && problem.StageSeconds(best) <=
                                                                  problem.StageSeconds(piece)))) {
        continue;
      }
      best = piece;
      found = true;
      fits = this_fits;
    }
    if (!found) {
      return absl::InvalidArgumentError(absl::StrCat(
          each.place, taken ? " is assigned layers twice; a device takes one range" : ""));
    }
    if (!fits) {
      const auto& candidate = problem.candidates()[best.candidate];
      const uint64_t needed = problem.StageBytes(best);
      if (problem.FetchBytes(best) > candidate.disk_free_bytes) {
        return absl::ResourceExhaustedError(absl::StrCat(
            LayersText(each.layers), " do not fit on ", PlaceName(request, candidate.device), ": ",
            BytesText(problem.FetchBytes(best)), " of weights would be fetched there; ",
            DiskText(request.nodes[candidate.node])));
      }
      if (needed <= candidate.memory_bytes) {
        return absl::ResourceExhaustedError(absl::StrCat(
            LayersText(each.layers), " do not fit on ", PlaceName(request, candidate.device),
            ": their experts do not fit the memory of the node's CPU (--cpu-moe)"));
      }
      return absl::ResourceExhaustedError(
          absl::StrCat(LayersText(each.layers), " do not fit on ",
                       PlaceName(request, candidate.device), ": they need ", BytesText(needed),
                       " with cache and buffers, it has ", BytesText(candidate.memory_bytes), "; ",
                       BytesText(needed - candidate.memory_bytes), " are missing"));
    }
    pieces.push_back(best);
  }
  std::map<int, uint64_t> taken_bytes;
  for (const Piece& piece : pieces) {
    const int pool = problem.candidates()[piece.candidate].memory_pool;
    if (pool != kOwnPool) taken_bytes[pool] += problem.StageBytes(piece.begin, piece.end);
  }
  for (const auto& [pool, bytes] : taken_bytes) {
    if (bytes <= problem.PoolBytes(pool)) continue;
    return absl::ResourceExhaustedError(
        absl::StrCat("the stages that share the memory of ",
                     request.memory_pools[static_cast<size_t>(pool)].name, " need ",
                     BytesText(bytes), " together, it has ", BytesText(problem.PoolBytes(pool)),
                     "; ", BytesText(bytes - problem.PoolBytes(pool)), " are missing"));
  }
  if (CostOf(problem, Aim::kSum, pieces) == kNever) {
    return absl::FailedPreconditionError(
        "two stages that follow each other, or the coordinator and an end, have no working link");
  }
  return pieces;
}

absl::Status DoesNotFit(const PlanProblem& problem) {
  const PlanRequest& request = problem.request();
  const auto& candidates = problem.candidates();
  const Pieces packed = PackLargestFirst(problem);
  const size_t reached = packed.empty() ? 0 : packed.back().end;
  std::vector<std::string> where;
  for (const Piece& piece : packed) {
    const auto& candidate = candidates[piece.candidate];
    where.push_back(absl::StrCat(PlaceName(request, candidate.device), " ",
                                 BytesText(candidate.memory_bytes), " (",
                                 LayersText(problem.Layers(piece)), ")"));
  }
  std::vector<PlanProblem::Candidate> all = candidates;
  all.insert(all.end(), problem.too_small().begin(), problem.too_small().end());
  // Devices that share a memory may offer more than it has, or less.
  uint64_t free_bytes = 0;
  std::map<int, uint64_t> of_pools;
  for (const auto& candidate : all) {
    (candidate.memory_pool == kOwnPool ? free_bytes : of_pools[candidate.memory_pool]) +=
        candidate.memory_bytes;
  }
  for (const auto& [pool, bytes] : of_pools) free_bytes += std::min(bytes, problem.PoolBytes(pool));
  if (reached == problem.last_point()) {
    return absl::FailedPreconditionError(
        "the model fits into the nodes' memory, but no order of them was found in which each "
        "reaches the next and the coordinator over a measured link");
  }
  const uint64_t needed = problem.StageBytes(0, problem.last_point());
  if (packed.empty()) {
    std::ranges::sort(all, std::greater<>(), &PlanProblem::Candidate::memory_bytes);
    for (const auto& candidate : all) {
      where.push_back(absl::StrCat(PlaceName(request, candidate.device), " ",
                                   BytesText(candidate.memory_bytes)));
    }
  }
  const size_t shown = std::min(where.size(), kShownMax);
  const std::string list = absl::StrCat(
      absl::StrJoin(where.begin(), where.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
      shown < where.size() ? ", …" : "",
      packed.empty() ? "; no device has room for the first layer" : "");
  std::string disks;
  for (const PlanNode& node : request.nodes) {
    if (!node.fetch_bytes.empty()) absl::StrAppend(&disks, "; ", DiskText(node));
  }
  if (!disks.empty()) absl::StrAppend(&disks, ": make room there, or see --cache-dir");
  std::string missing;
  uint64_t missing_bytes = 0;
  if (reached < problem.last_point()) {
    missing_bytes = problem.StageBytes(reached, problem.last_point());
    const LayerRange rest = {problem.points()[reached], request.costs->n_layer()};
    missing =
        absl::StrCat(LayersText(rest), rest.size() == 1 ? " finds" : " find", " no room: another ",
                     BytesText(missing_bytes), " are needed on one device or several");
  }
  std::string cuts;
  if (problem.points().size() == 2 && request.costs->n_layer() > 1) {
    cuts = absl::StrCat(" (", request.rule.architecture, " may not be cut",
                        request.rule.reason.empty() ? "" : ": ", request.rule.reason, ")");
  }
  return WithShortage(
      absl::ResourceExhaustedError(absl::StrCat(
          "the model does not fit", cuts, ": it needs ", BytesText(needed), " with caches for ",
          request.cache.n_seqs, " × ", request.cache.n_ctx, " positions, free are ",
          BytesText(free_bytes), "; ", missing, ". Free memory, largest first: ", list, disks)),
      {.needed_bytes = free_bytes + missing_bytes, .free_bytes = free_bytes});
}

}  // namespace strata
