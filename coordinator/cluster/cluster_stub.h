// A client of one node's service Cluster. Blocks; never on the loop.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/cluster.grpc.pb.h"

namespace grpc {
class Status;
}

namespace strata {

// Thread-safe.
class ClusterStub {
 public:
  // For the node at host:port; calls nothing yet.
  ClusterStub(std::string address, int64_t timeout_ms);

  // As it was given.
  const std::string& address() const { return address_; }

  // Errors carry the address. kUnavailable: no answer in time; kFailedPrecondition: the
  // process that answers is another version, or no node.
  absl::StatusOr<wire::GetClusterResponse> GetCluster() { return GetCluster(timeout_ms_); }
  absl::StatusOr<wire::GetClusterResponse> GetCluster(int64_t timeout_ms);
  // For a new plan. kFailedPrecondition unless the node that answers coordinates.
  absl::StatusOr<wire::Epoch> NextEpoch();

 private:
  absl::Status Explain(const grpc::Status& status) const;

  const std::string address_;
  const int64_t timeout_ms_;
  const std::unique_ptr<wire::Cluster::Stub> stub_;
};

}  // namespace strata
