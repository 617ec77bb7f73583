// How requests reach the coordinator from a simulated node, and go on with the next one. A model of
// node/gateway/gateway.h, whose calls are gRPC's. The real ResumableGeneration keeps the output
// that a client has received, and the real GenerationCall orders a request's begin and end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/generation/generation_call.h"
#include "node/gateway/resumable_generation.h"
#include "proto/coordinator.pb.h"
#include "tests/sim/sim_coordinator.h"
#include "tests/sim/sim_wire.h"

namespace strata {

class SimGateway {
 public:
  struct Options {
    SimProcesses* processes = nullptr;
    size_t node = 0;
    std::function<SimGateway*(size_t node)> gateway_of;  // null: that node does not run
    SimCoordinator* coordinator = nullptr;               // this node's; outlives it
    // Break the protocol, to show that it is noticed.
    bool forgets_tokens = false;
    bool forgets_requests = false;
    bool ends_twice = false;
  };
  explicit SimGateway(Options options) : options_(std::move(options)) {}
  ~SimGateway();

  void Start() { Tick(); }
  // Refuses requests that wait, and those from now on.
  void Stop();

  std::shared_ptr<GenerationHandle> Generate(const wire::GenerateRequest& request,
                                             std::shared_ptr<GenerationListener> sink,
                                             bool pass_on);
  uint32_t resumed() const { return resumed_; }
  size_t waiting() const { return waiting_.size(); }

 private:
  class Generation;
  class Local;
  class Remote;
  struct PendingRequest {
    std::shared_ptr<Generation> generation;  // shared with the client
    wire::GenerateRequest request;
    std::shared_ptr<ResumableGeneration> sink;  // shared with the generation's source
    bool pass_on = true;
    int64_t until_us = 0;
    int64_t begun_us = 0;
    bool resumed = false;
    bool started = false;  // its source had started it
    absl::Status last;
    int64_t not_before_us = 0;
  };

  ClusterSim& cluster() const { return options_.processes->cluster(); }
  int64_t now_us() const { return cluster().LocalUs(options_.node); }
  void Begin(PendingRequest pending);
  void Resume(PendingRequest pending, RetryDecision how, const absl::Status& status);
  void Resume(PendingRequest pending);
  void Wait(PendingRequest pending);
  void Tick();

  const Options options_;
  bool stopping_ = false;
  std::vector<PendingRequest> waiting_;
  std::vector<std::weak_ptr<Local>> locals_;
  std::vector<std::weak_ptr<Remote>> remotes_;
  uint32_t resumed_ = 0;
};

}  // namespace strata
