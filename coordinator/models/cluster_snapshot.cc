#include "coordinator/models/cluster_snapshot.h"

#include <algorithm>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "coordinator/cluster/cluster_stub.h"
#include "coordinator/cluster/shared_ids.h"
#include "coordinator/planner/problem/measured_node.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "proto/coordinator.grpc.pb.h"
#include "shard/device/device_probe.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_deadline.h"
#include "transport/rpc/grpc_status.h"
#include "transport/rpc/printable_message.h"

namespace strata {
namespace {

constexpr int64_t kAnswerMs = 3'000;
// A node that has just died refuses at once, which must not take long; but a connection fails now
// and then for other reasons.
constexpr int kDials = 3;
constexpr absl::Duration kDialPause = absl::Milliseconds(100);

using Pause = std::function<void(absl::Duration)>;

absl::StatusOr<std::unique_ptr<NodeClient>> Dial(const std::string& address, const Pause& pause) {
  const NodeClient::Options options = {
      .address = address, .timeout_ms = kAnswerMs, .wait_for_ready = false};
  for (int i = 1;; ++i) {
    auto client = NodeClient::Connect(options);
    if (client.ok() || !absl::IsUnavailable(client.status()) || i == kDials) return client;
    pause(kDialPause);
  }
}

void Query(const std::string& address, const Pause& pause, NodeReport* node) {
  auto client = Dial(address, pause);
  if (!client.ok()) {
    node->status = client.status();
    return;
  }
  auto info = (*client)->GetInfo(kAnswerMs);
  if (!info.ok()) {
    node->status = info.status();
    return;
  }
  auto sees = ClusterStub(address, kAnswerMs).GetCluster();
  if (!sees.ok()) {
    node->status = sees.status();
    return;
  }
  node->info = *std::move(info);
  node->sees = *std::move(sees);
  node->client = *std::move(client);
}

DeviceSpeed SpeedOf(const wire::DeviceSpeed& wire) {
  DeviceSpeed speed;
  speed.memory_bytes_per_s = wire.memory_bytes_per_s();
  speed.op_s = wire.op_s();
  speed.op_float_s = wire.op_float_s();
  for (const wire::TypeSpeed& type : wire.types()) {
    TypeSpeed& added = speed.types.emplace_back();
    added.type = type.type();
    const auto copy = [](const auto& from, auto* to) {
      std::copy_n(from.begin(), std::min<size_t>(static_cast<size_t>(from.size()), to->size()),
                  to->begin());
    };
    copy(type.bytes_per_s(), &added.bytes_per_s);
    copy(type.expert_bytes_per_s(), &added.expert_bytes_per_s);
  }
  return speed;
}

MeasuredDevice DeviceOf(const wire::DeviceInfo& info) {
  MeasuredDevice device;
  device.facts.name = info.name();
  device.facts.description = info.description();
  switch (info.kind()) {
    case wire::DeviceInfo::GPU:
      device.facts.kind = DeviceFacts::Kind::kGpu;
      break;
    case wire::DeviceInfo::INTEGRATED_GPU:
      device.facts.kind = DeviceFacts::Kind::kIntegratedGpu;
      break;
    default:
      device.facts.kind = DeviceFacts::Kind::kCpu;
  }
  device.facts.bus_id = info.bus_id();
  device.facts.memory_total_bytes = info.memory_total();
  device.facts.memory_free_bytes = info.memory_free();
  device.facts.shares_machine_memory = info.shares_machine_memory();
  device.speed = SpeedOf(info.speed());
  return device;
}

}  // namespace

const wire::LinkSpeed* ClusterSnapshot::Link(size_t from, size_t to) const {
  const auto find = [](const NodeReport& node, const std::string& id) -> const wire::LinkSpeed* {
    for (const wire::ClusterNode& other : node.sees.nodes()) {
      if (other.record().node_id() == id && other.link().bytes_per_s() > 0) return &other.link();
    }
    return nullptr;
  };
  const wire::LinkSpeed* link = find(nodes[from], nodes[to].id());
  return link != nullptr ? link : find(nodes[to], nodes[from].id());
}

bool ClusterSnapshot::measuring() const {
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!nodes[i].status.ok()) continue;
    if (nodes[i].info.measuring() || nodes[i].info.devices().empty()) return true;
    for (size_t j = 0; j < i; ++j) {
      if (nodes[j].status.ok() && Link(i, j) == nullptr) return true;
    }
  }
  return false;
}

ClusterSnapshot CollectReport(OwnReport own, const std::string& own_address,
                              const std::vector<std::string>& only, const Pause& pause) {
  MakePrintable(&own.cluster);
  ClusterSnapshot report;
  report.cluster = std::move(own.cluster);
  for (const wire::ClusterNode& seen : report.cluster.nodes()) {
    if (only.empty() || absl::c_linear_search(only, seen.record().node_id())) {
      report.nodes.emplace_back().seen = seen;
    }
  }
  std::vector<std::thread> threads;
  for (NodeReport& node : report.nodes) {
    if (node.id() == report.cluster.asked()) {
      node.client = NodeClient::For(own_address, own.info);
      node.info = std::move(own.info);
      node.sees = report.cluster;
    } else if (node.seen.state() != "alive") {
      node.status = absl::UnavailableError(absl::StrCat("it is ", node.seen.state()));
    } else if (node.seen.address().empty()) {
      node.status = absl::UnavailableError("no route to it works");
    } else {
      threads.emplace_back([&pause, &node] { Query(node.seen.address(), pause, &node); });
    }
  }
  for (std::thread& thread : threads) thread.join();
  return report;
}

