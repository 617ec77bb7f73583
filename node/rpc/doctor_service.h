// The gRPC service of a node that `strata doctor` asks, wire.Doctor. On gRPC's own threads for
// synchronous calls, one a call; only the question whom the node knows goes to the loop.
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

// Calls at the same time, each with a thread; more get kResourceExhausted. Those that are passed on
// to other nodes only wait.
inline constexpr int kDoctorCallsMax = 16;
inline constexpr int kDoctorPassedMax = 128;
// For how long a door is open at most.
inline constexpr int64_t kDoorOpenMs = 30'000;

class DoctorService final : public wire::Doctor::Service {
 public:
  struct Options {
    std::string listen_host;  // of the node: doors open there
    std::string data_dir;     // of the node; empty: it keeps nothing
    std::string program;      // as of ExamineOptions
  };
  // `loop`, which runs until the server with this service has shut down, and `cluster` outlive it.
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
  class Turn;  // one of the calls that may run
  // Where the call is answered that is meant for `node`; null: here.
  absl::StatusOr<Stub> Elsewhere(const grpc::ServerContext& context, const std::string& node);
  // Answers a request that is meant for another node; false: it is for this one.
  template <typename Request, typename Response>
  bool Passed(grpc::ServerContext* context, const Request& request, Response* response,
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
  std::atomic<int> passed_{0};
};

}  // namespace strata
