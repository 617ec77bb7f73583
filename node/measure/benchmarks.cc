#include "node/measure/benchmarks.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "coordinator/membership/membership_wire.h"
#include "node/base/machine.h"
#include "shard/device/device_probe.h"

namespace strata {
namespace {

// How soon a new node, a new address of one, or the beginning of work is noticed.
constexpr uint64_t kTickMs = 1'000;

// Speeds of this order are usual: of a small machine, and of a link within it.
wire::DeviceSpeed PresumedDevice() {
  constexpr double kBytesPerS = 1e10;
  wire::DeviceSpeed speed;
  speed.set_memory_bytes_per_s(kBytesPerS);
  wire::TypeSpeed* const type = speed.add_types();
  type->set_type("q8_0");
  for (size_t i = 0; i < kProbeBatches.size(); ++i) type->add_bytes_per_s(kBytesPerS);
  return speed;
}
wire::LinkSpeed PresumedLink() {
  wire::LinkSpeed link;
  link.set_round_trip_p50_us(200);
  link.set_round_trip_p99_us(200);
  link.set_bytes_per_s(1'000'000'000);
  return link;
}

}  // namespace

Benchmarks::Benchmarks(EventLoop* loop, Options options, ClusterRuntime* cluster, StageHost* host)
    : presumes_(options.presumes),
      limits_(std::move(options.limits)),
      cluster_(cluster),
      host_(host),
      devices_(loop, {.program = std::move(options.program),
                      .cache_path = std::move(options.cache_path),
                      .n_threads = options.n_threads,
                      .only = limits_.devices,
                      .presumed = presumes_ ? std::optional(PresumedDevice()) : std::nullopt,
                      .busy = [host] { return host->Busy(); },
                      .bytes_on = [host](const std::string& on) { return host->BytesOn(on); }}),
      links_(loop, {}) {
  devices_.Start([] {});
  if (presumes_) return;
  timer_ = loop->StartTimer({.delay_ms = kTickMs, .repeat_ms = kTickMs}, [this] { Tick(); });
}

void Benchmarks::Tick() {
  std::vector<LinkBenchmark::Peer> peers;
  for (const ClusterView::Node& node : cluster_->view().nodes) {
    if (node.record.id == cluster_->id() || !node.reachable) continue;
    peers.push_back({.id = node.record.id, .address = cluster_->AddressOf(node.record.id)});
  }
  links_.SetPeers(peers);
  // A link measured while this machine measures its cores would look slower than it is.
  links_.SetBusy(host_->Busy() || devices_.measuring());
}

absl::Status Benchmarks::MeasureAgain() {
  if (presumes_) {
    return absl::FailedPreconditionError("this node does not measure (--in-demo)");
  }
  if (host_->Busy()) {
    return absl::FailedPreconditionError(
        "the node computes now, and measuring would disturb it; try later");
  }
  devices_.MeasureAgain();
  links_.MeasureAgain();
  return absl::OkStatus();
}

void Benchmarks::AddDevices(wire::GetInfoResponse* info) const {
  for (wire::DeviceInfo& device : devices_.Devices()) {
    if (const uint64_t limit = limits_.MemoryOf(device.name()); limit != 0) {
      const uint64_t used = host_->BytesOn(device.name());
      device.set_memory_limit(limit);
      device.set_memory_total(std::min<uint64_t>(device.memory_total(), limit));
      device.set_memory_free(
          std::min<uint64_t>(device.memory_free(), limit - std::min(limit, used)));
    }
    *info->add_devices() = std::move(device);
  }
  info->set_measuring(devices_.measuring());
  info->set_links_to_measure(links_.pending());
  const MachineIds ids = ReadMachineIds();
  info->set_machine_id(ids.memory);
  info->set_cores_id(ids.cores);
}

void Benchmarks::AddLinks(wire::GetClusterResponse* cluster) const {
  for (wire::ClusterNode& node : *cluster->mutable_nodes()) {
    if (presumes_) {
      *node.mutable_link() = PresumedLink();
      continue;
    }
    const wire::LinkSpeed* link = links_.Find(IdOf(node.record().node_id()));
    if (link != nullptr) *node.mutable_link() = *link;
  }
}

}  // namespace strata
