#include "coordinator/generation/node_client.h"

#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "proto/node.grpc.pb.h"
#include "proto/weights.grpc.pb.h"
#include "transport/base/version.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_deadline.h"
#include "transport/rpc/grpc_status.h"
#include "transport/rpc/printable_message.h"
#include "transport/rpc/status_details.h"

namespace strata {
namespace {

constexpr int64_t kControlTimeoutMs = 30'000;
// For it, a node reads model headers at most.
constexpr int64_t kListTimeoutMs = 5'000;
constexpr absl::Duration kContinuePoll = absl::Milliseconds(100);

void SetTimeout(grpc::ClientContext* context, int64_t timeout_ms) {
  context->set_deadline(DeadlineIn(absl::Milliseconds(timeout_ms)));
}

class NodeClientImpl final : public NodeClient {
 public:
  explicit NodeClientImpl(std::string address)
      : address_(std::move(address)),
        name_(address_),
        channel_(MakeChannel(address_)),
        stub_(wire::Node::NewStub(channel_)) {}

  absl::Status Greet(const Options& options) {
    grpc::ClientContext context;
    SetTimeout(&context, options.timeout_ms);
    context.set_wait_for_ready(options.wait_for_ready);
    wire::GetInfoResponse info;
    const grpc::Status status = stub_->GetInfo(&context, wire::GetInfoRequest(), &info);
    if (!status.ok()) return Named(status);
    MakePrintable(&info);
    Identify(info);
    const absl::Status fits = CheckVersions(LocalVersions(), info.versions(),
                                            {.allow_mixed = options.allow_mixed_versions});
    if (!fits.ok()) return Named(fits);
    return absl::OkStatus();
  }

  void Identify(const wire::GetInfoResponse& info) {
    id_ = info.node_id();
    name_ = info.name();
  }

  const std::string& id() const override { return id_; }
  const std::string& name() const override { return name_; }
  const std::string& address() const override { return address_; }

  absl::StatusOr<wire::GetInfoResponse> GetInfo(int64_t timeout_ms) override {
    grpc::ClientContext context;
    SetTimeout(&context, timeout_ms);
    wire::GetInfoResponse info;
    const grpc::Status status = stub_->GetInfo(&context, wire::GetInfoRequest(), &info);
    if (!status.ok()) return Named(status);
    MakePrintable(&info);
    return info;
  }

  absl::StatusOr<std::vector<wire::SelfTest>> SelfTestsOf(const std::string& model_id,
                                                          int64_t timeout_ms) override {
    grpc::ClientContext context;
    SetTimeout(&context, timeout_ms);
    wire::GetInfoRequest request;
    request.set_self_tests_of(model_id);
    wire::GetInfoResponse info;
    const grpc::Status status = stub_->GetInfo(&context, request, &info);
    if (!status.ok()) return Named(status);
    return std::vector<wire::SelfTest>(info.self_tests().begin(), info.self_tests().end());
  }

  absl::Status Measure(int64_t timeout_ms) override {
    grpc::ClientContext context;
    SetTimeout(&context, timeout_ms);
    wire::MeasureResponse response;
    return Named(stub_->Measure(&context, wire::MeasureRequest(), &response));
  }

  absl::StatusOr<wire::ListLocalModelsResponse> ListLocalModels(int64_t timeout_ms) override {
    grpc::ClientContext context;
    SetTimeout(&context, timeout_ms);
    wire::ListLocalModelsResponse response;
    const grpc::Status status =
        stub_->ListLocalModels(&context, wire::ListLocalModelsRequest(), &response);
    if (!status.ok()) return Named(status);
    MakePrintable(&response);
    return response;
  }

  absl::StatusOr<wire::ListKvCachesResponse> ListKvCaches(int64_t timeout_ms) override {
    grpc::ClientContext context;
    SetTimeout(&context, timeout_ms);
    wire::ListKvCachesResponse response;
    const grpc::Status status =
        stub_->ListKvCaches(&context, wire::ListKvCachesRequest(), &response);
    if (!status.ok()) return Named(status);
    MakePrintable(&response);
    return response;
  }

