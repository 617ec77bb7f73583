// The gRPC service wire.Doctor of every node, for `strata doctor`. Calls run on gRPC's own threads
// for synchronous calls, one thread a call; only queries of the node's members go to the loop.
#pragma once

#include <atomic>
#include <memory>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/cluster/cluster_runtime.h"
#include "proto/doctor.grpc.pb.h"
#include "transport/base/event_loop.h"

namespace strata {

// Calls at the same time, each with a thread; more get kResourceExhausted. Calls that are forwarded
// to other nodes have a limit of their own, since their threads only wait.
inline constexpr int kDoctorCallsMax = 16;
inline constexpr int kDoctorPassedMax = 128;
// How long a door (a listening port for tests of reachability) is open at most.
inline constexpr int64_t kDoorOpenMs = 30'000;

class DoctorService final : public wire::Doctor::Service {
 public:
  struct Options {
    std::string listen_host;  // of the node: doors open there
    std::string data_dir;     // of the node; empty: it stores nothing
    std::string program;      // as of ExamineOptions
  };
  // REQUIRES: `loop` runs until the server with this service has shut down; both pointers outlive
  // the service.
  DoctorService(EventLoop* loop, ClusterRuntime* cluster, Options options)
      : loop_(loop), cluster_(cluster), options_(std::move(options)) {}

  grpc::Status Examine(grpc::ServerContext* context, const wire::ExamineRequest* request,
                       wire::MachineFacts* response) override;
  grpc::Status CheckReach(grpc::ServerContext* context, const wire::CheckReachRequest* request,
                          wire::CheckReachResponse* response) override;
  grpc::Status ReadClock(grpc::ServerContext* context, const wire::ReadClockRequest* request,
                         wire::ReadClockResponse* response) override;
  grpc::Status OpenDoor(grpc::ServerContext* context, const wire::OpenDoorRequest* request,
                        grpc::ServerWriter<wire::Door>* writer) override;

 private:
  using Stub = std::unique_ptr<wire::Doctor::Stub>;
  class CallSlot;  // of one call that may run
  // The stub of `node`; null: this node is `node`.
  absl::StatusOr<Stub> FindNode(const grpc::ServerContext& context, const std::string& node);
  // Forwards a request for another node and sets `status`; false: the request is for this node.
  template <typename Request, typename Response>
  bool Forward(grpc::ServerContext* context, const Request& request, Response* response,
               grpc::Status (wire::Doctor::Stub::*method)(grpc::ClientContext*, const Request&,
                                                          Response*),
               grpc::Status* status);
  static grpc::Status PassDoor(grpc::ServerContext* context, const wire::OpenDoorRequest& request,
                               wire::Doctor::Stub* stub, grpc::ServerWriter<wire::Door>* writer);
  std::set<std::string> KnownHosts();

  EventLoop* const loop_;
  ClusterRuntime* const cluster_;
  const Options options_;
  std::atomic<int> calls_{0};
  std::atomic<int> forwarded_{0};
};

}  // namespace strata
