#include "node/client/coordinator_client.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "node/gateway/generation_proto.h"
#include "proto/coordinator.grpc.pb.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_deadline.h"
#include "transport/rpc/grpc_status.h"
#include "transport/rpc/printable_message.h"
#include "transport/rpc/read_next.h"

namespace strata {
namespace {

// Time limit for a leased model to be unloaded.
constexpr absl::Duration kReleaseTime = absl::Seconds(30);

class CoordinatorClientImpl final : public CoordinatorClient {
  // A call that Cancel() ends, as long as the returned object lives.
  auto Cancellable(grpc::ClientContext* context) {
    absl::MutexLock lock(mu_);
    call_ = context;
    if (cancelled_) context->TryCancel();
    return absl::Cleanup([this] {
      absl::MutexLock end_lock(mu_);
      call_ = nullptr;
    });
  }

 public:
  explicit CoordinatorClientImpl(const std::string& address)
      : address_(address),
        stub_(wire::Coordinator::NewStub(MakeChannel(address, kPatientTimeoutMs))) {}
  ~CoordinatorClientImpl() override { Release(); }

  absl::StatusOr<wire::PlanExplained> PlanModel(const wire::PlanModelRequest& request,
                                                Note note) override {
    grpc::ClientContext context;
    const auto call = Cancellable(&context);
    const auto reader = stub_->PlanModel(&context, request);
    wire::PlanModelEvent event;
    wire::PlanExplained plan;
    while (ReadNext(reader.get(), &event)) {
      MakePrintable(&event);
      if (event.has_plan()) plan = event.plan();
      if (!event.note().empty()) note(event.note());
    }
    if (auto s = Explain(reader->Finish()); !s.ok()) return s;
    return plan;
  }

  absl::StatusOr<Loaded> LoadModel(const wire::LoadModelRequest& request,
                                   LoadEvent on_event) override {
    // On a machine that is too busy to answer in time the connection may break in the middle. A
    // load that is still in progress then is cancelled, and retried.
    bool broke = false;
    auto loaded = LoadModelOnce(request, on_event, &broke);
    return broke ? LoadModelOnce(request, on_event, &broke) : std::move(loaded);
  }

  void Release() override {
    if (lease_reader_ == nullptr) return;
    {
      // A cancelled call may end before the server has acted on it; this call waits for that.
      grpc::ClientContext context;
      context.set_deadline(DeadlineIn(kReleaseTime));
      wire::UnloadModelRequest request;
      request.set_lease(lease_);
      wire::UnloadModelResponse response;
      stub_->UnloadModel(&context, request, &response);
    }
    lease_context_->TryCancel();
    wire::LoadModelEvent event;
    while (ReadNext(lease_reader_.get(), &event)) {
    }
    lease_reader_->Finish();
    lease_reader_.reset();
    lease_context_.reset();
  }

  absl::StatusOr<std::string> UnloadModel(const std::string& model) override {
    grpc::ClientContext context;
    const auto call = Cancellable(&context);
    wire::UnloadModelRequest request;
    request.set_model(model);
    wire::UnloadModelResponse response;
    if (auto s = Explain(stub_->UnloadModel(&context, request, &response)); !s.ok()) return s;
    MakePrintable(&response);
    return response.name();
  }

  absl::StatusOr<wire::ListModelsResponse> ListModels() override {
    grpc::ClientContext context;
    const auto call = Cancellable(&context);
    wire::ListModelsResponse response;
    const grpc::Status status = stub_->ListModels(&context, wire::ListModelsRequest(), &response);
    if (auto s = Explain(status); !s.ok()) return s;
    MakePrintable(&response);
    return response;
  }

  absl::StatusOr<wire::ListKnownModelsResponse> ListKnownModels() override {
    grpc::ClientContext context;
    const auto call = Cancellable(&context);
    wire::ListKnownModelsResponse response;
    const grpc::Status status =
        stub_->ListKnownModels(&context, wire::ListKnownModelsRequest(), &response);
    if (auto s = Explain(status); !s.ok()) return s;
    MakePrintable(&response);
    return response;
  }

  absl::StatusOr<wire::ListKeptPromptsResponse> ListKeptPrompts() override {
    grpc::ClientContext context;
    const auto call = Cancellable(&context);
    wire::ListKeptPromptsResponse response;
    const grpc::Status status =
        stub_->ListKeptPrompts(&context, wire::ListKeptPromptsRequest(), &response);
    if (auto s = Explain(status); !s.ok()) return s;
    MakePrintable(&response);
    return response;
  }