  absl::Status ClearKvCaches(const std::string& model_id, int64_t timeout_ms) override {
    grpc::ClientContext context;
    SetTimeout(&context, timeout_ms);
    wire::ClearKvCachesRequest request;
    request.set_model_id(model_id);
    wire::ClearKvCachesResponse response;
    return Named(stub_->ClearKvCaches(&context, request, &response));
  }

  absl::StatusOr<wire::StageInfo> LoadStage(const wire::StageSpec& spec,
                                            Progress progress) override {
    grpc::ClientContext context;  // no deadline: a load takes as long as the disk needs
    wire::LoadStageRequest request;
    *request.mutable_spec() = spec;
    auto reader = stub_->LoadStage(&context, request);
    struct LoadState {
      absl::Mutex mu;
      wire::LoadProgress progress ABSL_GUARDED_BY(mu);
      bool is_new ABSL_GUARDED_BY(mu) = false;
      bool ended ABSL_GUARDED_BY(mu) = false;
      std::optional<wire::StageInfo> info;  // of the thread that reads
    } load;
    std::thread reads([&reader, &load] {
      wire::LoadStageEvent event;
      while (reader->Read(&event)) {
        if (event.has_loaded()) load.info = event.loaded();
        if (!event.has_progress()) continue;
        absl::MutexLock lock(load.mu);
        load.progress = event.progress();
        load.is_new = true;
      }
      absl::MutexLock lock(load.mu);
      load.ended = true;
    });
    // A load can be cancelled while its node reports nothing for long.
    for (bool ended = false; !ended;) {
      wire::LoadProgress now;
      {
        absl::MutexLock lock(load.mu);
        const auto is_due = [&load]() ABSL_SHARED_LOCKS_REQUIRED(load.mu) {
          return load.is_new || load.ended;
        };
        load.mu.AwaitWithTimeout(absl::Condition(&is_due), kContinuePoll);
        ended = load.ended;
        if (ended && !load.is_new) break;
        load.is_new = false;
        now = load.progress;
      }
      if (!progress(now)) context.TryCancel();
    }
    reads.join();
    const grpc::Status status = reader->Finish();
    if (!status.ok()) return Named(status);
    if (!load.info) return Named(absl::InternalError("the load ended without a result"));
    return *std::move(load.info);
  }

  absl::StatusOr<std::string> ShareModel(const std::string& path) override {
    grpc::ClientContext context;
    SetTimeout(&context, kControlTimeoutMs);
    wire::ShareModelRequest request;
    request.set_path(path);
    wire::ShareModelResponse response;
    const grpc::Status status =
        wire::Weights::NewStub(channel_)->ShareModel(&context, request, &response);
    if (!status.ok()) return Named(status);
    return response.model_id();
  }

  absl::StatusOr<wire::BlockList> ListBlocks(const std::string& model_id) override {
    grpc::ClientContext context;
    SetTimeout(&context, kListTimeoutMs);
    wire::ListBlocksRequest request;
    request.set_model_id(model_id);
    wire::BlockList list;
    const grpc::Status status =
        wire::Weights::NewStub(channel_)->ListBlocks(&context, request, &list);
    if (!status.ok()) return Named(status);
    return list;
  }

  absl::Status ConnectStage(const wire::ConnectStageRequest& request) override {
    grpc::ClientContext context;
    SetTimeout(&context, kControlTimeoutMs);
    wire::ConnectStageResponse response;
    return Named(stub_->ConnectStage(&context, request, &response));
  }

  absl::Status SetReplicaTargets(const wire::SetReplicaTargetsRequest& request,
                                 int64_t timeout_ms) override {
    grpc::ClientContext context;
    SetTimeout(&context, timeout_ms);
    wire::SetReplicaTargetsResponse response;
    return Named(stub_->SetReplicaTargets(&context, request, &response));
  }

  absl::Status FetchWeights(const wire::FetchWeightsRequest& request, int64_t timeout_ms) override {
    grpc::ClientContext context;
    SetTimeout(&context, timeout_ms);
    wire::FetchWeightsResponse response;
    return Named(stub_->FetchWeights(&context, request, &response));
  }

