// A cluster of node processes on this machine's loopback, stopped together.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"

namespace strata {

class LocalCluster {
 public:
  struct Options {
    uint32_t nodes = 3;
    uint32_t threads = 1;  // per node
    bool verbose = false;  // pass the nodes' stderr on
    // Called while waiting; true gives up with kCancelled.
    absl::AnyInvocable<bool()> cancelled = [] { return false; };
  };
  struct NodeProcess {
    std::string name;
    std::string address;  // host:port of its control service
    int pid = 0;
  };

  // Starts the nodes and waits until they form one cluster. They have a key of their own, which
  // secures this process, too (node_security.h): one such cluster in a process. They measure
  // nothing: plans take all of them for alike. Blocks. kUnavailable: a node ended instead, with its
  // last words; kDeadlineExceeded: a node did not report, or join, in time; kCancelled.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Start(Options options);

  // Stops all nodes, at once and in order, and waits for them.
  virtual ~LocalCluster() = default;

  virtual const std::vector<NodeProcess>& nodes() const = 0;
};

}  // namespace strata