wire::ClusterSnapshot ToWire(const ClusterSnapshot& report) {
  wire::ClusterSnapshot wire;
  *wire.mutable_cluster() = report.cluster;
  for (const NodeReport& node : report.nodes) {
    wire::ReportNode* sent = wire.add_nodes();
    *sent->mutable_seen() = node.seen;
    ToWire(node.status, "", sent->mutable_status());
    *sent->mutable_info() = node.info;
    *sent->mutable_sees() = node.sees;
  }
  return wire;
}

absl::StatusOr<ClusterSnapshot> FetchReport(const std::string& address, int64_t timeout_ms,
                                            const std::vector<std::string>& only) {
  grpc::ClientContext context;
  context.set_deadline(DeadlineIn(absl::Milliseconds(timeout_ms)));
  wire::GetReportRequest request;
  for (const std::string& id : only) request.add_nodes(id);
  wire::ClusterSnapshot wire;
  const grpc::Status status = wire::Coordinator::NewStub(MakeChannel(address, kPatientTimeoutMs))
                                  ->GetReport(&context, request, &wire);
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED ||
      status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    return absl::UnavailableError(absl::StrCat("no node answers at ", address));
  }
  if (!status.ok()) return FromGrpc(status);
  MakePrintable(&wire);
  ClusterSnapshot report;
  report.cluster = std::move(*wire.mutable_cluster());
  for (wire::ReportNode& received : *wire.mutable_nodes()) {
    NodeReport& node = report.nodes.emplace_back();
    node.seen = std::move(*received.mutable_seen());
    node.status = FromWire(received.status());
    node.info = std::move(*received.mutable_info());
    node.sees = std::move(*received.mutable_sees());
  }
  return report;
}

absl::StatusOr<NodeReport> FetchNode(const std::string& address, int64_t timeout_ms,
                                     const std::string& id) {
  auto report = FetchReport(address, timeout_ms, {id});
  if (!report.ok()) return report.status();
  for (NodeReport& node : report->nodes) {
    if (node.id() != id) continue;
    if (!node.status.ok()) return node.status;
    return std::move(node);
  }
  return absl::NotFoundError("it is not known any more");
}

void DisambiguateNodeNames(ClusterSnapshot* report) {
  wire::GetClusterResponse all;
  for (const NodeReport& node : report->nodes) *all.add_nodes() = node.seen;
  for (NodeReport& node : report->nodes) {
    node.seen.mutable_record()->set_name(DistinctName(all, node.seen.record()));
  }
}

PlanInputs PlanInputsOf(const ClusterSnapshot& report) {
  PlanInputs inputs;
  PlanRequest& request = inputs.request;
  wire::GetClusterResponse answering;
  for (const NodeReport& node : report.nodes) {
    if (node.status.ok()) *answering.add_nodes()->mutable_record() = node.seen.record();
  }
  for (size_t i = 0; i < report.nodes.size(); ++i) {
    const NodeReport& node = report.nodes[i];
    if (!node.status.ok()) continue;
    std::vector<MeasuredDevice> devices;
    std::map<std::string, uint64_t> offered;  // by device, where a person set a limit
    for (const wire::DeviceInfo& device : node.info.devices()) {
      devices.push_back(DeviceOf(device));
      if (device.memory_limit() == 0 || !device.shares_machine_memory()) continue;
      // The limit is the device's own; the memory that it shares with others is not limited.
      offered[device.name()] = device.memory_free();
      devices.back().facts.memory_free_bytes = node.info.memory_free();
    }
    // People give the names, which may not be unique; the plan's are.
    const std::string name = DistinctName(answering, node.seen.record());
    if (node.id() == report.cluster.asked()) request.coordinator_node = inputs.places.size();
    AddMeasuredNode(name, {.memory = node.info.machine_id(), .cores = node.info.cores_id()},
                    devices, &request);
    for (PlanDevice& device : request.devices) {
      const auto limit = offered.find(device.name);
      if (device.node != inputs.places.size() || limit == offered.end()) continue;
      device.memory_free_bytes = std::min(device.memory_free_bytes, limit->second);
    }
    inputs.places.push_back(i);
  }
  const size_t n = inputs.places.size();
  request.links.resize(n * n);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) {
      const wire::LinkSpeed* link =
          i == j ? nullptr : report.Link(inputs.places[i], inputs.places[j]);
      if (link == nullptr) continue;
      request.links[i * n + j] = {.round_trip_s = link->round_trip_p50_us() * 1e-6,
                                  .bytes_per_s = static_cast<double>(link->bytes_per_s())};
    }
  }
  return inputs;
}

}  // namespace strata
