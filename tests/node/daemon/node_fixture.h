// A node in this process, its loop on a thread of its own, and a client of its service.
#pragma once

#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/log/check.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "node/daemon/node.h"
#include "proto/node.grpc.pb.h"
#include "transport/base/event_loop.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_status.h"

namespace strata::testing {

inline wire::Epoch EpochOf(uint64_t counter, const std::string& coordinator = "test") {
  wire::Epoch epoch;
  epoch.set_counter(counter);
  epoch.set_coordinator_id(coordinator);
  return epoch;
}

class RunningNode {
 public:
  // As --device and --memory.
  struct Limits {
    std::vector<std::string> devices, memory;
  };
  // `cache_dir` as --cache-dir; empty: none.
  explicit RunningNode(std::string worker_program, WorkerTimeouts timeouts = {}, Limits limits = {},
                       std::string cache_dir = "") {
    NodeOptions options;
    options.name = "node-2";
    options.cluster = Cluster();
    options.ephemeral = true;
    options.n_threads = 1;
    options.measure = false;  // it would run this program
    options.worker_program = std::move(worker_program);
    options.timeouts = timeouts;
    options.devices = std::move(limits.devices);
    options.memory = std::move(limits.memory);
    options.cache_dir = std::move(cache_dir);
    auto identity = Node::Identify(options);
    CHECK(identity.ok()) << identity.status();
    auto started =
        Node::Start(loop_.get(), std::move(options), *std::move(identity), /*security=*/nullptr);
    CHECK(started.ok()) << started.status();
    node_ = *std::move(started);
    stub_ = wire::Node::NewStub(MakeChannel(node_->address()));
    thread_ = std::thread([this] { loop_->Run(); });
  }
  ~RunningNode() { Stop(); }

  // A name of its own: other tests run on this machine at the same time.
  static std::string Cluster() { return absl::StrCat("test-", getpid()); }

  // As SIGTERM does it.
  void Stop() {
    if (!thread_.joinable()) return;
    StartStop();
    thread_.join();
    node_.reset();
  }
  void StartStop() {
    loop_->Post([this] { node_->Shutdown([this] { loop_->Stop(); }); });
  }

  const std::string& address() const { return node_->address(); }
  wire::Node::Stub* stub() { return stub_.get(); }

  struct Load {
    absl::Status status;
    wire::StageInfo info;
    int progress = 0;
  };
  Load LoadStage(const wire::StageSpec& spec, grpc::ClientContext* context = nullptr) {
    grpc::ClientContext own;
    wire::LoadStageRequest request;
    *request.mutable_spec() = spec;
    auto reader = stub_->LoadStage(context == nullptr ? &own : context, request);
    Load load;
    wire::LoadStageEvent event;
    while (reader->Read(&event)) {
      if (event.has_progress()) ++load.progress;
      if (event.has_loaded()) load.info = event.loaded();
    }
    load.status = FromGrpc(reader->Finish());
    return load;
  }

  absl::StatusOr<wire::TokenizeResponse> Tokenize(uint32_t stage, const std::string& text) {
    grpc::ClientContext context;
    wire::TokenizeRequest request;
    *request.mutable_epoch() = EpochOf(1);
    request.set_stage(stage);
    request.set_text(text);
    wire::TokenizeResponse response;
    absl::Status status = FromGrpc(stub_->Tokenize(&context, request, &response));
    if (!status.ok()) return status;
    return response;
  }

  absl::StatusOr<std::string> Detokenize(uint32_t stage, const std::vector<int32_t>& tokens) {
    grpc::ClientContext context;
    wire::DetokenizeRequest request;
    *request.mutable_epoch() = EpochOf(1);
    request.set_stage(stage);
    request.mutable_tokens()->Assign(tokens.begin(), tokens.end());
    wire::DetokenizeResponse response;
    absl::Status status = FromGrpc(stub_->Detokenize(&context, request, &response));
    if (!status.ok()) return status;
    return response.text();
  }

  absl::Status Connect(uint32_t stage, const std::string& next, uint64_t epoch = 1) {
    grpc::ClientContext context;
    wire::ConnectStageRequest request;
    *request.mutable_epoch() = EpochOf(epoch);
    request.set_stage(stage);
    request.set_next_address(next);
    wire::ConnectStageResponse response;
    return FromGrpc(stub_->ConnectStage(&context, request, &response));
  }

  absl::Status Unload(uint32_t stage, uint64_t epoch = 1,
                      absl::Duration within = absl::InfiniteDuration()) {
    grpc::ClientContext context;
    if (within < absl::InfiniteDuration())
      context.set_deadline(absl::ToChronoTime(absl::Now() + within));
    wire::UnloadStageRequest request;
    *request.mutable_epoch() = EpochOf(epoch);
    request.set_stage(stage);
    wire::UnloadStageResponse response;
    return FromGrpc(stub_->UnloadStage(&context, request, &response));
  }

  wire::GetInfoResponse GetInfo() {
    grpc::ClientContext context;
    wire::GetInfoResponse response;
    const grpc::Status status = stub_->GetInfo(&context, wire::GetInfoRequest(), &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

  // Waits until the stage's status is not `while_status` any more; half a minute at most.
  absl::Status WaitForStageStatus(uint32_t stage,
                                  absl::StatusCode while_status = absl::StatusCode::kOk) {
    const absl::Time until = absl::Now() + absl::Seconds(30);
    while (true) {
      const wire::GetInfoResponse info = GetInfo();
      for (const wire::StageStatus& status : info.stages()) {
        if (status.stage() != stage) continue;
        const absl::Status now = FromWire(status.status());
        if (now.code() != while_status || absl::Now() > until) return now;
      }
    }
  }

 private:
  std::unique_ptr<EventLoop> loop_ = EventLoop::Create();
  std::unique_ptr<Node> node_;
  std::unique_ptr<wire::Node::Stub> stub_;
  std::thread thread_;
};

}  // namespace strata::testing