  absl::StatusOr<wire::ClearKeptPromptsResponse> ClearKeptPrompts(
      const std::string& model) override {
    grpc::ClientContext context;
    const auto call = Cancellable(&context);
    wire::ClearKeptPromptsRequest request;
    request.set_model(model);
    wire::ClearKeptPromptsResponse response;
    if (auto s = Explain(stub_->ClearKeptPrompts(&context, request, &response)); !s.ok()) return s;
    MakePrintable(&response);
    return response;
  }

  absl::Status Generate(const wire::GenerateRequest& request, OnGenerateEvent on_event) override {
    grpc::ClientContext context;
    const auto call = Cancellable(&context);
    const auto reader = stub_->Generate(&context, request);
    wire::GenerateEvent event;
    bool wanted = true;
    while (ReadNext(reader.get(), &event)) {
      if (wanted && !on_event(event)) {
        wanted = false;
        context.TryCancel();
      }
    }
    return Explain(reader->Finish());
  }

  absl::Status DrainNode(const wire::DrainNodeRequest& request, Note note) override {
    grpc::ClientContext context;
    const auto call = Cancellable(&context);
    const auto reader = stub_->DrainNode(&context, request);
    wire::DrainNodeEvent event;
    while (ReadNext(reader.get(), &event)) {
      MakePrintable(&event);
      note(event.note());
    }
    return Explain(reader->Finish());
  }

  void Cancel() override {
    absl::MutexLock lock(mu_);
    cancelled_ = true;
    if (call_ != nullptr) call_->TryCancel();
  }

 private:
  // Sets `broke` when the load had begun and the connection broke.
  absl::StatusOr<Loaded> LoadModelOnce(const wire::LoadModelRequest& request, LoadEvent on_event,
                                       bool* broke) {
    auto context = std::make_unique<grpc::ClientContext>();
    auto call = Cancellable(context.get());
    auto reader = stub_->LoadModel(context.get(), request);
    wire::LoadModelEvent event;
    bool began = false;
    while (ReadNext(reader.get(), &event)) {
      began = true;
      MakePrintable(&event);
      if (!event.has_loaded()) {
        on_event(event);
        continue;
      }
      Loaded loaded{.model = event.loaded(), .was_there = event.was_there()};
      if (event.lease() != 0) {
        lease_ = event.lease();
        lease_context_ = std::move(context);
        lease_reader_ = std::move(reader);
      } else {
        reader->Finish();
      }
      return loaded;
    }
    const grpc::Status ended = reader->Finish();
    *broke = began && IsOfConnection(ended);
    absl::Status status = Explain(ended);
    if (status.ok()) return absl::InternalError("the load ended without a result");
    return status;
  }

  // gRPC's own messages about a connection mean nothing to people.
  static bool IsOfConnection(const grpc::Status& status) {
    return status.error_code() == grpc::StatusCode::UNAVAILABLE && !IsFromPeer(status);
  }

  absl::Status Explain(const grpc::Status& status) const {
    if (IsUnknownCall(status)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the node at ", address_, " is of another version; run the same strata everywhere"));
    }
    if (IsOfConnection(status)) {
      return absl::UnavailableError(absl::StrCat("no node answers at ", address_));
    }
    return RequestStatusFromGrpc(status);
  }

  const std::string address_;
  const std::unique_ptr<wire::Coordinator::Stub> stub_;
  uint64_t lease_ = 0;
  std::unique_ptr<grpc::ClientContext> lease_context_;  // destroyed after lease_reader_
  std::unique_ptr<grpc::ClientReader<wire::LoadModelEvent>> lease_reader_;  // of the leased load

  absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  grpc::ClientContext* call_ ABSL_GUARDED_BY(mu_) = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorClient>> CoordinatorClient::Connect(
    const ClientOptions& options) {
  auto node = ConnectToCluster(options);
  if (!node.ok()) return node.status();
  return At((*node)->address());
}

std::unique_ptr<CoordinatorClient> CoordinatorClient::At(const std::string& address) {
  return std::make_unique<CoordinatorClientImpl>(address);
}

}  // namespace strata
