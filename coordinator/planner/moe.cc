#include "coordinator/planner/moe.h"

#include <algorithm>
#include <utility>

namespace strata {
namespace {

constexpr size_t kMoeNodesMax = 8;  // more nodes are tried all together only

struct MoeCost {
  double aim = kNever;
  double sum = kNever;
  bool operator<(const MoeCost& other) const {
    return aim != other.aim ? aim < other.aim : sum < other.sum;
  }
};

struct Tried {
  MoePlan plan;
  MoeCost cost;
};

// Neither kept out nor excluded and, with manual placement, one of the assigned places.
bool MayHoldAStage(const PlanRequest& request, size_t device) {
  if (IsExcluded(request, device)) return false;
  return request.assignments.empty() ||
         std::any_of(
             request.assignments.begin(), request.assignments.end(),
             [&](const Assignment& each) { return PlaceMeans(request, each.place, device); });
}

// Nodes that have a CPU that is not excluded and another device, with memory of its own, that may
// get a stage, and share the CPU's with no other node.
std::vector<size_t> MoeNodes(const PlanRequest& request) {
  std::vector<size_t> nodes;
  for (size_t node = 0; node < request.nodes.size(); ++node) {
    bool has_cpu = false, has_other = false, is_shared = false;
    for (size_t i = 0; i < request.devices.size(); ++i) {
      const PlanDevice& device = request.devices[i];
      if (device.node != node || device.speed.types.empty() || IsExcluded(request, i)) continue;
      if (!device.is_cpu) {
        has_other |= MayHoldAStage(request, i) &&
                     (request.cpu_moe == CpuMoe::kAll || device.memory_pool == kOwnPool);
        continue;
      }
      has_cpu = true;
      for (const PlanDevice& other : request.devices) {
        is_shared |= other.node != node && device.memory_pool != kOwnPool &&
                     other.memory_pool == device.memory_pool;
      }
    }
    if (has_cpu && has_other && (!is_shared || request.cpu_moe == CpuMoe::kAll)) {
      nodes.push_back(node);
    }
  }
  return nodes;
}

// The experts of all layers on these nodes in their CPU's memory.
PlanRequest Joined(const PlanRequest& request, const std::vector<size_t>& nodes) {
  PlanRequest joined = request;
  for (const size_t node : nodes) {
    const auto cpu =
        std::find_if(joined.devices.begin(), joined.devices.end(), [&](const PlanDevice& device) {
          return device.node == node && device.is_cpu && !device.speed.types.empty();
        });
    for (size_t i = 0; i < joined.devices.size(); ++i) {
      PlanDevice& device = joined.devices[i];
      if (device.node != node || device.is_cpu || !MayHoldAStage(request, i)) continue;
      if (request.cpu_moe != CpuMoe::kAll && device.memory_pool != kOwnPool) continue;
      device.moe_host = static_cast<int>(cpu - joined.devices.begin());
    }
  }
  return joined;
}

// Brings back to each stage's device the experts that fit it.
void BringBack(const PlanProblem& problem, const Pieces& pieces, PlanRequest* request) {
  for (const Piece& piece : pieces) {
    const PlanProblem::Candidate& candidate = problem.candidates()[piece.candidate];
    PlanDevice& device = request->devices[candidate.device];
    if (device.moe_host == kNoHost) continue;
    const LayerRange layers = problem.Layers(piece);
    device.cpu_moe = {layers.begin, layers.end};
    if (request->cpu_moe == CpuMoe::kAll) continue;
    uint64_t bytes = problem.StageBytes(piece);
    while (device.cpu_moe.size() > 0) {
      bytes += request->costs->layers[device.cpu_moe.end - 1].ExpertBytes();
      if (bytes > candidate.memory_bytes) break;
      --device.cpu_moe.end;
    }
  }
}

Tried Try(const PlanRequest& request, const std::vector<size_t>& nodes,
          absl::FunctionRef<Solution(const PlanProblem& problem)> solve) {
  Tried tried = {.plan = {.request = Joined(request, nodes), .solution = {}}, .cost = {}};
  const PlanProblem problem(tried.plan.request, StepOf(request));
  Solution& solution = tried.plan.solution;
  solution = solve(problem);
  if (!solution.found()) return tried;
  PlanRequest filled = tried.plan.request;  // `problem` reads the other one
  BringBack(problem, solution.pieces, &filled);
  tried.plan.request = std::move(filled);
  const PlanProblem priced(tried.plan.request, StepOf(request));
  tried.cost = {CostOf(priced, AimOf(request.objective), solution.pieces),
                CostOf(priced, Aim::kSum, solution.pieces)};
  return tried;
}

}  // namespace

MoePlan PlaceMoe(const PlanRequest& request,
                 absl::FunctionRef<Solution(const PlanProblem& problem)> solve) {
  const bool has_experts = std::any_of(request.costs->layers.begin(), request.costs->layers.end(),
                                       [](const LayerCost& layer) { return layer.n_expert > 0; });
  const std::vector<size_t> nodes =
      has_experts && request.cpu_moe != CpuMoe::kNone ? MoeNodes(request) : std::vector<size_t>();
  if (request.cpu_moe == CpuMoe::kAll) return std::move(Try(request, nodes, solve).plan);
  Tried best = Try(request, {}, solve);
  if (nodes.empty()) return std::move(best.plan);
  std::vector<size_t> joined;
  const auto consider = [&](const std::vector<size_t>& with) {
    Tried tried = Try(request, with, solve);
    if (!(tried.cost < best.cost)) return false;
    best = std::move(tried);
    return true;
  };
  consider(nodes);  // without them all, the model may not fit
  for (bool helps = nodes.size() > 1 && nodes.size() <= kMoeNodesMax; helps;) {
    helps = false;
    size_t better = 0;
    for (const size_t node : nodes) {
      if (std::find(joined.begin(), joined.end(), node) != joined.end()) continue;
      std::vector<size_t> with = joined;
      with.push_back(node);
      if (!consider(with)) continue;
      helps = true;
      better = node;
    }
    if (helps) joined.push_back(better);
  }
  return std::move(best.plan);
}

}  // namespace strata
