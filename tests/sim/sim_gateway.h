// The gateway of a simulated node. Its decisions are the product's: RequestRouter, with its
// attempts and DecideRetry(), and ActiveGenerations. What is simulated are the calls to the node
// that coordinates, which node/gateway/gateway.h makes over gRPC. Worse than gRPC's, some of their
// messages come a second time, and late: when the call has ended and another one runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/generation/generation_call.h"
#include "node/gateway/active_generations.h"
#include "node/gateway/request_router.h"
#include "proto/coordinator.pb.h"
#include "tests/sim/sim_coordinator.h"
#include "tests/sim/sim_wire.h"

namespace strata {

class SimGateway final : private RequestRunner {
 public:
  struct Options {
    SimProcesses* processes = nullptr;
    size_t node = 0;
    std::function<SimGateway*(size_t node)> gateway_of;  // null: that node does not run
    SimCoordinator* coordinator = nullptr;               // this node's; outlives it
    // Break the protocol, to show that it is noticed.
    bool doubles_tokens = false;
    bool forgets_requests = false;
    bool ends_twice = false;
  };
  explicit SimGateway(Options options);
  ~SimGateway() override;

  // Refuses requests that wait, and those from now on.
  void Stop() { router_.Stop(); }
  std::shared_ptr<GenerationHandle> Generate(const wire::GenerateRequest& request,
                                             std::shared_ptr<GenerationListener> client);

  uint32_t resumed() const { return resumed_; }  // sources that got a request with tokens
  uint32_t doubled() const { return doubled_; }  // messages that came twice
  size_t waiting() const { return router_.waiting(); }

 private:
  class Events;
  class RemoteGeneration;
  using ConnectionPtr = std::shared_ptr<SimConnection>;  // shared with both ends
  using HandlePtr = std::shared_ptr<GenerationHandle>;   // shared with its source

  ClusterSim& cluster() const { return options_.processes->cluster(); }
  Leader FindLeader(const std::string& model) override;
  void RunHere(const wire::GenerateRequest& request, std::shared_ptr<GenerationCall> call) override;
  void RunElsewhere(const std::string& address, std::shared_ptr<RequestAttempt> attempt) override;
  void DispatchSoon() override;
  void TickSoon() override;
  bool IsDoubled();
  // As CoordinatorService::Generate(): runs the request, and sends its events to `events`.
  HandlePtr Serve(const wire::GenerateRequest& request, std::shared_ptr<Events> events);

  const Options options_;
  RequestRouter router_;
  ActiveGenerations active_;                                // for callers on other nodes
  std::vector<std::shared_ptr<GenerationCall>> forgotten_;  // shared with their handles
  uint32_t resumed_ = 0;
  uint32_t doubled_ = 0;
};

}  // namespace strata
