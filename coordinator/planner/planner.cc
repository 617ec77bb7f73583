#include "coordinator/planner/planner.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "coordinator/planner/assignment.h"
#include "coordinator/planner/explanation.h"
#include "coordinator/planner/kept_stages.h"
#include "coordinator/planner/moe.h"
#include "coordinator/planner/problem/moe_hosts.h"
#include "coordinator/planner/problem/problem.h"
#include "coordinator/planner/problem/solve.h"
#include "coordinator/planner/search/search.h"
#include "shard/engine/activation_codec.h"

namespace strata {
namespace {

constexpr int kOwnCores = 1 << 24;  // more than any pool of cores has for a number
constexpr uint32_t kContextMax = 1 << 26, kSequencesMax = 4096, kBatchMax = 1 << 16;

absl::Status Check(const PlanRequest& request) {
  if (request.costs == nullptr || request.costs->layers.empty()) {
    return absl::InvalidArgumentError("a plan needs a model");
  }
  const size_t n_nodes = request.nodes.size();
  if (n_nodes == 0 || request.devices.empty()) {
    return absl::InvalidArgumentError("there is no measured device to plan for");
  }
  if (request.links.size() != n_nodes * n_nodes || request.coordinator_node >= n_nodes) {
    return absl::InvalidArgumentError(absl::StrCat(request.links.size(), " links for ", n_nodes,
                                                   " nodes, coordinator ",
                                                   request.coordinator_node));
  }
  const auto outside = [](uint32_t value, uint32_t most) { return value == 0 || value > most; };
  if (outside(request.cache.n_ctx, kContextMax) || outside(request.cache.n_seqs, kSequencesMax) ||
      outside(request.cache.n_batch, kBatchMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a context of 1 to ", kContextMax, " positions, 1 to ", kSequencesMax,
                     " sequences and a batch of 1 to ", kBatchMax, " are possible"));
  }
  const std::vector<uint32_t>& cuts = request.rule.cut_points;
  if (!std::is_sorted(cuts.begin(), cuts.end(), std::less_equal<>()) ||
      (!cuts.empty() && (cuts.front() == 0 || cuts.back() >= request.costs->n_layer()))) {
    return absl::InvalidArgumentError("the cut points do not match the model");
  }
  const int n_pools = static_cast<int>(request.memory_pools.size());
  for (const PlanDevice& device : request.devices) {
    if (device.node >= n_nodes || device.memory_pool >= n_pools || device.memory_pool < kOwnPool) {
      return absl::InvalidArgumentError(
          absl::StrCat("device ", device.name, " names a node or pool that does not exist"));
    }
  }
  for (const PlanNode& node : request.nodes) {
    const std::vector<uint64_t>& fetched = node.fetch_bytes;
    const bool is_sum = std::is_sorted(fetched.begin(), fetched.end());
    if (!fetched.empty() && (fetched.size() != request.costs->n_layer() + size_t{1} || !is_sum)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the bytes that ", node.name, " would fetch are not given for each layer"));
    }
  }
  for (const std::string& place : request.exclude) {
    bool means = false;
    for (size_t d = 0; d < request.devices.size(); ++d) means |= PlaceMeans(request, place, d);
    for (const PlanNode& node : request.nodes) means |= node.name == place;
    if (!means) {
      return absl::InvalidArgumentError(
          absl::StrCat("--exclude: there is no node or device \"", place, "\""));
    }
  }
  for (const Reserve& reserve : request.reserve) {
    if (reserve.node.empty()) continue;
    if (std::none_of(request.nodes.begin(), request.nodes.end(),
                     [&](const PlanNode& node) { return node.name == reserve.node; })) {
      return absl::InvalidArgumentError(
          absl::StrCat("--reserve: there is no node \"", reserve.node, "\""));
    }
  }
  if (request.activations.is_auto) return absl::OkStatus();
  wire::ActivationRule sends;
  sends.set_type(request.activations.type);
  absl::Status sendable = CheckActivationRule(sends, request.costs->n_embd);
  return sendable.ok()
             ? sendable
             : absl::InvalidArgumentError(absl::StrCat("--activations: ", sendable.message()));
}

StepTime Predict(const PlanRequest& request, const std::vector<PlannedStage>& stages,
                 const StepShape& step, uint32_t batch) {
  // Only the devices in use.
  PlanRequest used = request;
  used.exclude.clear();
  used.reserve.clear();
  std::vector<size_t> devices;
  for (const PlannedStage& stage : stages) devices.push_back(stage.device);
  used.devices = WithMoeHosts(request, devices);
  for (PlanDevice& device : used.devices) device.memory_free_bytes = UINT64_MAX;
  for (MemoryPool& pool : used.memory_pools) pool.free_bytes = UINT64_MAX;
  const PlanProblem problem(used, step);
  Pieces pieces;
  for (size_t i = 0; i < stages.size(); ++i) {
    const auto& points = problem.points();
    const auto at = [&](uint32_t layer) {
      return static_cast<size_t>(std::lower_bound(points.begin(), points.end(), layer) -
                                 points.begin());
    };
    pieces.push_back({i, at(stages[i].layers.begin), at(stages[i].layers.end)});
  }
  return {batch, CostOf(problem, Aim::kSum, pieces), CostOf(problem, Aim::kMax, pieces)};
}

// Without the head.
double StageSeconds(const PlanRequest& request, const PlannedStage& stage, const StepShape& step) {
  const LayerCosts& costs = *request.costs;
  const PlanDevice& device = request.devices[stage.device];
  double seconds = device.step_overhead_s;
  for (uint32_t layer = stage.layers.begin; layer < stage.layers.end; ++layer) {
    if (layer - stage.layers.begin >= stage.n_cpu_moe) {
      seconds += PredictLayer(costs, layer, device.speed, step).seconds;
      continue;
    }
    const PlanDevice& host = request.devices[static_cast<size_t>(device.moe_host)];
    seconds += PredictWithoutExperts(costs, layer, device.speed, step).seconds +
               PredictExperts(costs, layer, host.speed, step).seconds +
               HandOverSeconds(costs, step);
  }
  return seconds;
}

// Chooses the type in which each stage sends, and predicts the hops with it. Returns the request
// with these choices.
PlanRequest ChooseActivationTypes(const PlanRequest& request, const StepShape& step,
                                  std::vector<PlannedStage>* stages) {
  PlanRequest sent = request;
  const size_t n_nodes = request.nodes.size();
  if (request.activations.is_auto) sent.link_activations.resize(n_nodes * n_nodes);
  for (size_t i = 0; i + 1 < stages->size(); ++i) {
    PlannedStage& stage = (*stages)[i];
    PlannedStage& next = (*stages)[i + 1];
    if (!request.activations.is_auto) {
      stage.sends.set_type(request.activations.type);
      continue;
    }
    const PlanDevice& device = request.devices[stage.device];
    const size_t to = request.devices[next.device].node;
    if (device.node == to) continue;
    const auto stage_s = [&](uint32_t rows) {
      const StepShape of_one_sequence = PromptStep(rows, step.positions);
      return StageSeconds(request, stage, of_one_sequence);
    };
    const PlanLink& link = request.Link(device.node, to);
    stage.sends = ChooseActivations({.bytes_per_s = link.bytes_per_s,
                                     .n_embd = request.costs->n_embd,
                                     .rows_max = request.cache.n_batch},
                                    stage_s);
    sent.link_activations[device.node * n_nodes + to] = stage.sends;
    const wire::ActivationType type = ActivationTypeFor(stage.sends, step.rows);
    next.hop_in_s = HopSeconds(link, ActivationBytes(*request.costs, step, type));
  }
  return sent;
}

Plan Finish(const PlanRequest& request, const PlanProblem& problem, const Solution& solution) {
  const LayerCosts& costs = *request.costs;
  Plan plan;
  plan.objective = request.objective;
  plan.batch = problem.step().rows;
  plan.is_by_hand = !request.assignments.empty();
  const Pieces& pieces = solution.pieces;
  for (size_t i = 0; i < pieces.size(); ++i) {
    PlannedStage stage;
    stage.device = problem.candidates()[pieces[i].candidate].device;
    stage.layers = problem.Layers(pieces[i]);
    const PlanDevice& device = request.devices[stage.device];
    if (device.moe_host != kNoHost) stage.n_cpu_moe = device.cpu_moe.size();
    for (uint32_t layer = stage.layers.begin; layer < stage.layers.end; ++layer) {
      const LayerCost& cost = costs.layers[layer];
      stage.cache_bytes += CacheBytes(cost, request.cache);
      if (layer - stage.layers.begin < stage.n_cpu_moe) stage.host_bytes += cost.ExpertBytes();
    }
    stage.weight_bytes = costs.WeightBytes(stage.layers) - stage.host_bytes;
    stage.compute_bytes = ComputeBytes(costs, request.cache, stage.layers.end == costs.n_layer());
    if (device.has_own_memory) {
      const MachineBytes machine = MachineBytesOf(costs, request.cache, stage.layers);
      stage.weight_bytes -= machine.weights;
      stage.compute_bytes -= machine.compute;
    }
    stage.compute_s = problem.StageSeconds(pieces[i]);
    stage.hop_in_s = i == 0 ? problem.HopIn(pieces[i].candidate)
                            : problem.Hop(pieces[i - 1].candidate, pieces[i].candidate);
    plan.stages.push_back(stage);
  }
  plan.back_s = problem.HopBack(pieces.back().candidate);
  const PlanRequest sent = ChooseActivationTypes(request, problem.step(), &plan.stages);
  const uint32_t positions = problem.step().positions;
  for (size_t i = 0; i < kPlanBatches.size(); ++i) {
    plan.times[i] =
        Predict(sent, plan.stages, DecodeStep(kPlanBatches[i], positions), kPlanBatches[i]);
  }
  plan.prompt =
      Predict(sent, plan.stages, PromptStep(kPlanChunkTokens, positions), kPlanChunkTokens);
  plan.devices = ExplainDevices(problem, pieces, plan.is_by_hand);
  if (request.with_hints) plan.hints = Hints(request, problem, pieces);
  return plan;
}

}  // namespace

