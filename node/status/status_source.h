// Fetches one report after another for `strata status --watch`: from the node that was called
// first, and when it does not answer any more, from another node of its report.
//
// One thread at a time; blocks.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/models/cluster_snapshot.h"
#include "node/client/cluster_client.h"

namespace strata {

class StatusSource {
 public:
  // The calls that it makes; tests have their own.
  struct Calls {
    std::function<absl::StatusOr<ClusterSnapshot>(const std::string& address)> collect;
    // Searches again for the address of any node.
    std::function<absl::StatusOr<std::string>()> find;
  };
  StatusSource(std::string address, Calls calls);

  // Finds a node as ConnectToCluster() does, with its errors.
  static absl::StatusOr<std::unique_ptr<StatusSource>> Connect(const ClientOptions& options);

  // Returns the next report. Errors: those of the node of the last report. Calls kOthersMax other
  // nodes at most.
  absl::StatusOr<ClusterSnapshot> Fetch();

  // Of the node that gave the last report.
  const std::string& address() const { return address_; }

  // How many other nodes are tried before the caller gets an error.
  static constexpr size_t kOthersMax = 3;

 private:
  const Calls calls_;
  std::string address_;
  std::vector<std::string> others_;  // addresses of nodes that were alive, the next to try first
};

}  // namespace strata
