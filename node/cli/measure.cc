#include "node/cli/measure.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "coordinator/models/cluster_snapshot.h"
#include "coordinator/models/node_match.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "nlohmann/json.hpp"
#include "node/base/json_line.h"
#include "node/base/standard_output.h"
#include "proto/coordinator.grpc.pb.h"
#include "transport/base/steady_time.h"
#include "transport/base/text_table.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_deadline.h"
#include "transport/rpc/grpc_status.h"

namespace strata {
namespace {

// For one node's answer through another one.
constexpr int64_t kReportMs = 10'000;
constexpr absl::Duration kPollEvery = absl::Milliseconds(250);
// A device takes 5 s, a link half a second; links to nodes that generate have to wait.
constexpr absl::Duration kLimit = absl::Minutes(5);

// Prints the progress of several nodes, a line at a time.
class ProgressPrinter {
 public:
  void Print(const std::string& node, const std::string& what) {
    absl::MutexLock lock(mu_);
    absl::FPrintF(stderr, "%s: %s\n", node, what);
  }

 private:
  absl::Mutex mu_;
};

// Nodes of one machine measure one after the other: they would disturb each other.
class MachineLocks {
 public:
  // The lock of the node's machine, which lives as long as this; an unknown machine has its own.
  absl::Mutex* Of(const MeasuredNode& node) {
    const std::string& machine = node.info_before.machine_id();
    absl::MutexLock lock(mu_);
    return &locks_[machine.empty() ? "node " + node.id : "machine " + machine];
  }

 private:
  absl::Mutex mu_;
  std::map<std::string, absl::Mutex> locks_ ABSL_GUARDED_BY(mu_);  // entries never move
};

absl::Status WithName(const std::string& name, const absl::Status& status) {
  if (status.ok() || absl::StrContains(status.message(), name)) return status;
  return absl::Status(status.code(), absl::StrCat(name, ": ", status.message()));
}

// A node of a cluster, called through the node at `address`.
class RemoteNode {
 public:
  RemoteNode(const std::string& address, const MeasuredNode& node)
      : address_(address),
        id_(node.id),
        name_(node.name),
        stub_(wire::Coordinator::NewStub(MakeChannel(address, kPatientTimeoutMs))) {}

  absl::Status Fetch(wire::GetInfoResponse* info, wire::GetClusterResponse* sees) {
    auto report = FetchNode(address_, kReportMs, id_);
    // Many nodes may be called through one.
    while (absl::IsResourceExhausted(report.status())) {
      absl::SleepFor(kPollEvery);
      report = FetchNode(address_, kReportMs, id_);
    }
    if (!report.ok()) return WithName(name_, report.status());
    *info = std::move(report->info);
    *sees = std::move(report->sees);
    return absl::OkStatus();
  }

  absl::Status Measure() {
    grpc::ClientContext context;
    context.set_deadline(DeadlineIn(absl::Milliseconds(kReportMs)));
    wire::MeasureNodeRequest request;
    request.set_node(id_);
    wire::MeasureNodeResponse response;
    return WithName(name_, FromGrpc(stub_->MeasureNode(&context, request, &response)));
  }

