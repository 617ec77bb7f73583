// The gRPC service of a node towards its cluster, wire.Cluster: takes heartbeats and queries on
// gRPC's threads and hands them to the loop, where ClusterRuntime answers them.
#pragma once

#include "coordinator/cluster/cluster_runtime.h"
#include "node/measure/benchmarks.h"
#include "proto/cluster.grpc.pb.h"
#include "transport/base/event_loop.h"

namespace strata {

// REQUIRES: the loop runs until the server with this service has shut down, since calls end there.
class ClusterService final : public wire::Cluster::CallbackService {
 public:
  // REQUIRES: the pointers outlive the service. `benchmarks` may be null: nothing is measured.
  ClusterService(EventLoop* loop, ClusterRuntime* runtime, Benchmarks* benchmarks)
      : loop_(loop), runtime_(runtime), benchmarks_(benchmarks) {}

  // The answer to GetCluster. On the loop.
  wire::GetClusterResponse Cluster() const;

  grpc::ServerUnaryReactor* Exchange(grpc::CallbackServerContext* context,
                                     const wire::Heartbeat* request,
                                     wire::Heartbeat* response) override;
  grpc::ServerUnaryReactor* Identify(grpc::CallbackServerContext* context,
                                     const wire::IdentifyRequest* request,
                                     wire::IdentifyResponse* response) override;
  grpc::ServerUnaryReactor* GetCluster(grpc::CallbackServerContext* context,
                                       const wire::GetClusterRequest* request,
                                       wire::GetClusterResponse* response) override;
  grpc::ServerUnaryReactor* NextEpoch(grpc::CallbackServerContext* context,
                                      const wire::NextEpochRequest* request,
                                      wire::Epoch* response) override;

 private:
  EventLoop* const loop_;
  ClusterRuntime* const runtime_;
  Benchmarks* const benchmarks_;
};

// The host of a gRPC call's peer string ("ipv4:10.0.0.1:5", "ipv6:%5B::1%5D:5"); empty if there is
// none.
std::string HostOfGrpcPeer(absl::string_view peer);

}  // namespace strata
