// The gRPC services of a worker process: wire.Worker for its node, and links for its stage's
// neighbours. One worker holds the stages of one device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "shard/serving/link_selector.h"
#include "transport/base/clock.h"

namespace strata {

// Most stages of one worker, each with a thread. Stages that failed to load make room for others.
inline constexpr size_t kWorkerStagesMax = 64;

struct WorkerOptions {
  std::string listen = "127.0.0.1:0";  // host:port; port 0 takes a free one
  uint32_t n_threads = 1;              // when a StageSpec has none
  LinkSelectorOptions wires;
};

class WorkerServer {
 public:
  // kUnavailable: cannot listen on the address.
  static absl::StatusOr<std::unique_ptr<WorkerServer>> Start(WorkerOptions options, Clock* clock);
  // Unloads all stages and stops serving.
  virtual ~WorkerServer() = default;

  virtual std::string address() const = 0;  // host:port with the actual port
};

}  // namespace strata