 private:
  const std::string address_, id_, name_;
  const std::unique_ptr<wire::Coordinator::Stub> stub_;
};

absl::Status Measure(const std::string& address, ProgressPrinter* printer, MachineLocks* locks,
                     MeasuredNode* node) {
  RemoteNode remote(address, *node);
  if (auto s = remote.Fetch(&node->info_before, &node->sees_before); !s.ok()) return s;
  absl::MutexLock turn(*locks->Of(*node));
  if (auto s = remote.Measure(); !s.ok()) return s;
  const SteadyTime until = SteadyTime::Now() + kLimit;
  std::string doing;
  while (true) {
    if (auto s = remote.Fetch(&node->info_after, &node->sees_after); !s.ok()) return s;
    const std::string now = MeasuringText(node->info_after);
    if (now.empty()) return absl::OkStatus();
    if (now != doing) printer->Print(node->name, now);
    if (SteadyTime::Now() > until) {
      return absl::DeadlineExceededError(absl::StrCat(node->name, " is still ", now));
    }
    doing = now;
    absl::SleepFor(kPollEvery);
  }
}

std::string Change(double before, double after) {
  if (before <= 0 || after <= 0) return "";
  return absl::StrFormat("%+.0f %%", (after / before - 1) * 100);
}

std::string Bandwidth(double bytes_per_s) {
  return bytes_per_s <= 0 ? "-" : absl::StrFormat("%.1f GB/s", bytes_per_s / 1e9);
}

std::string RoundTrip(uint32_t us) { return us == 0 ? "-" : absl::StrFormat("%.2f ms", us / 1e3); }

std::string Throughput(uint64_t bytes_per_s) {
  if (bytes_per_s == 0) return "-";
  return absl::StrFormat("%.0f Mbit/s", static_cast<double>(bytes_per_s) * 8 / 1e6);
}

const wire::DeviceInfo* FindDevice(const wire::GetInfoResponse& info, const std::string& name) {
  for (const wire::DeviceInfo& device : info.devices()) {
    if (device.name() == name) return &device;
  }
  return nullptr;
}

wire::LinkSpeed LinkTo(const wire::GetClusterResponse& sees, const std::string& id) {
  for (const wire::ClusterNode& other : sees.nodes()) {
    if (other.record().node_id() == id) return other.link();
  }
  return wire::LinkSpeed();
}

// True if the link was measured since `before`.
bool IsNew(const wire::LinkSpeed& before, const wire::LinkSpeed& after) {
  return after.measurement() > before.measurement();
}

nlohmann::json DeviceJson(const wire::DeviceInfo* device) {
  if (device == nullptr || !device->has_speed()) return nullptr;
  nlohmann::json types = nlohmann::json::object();
  for (const wire::TypeSpeed& type : device->speed().types()) {
    nlohmann::json& rates = types[type.type()] = nlohmann::json::array();
    for (const double rate : type.bytes_per_s()) rates.push_back(rate);
  }
  return {{"memory_bytes_per_s", device->speed().memory_bytes_per_s()},
          {"types_bytes_per_s", std::move(types)}};
}

nlohmann::json LinkJson(const wire::LinkSpeed& link) {
  if (link.round_trip_p50_us() == 0) return nullptr;
  return {{"round_trip_p50_us", link.round_trip_p50_us()},
          {"round_trip_p99_us", link.round_trip_p99_us()},
          {"bytes_per_s", link.bytes_per_s()}};
}

}  // namespace

absl::StatusOr<std::vector<int>> FindNodes(const wire::GetClusterResponse& cluster,
                                           absl::Span<const std::string> names) {
  std::vector<int> found;
  for (const std::string& name : names) {
    const absl::StatusOr<size_t> place = FindNode(name, cluster);
    if (!place.ok()) return place.status();
    found.push_back(static_cast<int>(*place));
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

std::string MeasuringText(const wire::GetInfoResponse& info) {
  if (info.measuring()) {
    std::vector<std::string> left;
    for (const wire::DeviceInfo& device : info.devices()) {
      if (!device.has_speed() && device.problem().empty()) left.push_back(device.name());
    }
    return left.empty() ? "looking for devices" : "measuring " + absl::StrJoin(left, ", ");
  }
  if (info.links_to_measure() == 0) return "";
  return absl::StrCat("measuring ", info.links_to_measure(),
                      info.links_to_measure() == 1 ? " link" : " links");
}

std::string MeasurementsText(absl::Span<const MeasuredNode> nodes) {
  std::vector<std::vector<std::string>> devices = {{"NODE", "DEVICE", "BANDWIDTH", "NOW", ""}};
  std::vector<std::vector<std::string>> links = {
      {"LINK", "", "16 KiB THERE AND BACK", "NOW", "THROUGHPUT", "NOW", ""}};
  std::string problems;
  for (const MeasuredNode& node : nodes) {
    if (!node.status.ok()) {
      absl::StrAppend(&problems, "! ", node.name, ": ", node.status.message(), "\n");
      continue;
    }
    for (const wire::DeviceInfo& device : node.info_after.devices()) {
      const wire::DeviceInfo* before = FindDevice(node.info_before, device.name());
      const double was = before == nullptr ? 0 : before->speed().memory_bytes_per_s();
      const double is = device.speed().memory_bytes_per_s();
      devices.push_back({node.name, device.name(), Bandwidth(was), Bandwidth(is), Change(was, is)});
      if (!device.problem().empty()) {
        absl::StrAppend(&problems, "! ", node.name, "/", device.name(), ": ", device.problem(),
                        "\n");
      }
    }
    for (const wire::ClusterNode& other : node.sees_after.nodes()) {
      if (!other.has_link()) continue;
      const wire::LinkSpeed was = LinkTo(node.sees_before, other.record().node_id());
      const wire::LinkSpeed& is = other.link();
      const bool is_new = IsNew(was, is);
      links.push_back({node.name, other.record().name(), RoundTrip(was.round_trip_p50_us()),
                       is_new ? RoundTrip(is.round_trip_p50_us()) : "as before",
                       Throughput(was.bytes_per_s()),
                       is_new ? Throughput(is.bytes_per_s()) : "as before",
                       is_new ? Change(static_cast<double>(was.bytes_per_s()),
                                       static_cast<double>(is.bytes_per_s()))
                              : ""});
    }
  }
  std::string out;
  if (devices.size() > 1) absl::StrAppend(&out, TextTable(devices).Text());
  if (links.size() > 1) absl::StrAppend(&out, out.empty() ? "" : "\n", TextTable(links).Text());
  if (!problems.empty()) absl::StrAppend(&out, out.empty() ? "" : "\n", problems);
  return out;
}

std::string MeasurementsJson(absl::Span<const MeasuredNode> nodes) {
  using nlohmann::json;
  json all = json::array();
  for (const MeasuredNode& node : nodes) {
    json devices = json::array();
    for (const wire::DeviceInfo& device : node.info_after.devices()) {
      devices.push_back({{"name", device.name()},
                         {"before", DeviceJson(FindDevice(node.info_before, device.name()))},
                         {"after", DeviceJson(&device)},
                         {"problem", device.problem()}});
    }
    json links = json::array();
    for (const wire::ClusterNode& other : node.sees_after.nodes()) {
      if (!other.has_link()) continue;
      const wire::LinkSpeed before = LinkTo(node.sees_before, other.record().node_id());
      links.push_back({{"to", absl::BytesToHexString(other.record().node_id())},
                       {"name", other.record().name()},
                       {"measured", IsNew(before, other.link())},
                       {"before", LinkJson(before)},
                       {"after", LinkJson(other.link())}});
    }
    all.push_back({{"id", absl::BytesToHexString(node.id)},
                   {"name", node.name},
                   {"measured", node.status.ok()},
                   {"problem", std::string(node.status.message())},
                   {"devices", std::move(devices)},
                   {"links", std::move(links)}});
  }
  return JsonLine({{"nodes", std::move(all)}});
}

absl::Status RunMeasure(const MeasureOptions& options) {
  auto client = ConnectToCluster(options.client);
  if (!client.ok()) return client.status();
  const auto cluster = (*client)->GetCluster();
  if (!cluster.ok()) return cluster.status();
  std::vector<int> chosen;
  if (options.nodes.empty()) {
    for (int i = 0; i < cluster->nodes_size(); ++i) {
      if (cluster->nodes(i).state() == "alive") chosen.push_back(i);
    }
  } else {
    auto found = FindNodes(*cluster, options.nodes);
    if (!found.ok()) return found.status();
    chosen = *std::move(found);
  }

  ProgressPrinter printer;
  MachineLocks locks;
  std::vector<MeasuredNode> nodes(chosen.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < chosen.size(); ++i) {
    const wire::ClusterNode& seen = cluster->nodes(chosen[i]);
    MeasuredNode* node = &nodes[i];
    node->id = seen.record().node_id();
    node->name = seen.record().name();
    if (seen.state() != "alive") {
      node->status = absl::UnavailableError(absl::StrCat(node->name, " is ", seen.state()));
    } else {
      threads.emplace_back(
          [&, node] { node->status = Measure((*client)->address(), &printer, &locks, node); });
    }
  }
  for (std::thread& thread : threads) thread.join();
  const std::string text = options.json ? MeasurementsJson(nodes) : MeasurementsText(nodes);
  if (absl::Status status = WriteToStdout(text); !status.ok()) return status;
  for (const MeasuredNode& node : nodes) {
    if (!node.status.ok()) return node.status;
  }
  return absl::OkStatus();
}

}  // namespace strata
