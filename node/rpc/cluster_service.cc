#include "node/rpc/cluster_service.h"

#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/strip.h"
#include "transport/base/peer_addresses.h"
#include "transport/rpc/grpc_status.h"

namespace strata {

std::string HostOfGrpcPeer(absl::string_view peer) {
  if (!absl::ConsumePrefix(&peer, "ipv4:") && !absl::ConsumePrefix(&peer, "ipv6:")) return "";
  std::string decoded;  // percent-decoded, as in a URI
  for (size_t i = 0; i < peer.size(); ++i) {
    std::string byte;
    if (peer[i] == '%' && i + 2 < peer.size() &&
        absl::HexStringToBytes(peer.substr(i + 1, 2), &byte)) {
      decoded += byte;
      i += 2;
    } else {
      decoded += peer[i];
    }
  }
  const absl::StatusOr<HostPort> parsed = ParseHostPort(decoded);
  return parsed.ok() ? parsed->host : "";
}

grpc::ServerUnaryReactor* ClusterService::Exchange(grpc::CallbackServerContext* context,
                                                   const wire::Heartbeat* request,
                                                   wire::Heartbeat* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([=, this, host = HostOfGrpcPeer(context->peer())] {
    absl::StatusOr<wire::Heartbeat> reply = runtime_->Exchange(*request, host);
    const grpc::Status status = ToGrpc(reply.status());
    if (reply.ok()) *response = *std::move(reply);
    reactor->Finish(status);
  });
  return reactor;
}

grpc::ServerUnaryReactor* ClusterService::Identify(grpc::CallbackServerContext* context,
                                                   const wire::IdentifyRequest*,
                                                   wire::IdentifyResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([=, this] {
    *response = runtime_->Identify();
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

grpc::ServerUnaryReactor* ClusterService::GetCluster(grpc::CallbackServerContext* context,
                                                     const wire::GetClusterRequest*,
                                                     wire::GetClusterResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([=, this] {
    *response = Cluster();
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

wire::GetClusterResponse ClusterService::Cluster() const {
  wire::GetClusterResponse cluster = runtime_->Describe();
  if (benchmarks_ != nullptr) benchmarks_->AddLinks(&cluster);
  return cluster;
}

grpc::ServerUnaryReactor* ClusterService::NextEpoch(grpc::CallbackServerContext* context,
                                                    const wire::NextEpochRequest*,
                                                    wire::Epoch* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([=, this] {
    absl::StatusOr<wire::Epoch> epoch = runtime_->NextEpoch();
    const grpc::Status status = ToGrpc(epoch.status());
    if (epoch.ok()) *response = *std::move(epoch);
    reactor->Finish(status);
  });
  return reactor;
}

}  // namespace strata
