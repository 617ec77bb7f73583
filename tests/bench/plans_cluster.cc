#include "tests/bench/plans_cluster.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/cluster/cluster_stub.h"

namespace strata {
namespace {

constexpr absl::Duration kMeasureTime = absl::Seconds(60);
constexpr int64_t kAnswerMs = 5'000;

// As the node at `address` collects it.
absl::StatusOr<ClusterSnapshot> Collect(const std::string& address) {
  const auto client = NodeClient::Connect({.address = address, .timeout_ms = kAnswerMs});
  if (!client.ok()) return client.status();
  auto info = (*client)->GetInfo(kAnswerMs);
  if (!info.ok()) return info.status();
  auto cluster = ClusterStub(address, kAnswerMs).GetCluster();
  if (!cluster.ok()) return cluster.status();
  return CollectReport({.info = *std::move(info), .cluster = *std::move(cluster)}, address,
                       /*only=*/{}, absl::SleepFor);
}

}  // namespace

std::string PlansCluster::AddressOf(size_t machine) {
  return absl::StrCat("10.79.0.", machine + 1);
}

absl::StatusOr<std::unique_ptr<PlansCluster>> PlansCluster::Start(std::vector<Machine> machines) {
  if (auto s = CanMakeNetworks(); !s.ok()) return s;
  if (auto s = CanMakeLimits(); !s.ok()) return s;
  std::unique_ptr<PlansCluster> cluster(new PlansCluster());
  cluster->machines_ = std::move(machines);
  cluster->lan_ = std::make_unique<Switch>("lan");
  for (size_t i = 0; i < cluster->machines_.size(); ++i) {
    const Machine& machine = cluster->machines_[i];
    auto limits = Limits::Make(machine.limits);
    if (!limits.ok()) return limits.status();
    cluster->limits_.push_back(*std::move(limits));
    cluster->hosts_.push_back(std::make_unique<Host>(machine.name));
    const Host& host = *cluster->hosts_.back();
    cluster->lan_->Plug(host, "eth0", {AddressOf(i) + "/24"});
    cluster->lan_->SetSpeed(host, "eth0", machine.link_mbit_per_s);
  }
  const int network =
      open(absl::StrCat("/proc/", cluster->hosts_[0]->holder(), "/ns/net").c_str(), O_RDONLY);
  const bool inside = network >= 0 && setns(network, CLONE_NEWNET) == 0;
  close(network);
  if (!inside) return absl::PermissionDeniedError("this process cannot change its network");
  for (size_t i = 0; i < cluster->machines_.size(); ++i) {
    cluster->nodes_.push_back(std::make_unique<NodeOn>(
        cluster->hosts_[i].get(), cluster->machines_[i].name, std::vector<std::string>{},
        NodeOn::Measure::kYes, cluster->limits_[i].get()));
    const NodeOn& node = *cluster->nodes_.back();
    if (node.port() == 0) return absl::UnavailableError(node.errors());
    if (i == 0) {
      auto client = ConnectToCluster({.node = absl::StrCat(AddressOf(0), ":", node.port()),
                                      .key = {.file = getenv("STRATA_KEY_FILE")}});
      if (!client.ok()) return client.status();
      cluster->client_ = *std::move(client);
    }
  }
  if (auto s = cluster->WaitUntilMeasured(); !s.ok()) return s;
  // Again, one after the other: real machines do not share two cores.
  auto report = cluster->Report();
  if (!report.ok()) return report.status();
  for (const NodeReport& node : report->nodes) {
    std::fprintf(stderr, "%s measures itself…\n", node.name().c_str());
    if (auto s = node.client->Measure(kAnswerMs); !s.ok()) return s;
    if (auto s = cluster->WaitUntilMeasured(); !s.ok()) return s;
  }
  return cluster;
}

absl::Status PlansCluster::WaitUntilMeasured() const {
  const absl::Time until = absl::Now() + kMeasureTime;
  while (absl::Now() < until) {
    auto report = Collect(client_->address());
    const bool all =
        report.ok() && report->nodes.size() == nodes_.size() && !report->measuring() &&
        std::all_of(report->nodes.begin(), report->nodes.end(), [](const NodeReport& node) {
          return node.status.ok() && node.info.links_to_measure() == 0;
        });
    if (all) return absl::OkStatus();
    absl::SleepFor(absl::Milliseconds(100));
  }
  return absl::DeadlineExceededError("the nodes do not finish measuring");
}

absl::StatusOr<ClusterSnapshot> PlansCluster::Report() const {
  auto report = Collect(client_->address());
  if (!report.ok()) return report.status();
  const auto place = [this](const NodeReport& node) {
    return std::find_if(machines_.begin(), machines_.end(),
                        [&](const Machine& machine) { return machine.name == node.name(); }) -
           machines_.begin();
  };
  std::sort(report->nodes.begin(), report->nodes.end(),
            [&](const NodeReport& a, const NodeReport& b) { return place(a) < place(b); });
  return report;
}

absl::StatusOr<wire::Epoch> PlansCluster::NextEpoch(const ClusterSnapshot& report) const {
  for (const NodeReport& node : report.nodes) {
    if (node.id() != report.cluster.coordinator() || node.client == nullptr) continue;
    auto epoch = ClusterStub(node.client->address(), kAnswerMs).NextEpoch();
    // With no node's id in the epoch: the coordinator would unload stages that it does not know.
    if (epoch.ok()) epoch->set_coordinator_id("plans_bench");
    return epoch;
  }
  return absl::UnavailableError("no node coordinates");
}

}  // namespace strata
