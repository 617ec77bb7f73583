#include "transport/rpc/removed_peer_filter.h"

#include <utility>

#include "absl/log/log.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/security/auth_context.h"
#include "transport/rpc/grpc_status.h"
#include "transport/security/tls_credentials.h"

namespace strata {

void RemovedPeerFilter::Refuse(const std::string& node_id, const std::string& cluster_id) {
  MutexLock lock(&mu_);
  removals_[node_id] = {.cluster_id = cluster_id};
}

grpc::Status RemovedPeerFilter::Process(const InputMetadata&, grpc::AuthContext* peer,
                                        OutputMetadata*, OutputMetadata*) {
  {
    MutexLock lock(&mu_);
    if (removals_.empty()) return grpc::Status::OK;
  }
  const absl::StatusOr<std::string> node_id = PeerNodeId(*peer);
  if (!node_id.ok()) return ToGrpc(node_id.status());
  MutexLock lock(&mu_);
  const auto found = removals_.find(*node_id);
  if (found == removals_.end()) return grpc::Status::OK;
  const absl::StatusOr<std::string> cluster_id = PeerClusterId(*peer);
  if (cluster_id.ok() && *cluster_id != found->second.cluster_id) return grpc::Status::OK;
  if (!std::exchange(found->second.is_logged, true)) {
    LOG(WARNING) << "refused a call of node " << *node_id << ", which was removed from the cluster";
  }
  return ToGrpc(absl::PermissionDeniedError("this node was removed from the cluster"));
}

}  // namespace strata