  absl::StatusOr<wire::MoveCachesResponse> MoveCaches(const wire::MoveCachesRequest& request,
                                                      ShouldContinue should_continue) override {
    grpc::ClientContext context;
    wire::MoveCachesResponse response;
    absl::Status status = Await(&context, should_continue, [&](auto done) {
      stub_->async()->MoveCaches(&context, &request, &response, std::move(done));
    });
    if (!status.ok()) return status;
    return response;
  }

  absl::Status UnloadStage(const wire::UnloadStageRequest& request,
                           ShouldContinue should_continue) override {
    grpc::ClientContext context;
    SetTimeout(&context, kControlTimeoutMs);
    wire::UnloadStageResponse response;
    return Await(&context, should_continue, [&](auto done) {
      stub_->async()->UnloadStage(&context, &request, &response, std::move(done));
    });
  }

  CancelCall TokenizeAsync(const wire::TokenizeRequest& request, Tokenized done) override {
    struct Call {
      grpc::ClientContext context;
      wire::TokenizeRequest request;
      wire::TokenizeResponse response;
      std::string name;
      Tokenized done;
    };
    auto call = std::make_shared<Call>();  // shared with the function that cancels it
    SetTimeout(&call->context, kControlTimeoutMs);
    call->request = request;
    call->name = name_;
    call->done = std::move(done);
    stub_->async()->Tokenize(&call->context, &call->request, &call->response,
                             [call](const grpc::Status& status) {
                               if (status.ok()) {
                                 std::move(call->done)(std::move(call->response));
                               } else {
                                 std::move(call->done)(WithName(call->name, ForPeople(status)));
                               }
                             });
    return [weak = std::weak_ptr<Call>(call)] {
      if (const auto there = weak.lock()) there->context.TryCancel();
    };
  }

  absl::Status SetDraining(bool draining) override {
    grpc::ClientContext context;
    SetTimeout(&context, kControlTimeoutMs);
    wire::SetDrainingRequest request;
    request.set_draining(draining);
    wire::SetDrainingResponse response;
    return Named(stub_->SetDraining(&context, request, &response));
  }

 private:
  // Runs a call that `begin` starts with the function to call at its end.
  absl::Status Await(grpc::ClientContext* context, ShouldContinue should_continue,
                     absl::FunctionRef<void(std::function<void(grpc::Status)>)> begin) {
    absl::Status outcome;
    absl::Notification done;
    begin([&](const grpc::Status& status) {
      outcome = Named(status);
      done.Notify();
    });
    while (!done.WaitForNotificationWithTimeout(kContinuePoll)) {
      if (!should_continue()) context->TryCancel();
    }
    return outcome;
  }

  absl::Status Named(const grpc::Status& status) const { return Named(FromGrpc(status)); }
  absl::Status Named(const absl::Status& status) const { return WithName(name_, status); }

  // gRPC's words about a connection mean nothing to a user of the API.
  static absl::Status ForPeople(const grpc::Status& status) {
    absl::Status plain = FromGrpc(status);
    if (IsFromPeer(status) || absl::IsCancelled(plain)) return plain;
    return absl::UnavailableError("the node does not answer");
  }

  // Says which node, unless the node has said so itself.
  static absl::Status WithName(const std::string& name, const absl::Status& status) {
    if (status.ok() || status.message().find(name) != absl::string_view::npos) return status;
    return Prefixed(name, status);
  }

  const std::string address_;
  std::string id_, name_;                         // constant after Greet()
  const std::shared_ptr<grpc::Channel> channel_;  // shared with stubs
  const std::unique_ptr<wire::Node::Stub> stub_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<NodeClient>> NodeClient::Connect(const Options& options) {
  auto client = std::make_unique<NodeClientImpl>(options.address);
  if (auto s = client->Greet(options); !s.ok()) return s;
  return client;
}

std::unique_ptr<NodeClient> NodeClient::For(const std::string& address,
                                            const wire::GetInfoResponse& info) {
  auto client = std::make_unique<NodeClientImpl>(address);
  client->Identify(info);
  return client;
}

}  // namespace strata
