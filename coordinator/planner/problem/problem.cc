#include "coordinator/planner/problem/problem.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/problem/moe_hosts.h"
#include "shard/engine/activation_codec.h"

namespace strata {
namespace {

constexpr uint32_t kThroughputBatchMax = 16;

uint64_t Less(uint64_t bytes, uint64_t taken) { return bytes > taken ? bytes - taken : 0; }

// The bytes of the layers between two points that are not in the device's memory.
uint64_t HostBytes(const PlanProblem::Candidate& c, size_t begin, size_t end) {
  return c.shares_with_host ? 0 : c.host_bytes[end] - c.host_bytes[begin];
}

uint64_t FetchedBytes(const PlanProblem::Candidate& c, size_t begin, size_t end) {
  return c.fetch_bytes.empty() ? 0 : c.fetch_bytes[end] - c.fetch_bytes[begin];
}

}  // namespace

wire::ActivationType PlanRequest::SentAs(size_t from, size_t to, uint32_t rows) const {
  if (link_activations.empty()) return activations.is_auto ? wire::F32 : activations.type;
  return ActivationTypeFor(link_activations[from * nodes.size() + to], rows);
}

bool PlaceMeans(const PlanRequest& request, const std::string& place, size_t device) {
  const PlanDevice& each = request.devices[device];
  const std::string& node = request.nodes[each.node].name;
  return place == node || place == absl::StrCat(node, "/", each.name);
}

bool IsExcluded(const PlanRequest& request, size_t device) {
  return !request.nodes[request.devices[device].node].kept_out.empty() ||
         std::any_of(request.exclude.begin(), request.exclude.end(),
                     [&](const std::string& place) { return PlaceMeans(request, place, device); });
}

uint64_t ReserveOf(const PlanRequest& request, size_t node) {
  uint64_t bytes = 0;
  for (const Reserve& reserve : request.reserve) {
    if (reserve.node == request.nodes[node].name) return reserve.bytes;
    if (reserve.node.empty()) bytes = reserve.bytes;
  }
  return bytes;
}

StepShape StepOf(const PlanRequest& request) {
  uint32_t batch = request.batch;
  if (batch == 0) {
    batch = request.objective == Objective::kLatency
                ? 1
                : std::clamp(request.cache.n_seqs, 1u, kThroughputBatchMax);
  }
  return DecodeStep(batch, request.PredictedPositions());
}

PlanProblem::PlanProblem(const PlanRequest& request, const StepShape& step)
    : request_(request), step_(step) {
  const LayerCosts& costs = *request.costs;
  points_ = {0};
  points_.insert(points_.end(), request.rule.cut_points.begin(), request.rule.cut_points.end());
  points_.push_back(costs.n_layer());
  runs_.resize(points_.size());
  for (size_t begin = 0; begin < last_point(); ++begin) {
    for (size_t end = begin + 1; end < points_.size(); ++end) {
      if (!SizeAllowed(begin, end)) continue;
      if (!runs_[begin].empty() && runs_[begin].back().second == end) {
        ++runs_[begin].back().second;
      } else {
        runs_[begin].emplace_back(end, end + 1);
      }
    }
  }

  for (size_t i = 0, layer = 0; i < points_.size(); ++i) {
    uint64_t bytes = i == 0 ? 0 : layer_bytes_.back();
    for (; layer < points_[i]; ++layer) {
      bytes += costs.layers[layer].weight_bytes + CacheBytes(costs.layers[layer], request.cache);
    }
    layer_bytes_.push_back(bytes);
  }
  compute_bytes_ = ComputeBytes(costs, request.cache, false);
  compute_last_bytes_ = ComputeBytes(costs, request.cache, true);

  for (size_t pool = 0; pool < request.memory_pools.size(); ++pool) {
    std::set<size_t> nodes;
    for (const PlanDevice& device : request.devices) {
      if (device.memory_pool == static_cast<int>(pool)) nodes.insert(device.node);
    }
    uint64_t free = request.memory_pools[pool].free_bytes;
    for (const size_t node : nodes) free = Less(free, ReserveOf(request, node));
    pool_bytes_.push_back(free);
  }

  const size_t n_nodes = request.nodes.size();
  hops_.resize(n_nodes * n_nodes);
  for (size_t from = 0; from < n_nodes; ++from) {
    for (size_t to = 0; to < n_nodes; ++to) {
      const double bytes = ActivationBytes(costs, step, request.SentAs(from, to, step.rows));
      hops_[from * n_nodes + to] = Between(from, to, bytes);
    }
  }

  for (size_t i = 0; i < request.devices.size(); ++i) {
    const PlanDevice& device = request.devices[i];
    if (IsExcluded(request, i) || device.speed.types.empty()) continue;
    if (IsMoeHost(request, i) || SharesMoeHost(request, i)) continue;
    Candidate candidate;
    candidate.device = i;
    candidate.node = device.node;
    candidate.memory_pool = device.memory_pool;
    candidate.bandwidth_pool = device.bandwidth_pool;
    candidate.cores_pool = device.cores_pool;
    candidate.memory_bytes = device.memory_free_bytes;
    candidate.has_own_memory = device.has_own_memory;
    if (device.memory_pool == kOwnPool) {
      candidate.memory_bytes = Less(candidate.memory_bytes, ReserveOf(request, device.node));
    } else {
      candidate.memory_bytes = std::min(candidate.memory_bytes, PoolBytes(device.memory_pool));
    }
    PriceLayers(device, &candidate);
    const PlanNode& node = request.nodes[device.node];
    candidate.disk_free_bytes = node.disk_free_bytes;
    if (!node.fetch_bytes.empty()) {
      for (const uint32_t point : points_) candidate.fetch_bytes.push_back(node.fetch_bytes[point]);
    }
    const auto has_room = [&](size_t begin, size_t end) {
      return BytesOn(candidate, begin, end) <= candidate.memory_bytes &&
             HostBytes(candidate, begin, end) <= candidate.host_bytes_max;
    };
    bool has_any = false;
    for (size_t begin = 0; begin < last_point() && !has_any; ++begin) {
      for (const auto& [first, last] : runs_[begin]) has_any |= has_room(begin, first);
    }
    if (!has_any) {
      too_small_.push_back(std::move(candidate));
      continue;
    }
    const LayerTime head = PredictHead(costs, device.speed, step);
    candidate.head_s = head.seconds;
    candidate.head_memory_s = head.memory_seconds;
    candidate.overhead_s = device.step_overhead_s;
    candidates_.push_back(std::move(candidate));
  }
}

void PlanProblem::PriceLayers(const PlanDevice& device, Candidate* candidate) const {
  const LayerCosts& costs = *request_.costs;
  const PlanDevice* const host = device.moe_host == kNoHost
                                     ? nullptr
                                     : &request_.devices[static_cast<size_t>(device.moe_host)];
  if (host != nullptr) {
    candidate->host_bytes_max = MoeHostBytes(request_, device);
    candidate->cores_pool = host->cores_pool;
    candidate->shares_with_host =
        device.memory_pool != kOwnPool && device.memory_pool == host->memory_pool;
  }
  const bool host_bandwidth = host != nullptr && device.bandwidth_pool == kOwnPool;
  if (host_bandwidth) candidate->bandwidth_pool = host->bandwidth_pool;
  LayerTime sum;
  uint64_t host_bytes = 0;
  for (size_t p = 0, next = 0; p < points_.size(); ++p) {
    for (; next < points_[p]; ++next) {
      const auto layer = static_cast<uint32_t>(next);
      const bool elsewhere = host != nullptr && layer >= device.cpu_moe.begin &&
                             layer < device.cpu_moe.end && costs.layers[layer].n_expert > 0;
      if (!elsewhere) {
        const LayerTime time = PredictLayer(costs, layer, device.speed, step_);
        sum.seconds += time.seconds;
        if (!host_bandwidth) sum.memory_seconds += time.memory_seconds;
        continue;
      }
      const LayerTime here = PredictWithoutExperts(costs, layer, device.speed, step_);
      const LayerTime there = PredictExperts(costs, layer, host->speed, step_);
      sum.seconds += here.seconds + there.seconds + HandOverSeconds(costs, step_);
      sum.memory_seconds += there.memory_seconds + (host_bandwidth ? 0 : here.memory_seconds);
      host_bytes += costs.layers[layer].ExpertBytes();
    }
    candidate->seconds.push_back(sum.seconds);
    candidate->memory_seconds.push_back(sum.memory_seconds);
    candidate->host_bytes.push_back(host_bytes);
  }
}

bool PlanProblem::SizeAllowed(size_t begin, size_t end) const {
  if (begin == 0 && end == last_point()) return true;
  const std::vector<uint32_t>& forbidden = request_.rule.forbidden_sizes;
  return std::find(forbidden.begin(), forbidden.end(), points_[end] - points_[begin]) ==
         forbidden.end();
}

double PlanProblem::StageSeconds(const Piece& piece) const {
  const Candidate& c = candidates_[piece.candidate];
  return c.seconds[piece.end] - c.seconds[piece.begin] + c.overhead_s +
         (piece.end == last_point() ? c.head_s : 0);
}

double PlanProblem::StageMemorySeconds(const Piece& piece) const {
  const Candidate& c = candidates_[piece.candidate];
  return c.memory_seconds[piece.end] - c.memory_seconds[piece.begin] +
         (piece.end == last_point() ? c.head_memory_s : 0);
}

uint64_t PlanProblem::StageBytes(size_t begin, size_t end) const {
  const bool is_last = end == last_point();
  return layer_bytes_[end] - layer_bytes_[begin] + request_.costs->EndBytes(begin == 0, is_last) +
         (is_last ? compute_last_bytes_ : compute_bytes_);
}

uint64_t PlanProblem::BytesOn(const Candidate& candidate, size_t begin, size_t end) const {
  const uint64_t bytes = StageBytes(begin, end) - HostBytes(candidate, begin, end);
  if (!candidate.has_own_memory) return bytes;
  return bytes -
         MachineBytesOf(*request_.costs, request_.cache, {points_[begin], points_[end]}).all();
}

uint64_t PlanProblem::StageBytes(const Piece& piece) const {
  return BytesOn(candidates_[piece.candidate], piece.begin, piece.end);
}

double PlanProblem::Between(size_t from_node, size_t to_node, double bytes) const {
  if (from_node == to_node) return request_.local_hop_s;
  return HopSeconds(request_.Link(from_node, to_node), bytes);
}

double PlanProblem::Hop(size_t from, size_t to) const {
  return hops_[candidates_[from].node * request_.nodes.size() + candidates_[to].node];
}

double PlanProblem::HopIn(size_t to) const {
  return Between(request_.coordinator_node, candidates_[to].node, TokenBytes(step_));
}

double PlanProblem::HopBack(size_t from) const {
  return Between(candidates_[from].node, request_.coordinator_node, TokenBytes(step_));
}

uint64_t PlanProblem::FetchBytes(const Piece& piece) const {
  return FetchedBytes(candidates_[piece.candidate], piece.begin, piece.end);
}

bool PlanProblem::Fits(const Piece& piece, const Caps& caps) const {
  const Candidate& c = candidates_[piece.candidate];
  return StageBytes(piece) <= std::min(caps.memory_bytes, c.memory_bytes) &&
         HostBytes(c, piece.begin, piece.end) <= c.host_bytes_max &&
         FetchBytes(piece) <= c.disk_free_bytes && StageSeconds(piece) <= caps.seconds &&
         StageMemorySeconds(piece) <= caps.memory_seconds;
}

std::vector<size_t> PlanProblem::LatestEnds(size_t candidate, const Caps& caps) const {
  std::vector<size_t> latest(points_.size());
  size_t end = 0;
  for (size_t begin = 0; begin < points_.size(); ++begin) {
    end = std::max(end, begin);
    while (end < last_point() && Fits({candidate, begin, end + 1}, caps)) ++end;
    latest[begin] = end;
  }
  return latest;
}

}  // namespace strata
