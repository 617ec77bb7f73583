// Where `strata status --watch` gets one report after another: from the node that was asked first,
// and when that does not answer any more, from another one that it knew.
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
  // How it asks; tests have their own.
  struct Ways {
    std::function<absl::StatusOr<ClusterSnapshot>(const std::string& address)> collect;
    // The address of some node, looked for afresh.
    std::function<absl::StatusOr<std::string>()> find;
  };
  StatusSource(std::string address, Ways ways);

  // Finds a node as ConnectToCluster() does, with its errors.
  static absl::StatusOr<std::unique_ptr<StatusSource>> Connect(const ClientOptions& options);

  // The next report. Errors: those of the node that told last. Asks kOthersMax other nodes at most.
  absl::StatusOr<ClusterSnapshot> Ask();

  // Of the node that told the last report.
  const std::string& address() const { return address_; }

  // Other nodes that are tried before the caller hears that nobody answers.
  static constexpr size_t kOthersMax = 3;

 private:
  const Ways ways_;
  std::string address_;
  std::vector<std::string> others_;  // addresses of nodes that were there, the next to try first
};

}  // namespace strata
