// Four machines unlike each other inside this one, for measuring plans: nodes in namespaces of
// their own, slowed by control groups, on links that are shaped. Blocks; gone when it is destroyed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/models/cluster_snapshot.h"
#include "node/client/cluster_client.h"
#include "tests/net/limits.h"
#include "tests/net/network.h"

namespace strata {

struct Machine {
  std::string name;
  Limits::Options limits;
  uint32_t link_mbit_per_s = 1000;
};

class PlansCluster {
 public:
  // Starts a node on each machine and waits until they know each other and each has measured itself
  // and the links to the others, while the others were idle. The calling thread, and those it
  // starts from then on, are in the first machine's network. kPermissionDenied: no networks or
  // control groups here.
  static absl::StatusOr<std::unique_ptr<PlansCluster>> Start(std::vector<Machine> machines);

  // The current reports of all nodes, in the order of the machines.
  absl::StatusOr<ClusterSnapshot> Report() const;
  absl::StatusOr<wire::Epoch> NextEpoch(const ClusterSnapshot& report) const;
  std::string host() const { return AddressOf(0); }  // of the first machine

 private:
  PlansCluster() = default;
  static std::string AddressOf(size_t machine);
  absl::Status WaitUntilMeasured() const;

  std::vector<Machine> machines_;
  std::unique_ptr<Switch> lan_;
  std::vector<std::unique_ptr<Limits>> limits_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<std::unique_ptr<NodeOn>> nodes_;
  std::unique_ptr<ClusterStub> client_;
};

}  // namespace strata
