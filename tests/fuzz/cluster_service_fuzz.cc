// Calls of the service by which nodes know each other: heartbeats of made-up nodes, and queries
// between them, to a node that is new for each input and reaches nobody: its calls go to a
// transport that refuses them.
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/log/check.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "coordinator/cluster/cluster_runtime.h"
#include "coordinator/cluster/peer_transport.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "node/rpc/cluster_service.h"
#include "proto/cluster.pb.h"
#include "tests/fuzz/service_calls.h"
#include "transport/base/event_loop.h"
#include "transport/base/run_on_loop.h"
#include "transport/base/version.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_deadline.h"

namespace strata {
namespace {

constexpr size_t kNodesMax = 8;
// The corpus's heartbeats are for this cluster and this node.
constexpr char kCluster[] = "home";
constexpr NodeId kSelf = {.high = 1, .low = 1};

class NobodyThere final : public PeerTransport {
 public:
  explicit NobodyThere(EventLoop* loop) : loop_(loop) {}
  void Exchange(const std::string&, const wire::Heartbeat&, int64_t,
                Done<wire::Heartbeat> done) override {
    Refuse<wire::Heartbeat>(std::move(done));
  }
  void Identify(const std::string&, int64_t, Done<wire::IdentifyResponse> done) override {
    Refuse<wire::IdentifyResponse>(std::move(done));
  }
  void IsRefused(const std::string&, int64_t, absl::AnyInvocable<void(bool) &&> done) override {
    loop_->Post([done = std::move(done)]() mutable { std::move(done)(true); });
  }
  void Forget(const std::string&) override {}

 private:
  template <typename Response>
  void Refuse(Done<Response> done) {
    loop_->Post([done = std::move(done)]() mutable {
      std::move(done)(absl::UnavailableError("nobody there"));
    });
  }

  EventLoop* const loop_;
};

class FuzzedCluster {
 public:
  FuzzedCluster() : thread_([this] { loop_->Run(); }) {}
  void Stop() {
    loop_->Stop();
    thread_.join();
  }

  void Run(absl::string_view input);

 private:
  const std::unique_ptr<EventLoop> loop_ = EventLoop::Create();
  std::thread thread_;
};

const std::vector<fuzz::Method>& Methods() {
  using fuzz::Parses;
  static const auto* const methods = new std::vector<fuzz::Method>{
      {"/strata.wire.Cluster/Exchange", Parses<wire::Heartbeat>},
      {"/strata.wire.Cluster/Identify", Parses<wire::IdentifyRequest>},
      {"/strata.wire.Cluster/GetCluster", Parses<wire::GetClusterRequest>},
      {"/strata.wire.Cluster/NextEpoch", Parses<wire::NextEpochRequest>},
  };
  return *methods;
}

void FuzzedCluster::Run(absl::string_view input) {
  std::unique_ptr<ClusterRuntime> runtime;
  RunOnLoop(loop_.get(), [&] {
    ClusterRuntime::Options options;
    options.self = {.id = kSelf,
                    .boot = 1,
                    .name = "fuzzed",
                    .cluster = kCluster,
                    .protocol = LocalVersions().protocol()};
    options.discovery = nullptr;
    options.membership.nodes_max = kNodesMax;
    runtime = std::make_unique<ClusterRuntime>(loop_.get(), SleeplessClock(), std::move(options),
                                               std::make_unique<NobodyThere>(loop_.get()));
    runtime->Start({.address = {.host = "127.0.0.1", .port = 7}, .advertise = {"127.0.0.1:7"}});
  });
  {
    ClusterService service(loop_.get(), runtime.get(), /*benchmarks=*/nullptr);
    grpc::ServerBuilder builder;
    ConfigureServer(&builder);
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service);
    const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
    CHECK(server != nullptr);
    fuzz::ServiceCaller(absl::StrCat("127.0.0.1:", port)).CallAll(Methods(), input);
    server->Shutdown(DeadlineIn(absl::ZeroDuration()));
  }
  RunOnLoop(loop_.get(), [&] {
    const ClusterView& view = runtime->view();
    if (view.nodes.size() > kNodesMax) std::abort();
    if (runtime->Describe().nodes_size() != static_cast<int>(view.nodes.size())) std::abort();
    runtime.reset();
  });
}

FuzzedCluster* TheCluster() {
  static FuzzedCluster* const cluster = [] {
    fuzz::BeQuiet();
    auto* started = new FuzzedCluster;
    std::atexit([] { TheCluster()->Stop(); });
    return started;
  }();
  return cluster;
}

}  // namespace
}  // namespace strata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  strata::TheCluster()->Run(absl::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