std::string PlaceName(const PlanRequest& request, size_t device) {
  const size_t node = request.devices[device].node;
  const auto of_node = std::count_if(request.devices.begin(), request.devices.end(),
                                     [&](const PlanDevice& each) { return each.node == node; });
  const std::string& name = request.nodes[node].name;
  return of_node == 1 ? name : absl::StrCat(name, "/", request.devices[device].name);
}

absl::StatusOr<Plan> MakePlan(const PlanRequest& request) {
  if (absl::Status status = Check(request); !status.ok()) return status;
  absl::Status why;  // the reason if it does not fit without experts elsewhere
  const MoePlan placed = PlaceMoe(request, [&](const PlanProblem& problem) {
    Solution solution;
    if (request.assignments.empty()) {
      solution = SearchPlan(problem);
      if (!solution.found() && why.ok()) why = DoesNotFit(problem);
      return solution;
    }
    absl::StatusOr<Pieces> pieces = AssignedPieces(problem);
    if (!pieces.ok() && why.ok()) why = pieces.status();
    if (pieces.ok()) solution.pieces = *std::move(pieces);
    return solution;
  });
  if (!placed.solution.found()) return why;
  return Finish(placed.request, PlanProblem(placed.request, StepOf(request)), placed.solution);
}

absl::StatusOr<Plan> MakePlanAround(const PlanRequest& request,
                                    const std::vector<KeptStage>& kept) {
  if (absl::Status status = Check(request); !status.ok()) return status;
  const PlanProblem problem(request, StepOf(request));
  const Pieces stay = KeptPieces(problem, kept);
  if (stay.empty()) return absl::NotFoundError("none of the loaded stages can stay");
  Solution solution;
  solution.pieces = FillGaps(problem, stay);
  if (solution.pieces.empty()) {
    return absl::NotFoundError("there is no room for the other layers around the loaded stages");
  }
  PlanRequest plain = request;
  plain.with_hints = false;  // hints are about new plans
  // Stages of one device take turns.
  for (const Piece& piece : solution.pieces) {
    const size_t device = problem.candidates()[piece.candidate].device;
    int& cores = plain.devices[device].cores_pool;
    if (cores == kOwnPool) cores = kOwnCores + static_cast<int>(device);
  }
  return Finish(plain, problem, solution);
}

double SecondsOf(const Plan& plan) {
  return plan.objective == Objective::kLatency ? plan.times.front().step_s
                                               : plan.times.back().slowest_s;
}

}  // namespace strata
