// The benchmarks of this node: its devices (device_benchmark.h), and the links to the other members
// of its cluster (link_benchmark.h), whose addresses come from membership. Loop thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "coordinator/cluster/cluster_runtime.h"
#include "node/measure/device_benchmark.h"
#include "node/measure/link_benchmark.h"
#include "node/workers/device_limits.h"
#include "node/workers/stage_host.h"
#include "proto/cluster.pb.h"
#include "proto/node.pb.h"
#include "transport/base/event_loop.h"

namespace strata {

class Benchmarks {
 public:
  struct Options {
    std::string program;     // strata
    std::string cache_path;  // of the devices' speeds; empty: stores none
    uint32_t n_threads = 1;  // of a worker on the CPU
    // Nothing is measured: all devices are taken for alike, and all links.
    bool presumes = false;
    DeviceLimits limits;
  };
  // `loop`, `cluster` and `host` outlive it. Begins to list devices and to measure.
  Benchmarks(EventLoop* loop, Options options, ClusterRuntime* cluster, StageHost* host);

  // kFailedPrecondition: this node computes now, or does not measure.
  absl::Status MeasureAgain();

  void AddDevices(wire::GetInfoResponse* info) const;
  void AddLinks(wire::GetClusterResponse* cluster) const;

 private:
  void Tick();

  const bool presumes_;
  const DeviceLimits limits_;
  ClusterRuntime* const cluster_;
  StageHost* const host_;
  DeviceBenchmark devices_;
  LinkBenchmark links_;
  std::unique_ptr<EventLoop::Handle> timer_;
};

}  // namespace strata
