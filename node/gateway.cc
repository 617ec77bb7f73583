#include "node/gateway.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"
#include "node/text_wire.h"
#include "transport/grpc_link.h"
#include "transport/grpc_status.h"

namespace strata {
namespace {

constexpr std::chrono::seconds kListTime(5);

absl::Status NoCoordinator() {
  return absl::UnavailableError("no node coordinates at present; try again in a few seconds");
}

// A text that is written here or elsewhere: only the loop knows, and it has not been asked yet.
class GatewayText final : public TextControl {
 public:
  explicit GatewayText(std::shared_ptr<TextSink> sink)
      : call_(std::make_shared<TextCall>(std::move(sink))),
        context_(std::make_shared<grpc::ClientContext>()) {
    context_->AddMetadata(kForwardedKey, "1");
  }

  void Cancel() override {
    call_->Cancel();
    context_->TryCancel();
  }
  void Finish() override {
    call_->Finish();
    context_->TryCancel();
  }

  const std::shared_ptr<TextCall>& call() const { return call_; }
  const std::shared_ptr<grpc::ClientContext>& context() const { return context_; }

 private:
  const std::shared_ptr<TextCall> call_;                // shared with the text's server
  const std::shared_ptr<grpc::ClientContext> context_;  // shared with the reader
};

}  // namespace

// Reads what another node writes. Its own, until the call's end.
class Gateway::Reader final : public grpc::ClientReadReactor<wire::GenerateTextEvent> {
 public:
  Reader(std::shared_ptr<TextSink> to, std::unique_ptr<wire::Coordinator::Stub> stub,
         std::shared_ptr<grpc::ClientContext> context, wire::GenerateTextRequest request)
      : to_(std::move(to)),
        stub_(std::move(stub)),
        context_(std::move(context)),
        request_(std::move(request)) {}

  void Start() {
    stub_->async()->GenerateText(context_.get(), &request_, this);
    StartRead(&event_);
    StartCall();
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    switch (event_.event_case()) {
      case wire::GenerateTextEvent::kStarted: {
        const auto& prompt = event_.started().prompt();
        prompt_tokens_ = static_cast<uint32_t>(prompt.size());
        to_->OnStarted({prompt.begin(), prompt.end()});
        break;
      }
      case wire::GenerateTextEvent::kToken:
        ++tokens_;
        to_->OnToken(event_.token());
        break;
      case wire::GenerateTextEvent::kEnded:
        ended_ = EndedFromWire(event_.ended());
        ended_.usage.prompt_tokens = prompt_tokens_;
        ended_.usage.tokens = tokens_;
        break;
      default:
        break;
    }
    event_.Clear();
    StartRead(&event_);
  }
  void OnDone(const grpc::Status& status) override {
    to_->OnEnd(TextStatusFromGrpc(status), ended_.reason, ended_.usage);
    delete this;
  }

  const std::shared_ptr<TextSink> to_;  // shared with who asked
  const std::unique_ptr<wire::Coordinator::Stub> stub_;
  const std::shared_ptr<grpc::ClientContext> context_;  // shared with the text's control
  const wire::GenerateTextRequest request_;
  wire::GenerateTextEvent event_;
  uint32_t prompt_tokens_ = 0;
  uint32_t tokens_ = 0;
  EndedText ended_;
};

Gateway::Gateway(EventLoop* loop, ClusterRuntime* cluster, Coordinator* coordinator)
    : loop_(loop), cluster_(cluster), coordinator_(coordinator), lister_([this] { KeepList(); }) {}

Gateway::~Gateway() {
  {
    absl::MutexLock lock(mu_);
    stopping_ = true;
  }
  lister_.join();
}

std::unique_ptr<wire::Coordinator::Stub> Gateway::StubAt(const std::string& address) {
  absl::MutexLock lock(mu_);
  if (channel_ == nullptr || channel_address_ != address) {
    channel_ = MakeChannel(address);
    channel_address_ = address;
  }
  return wire::Coordinator::NewStub(channel_);
}

std::shared_ptr<TextControl> Gateway::Generate(const wire::GenerateTextRequest& request,
                                               std::shared_ptr<TextSink> sink,
                                               GenerateOptions options) {
  auto text = std::make_shared<GatewayText>(sink);  // shared with who asked
  loop_->Post([this, text, request, sink = std::move(sink), options] {
    const ClusterView& view = cluster_->view();
    if (view.is_coordinator) {
      coordinator_->Generate(request, text->call());
      return;
    }
    const std::string address = options.pass_on && !view.coordinator.is_nobody()
                                    ? cluster_->AddressOf(view.coordinator)
                                    : "";
    if (address.empty()) {
      text->call()->Refuse(NoCoordinator());
    } else {
      (new Reader(sink, StubAt(address), text->context(), request))->Start();
    }
  });
  return text;
}

void Gateway::ListModels(absl::Duration age_max, OnModels done) {
  absl::StatusOr<Models> now = absl::ResourceExhaustedError("too many ask for the models at once");
  {
    absl::MutexLock lock(mu_);
    if (stopping_) {
      now = absl::UnavailableError("the node is stopping");
    } else if (models_ != nullptr && absl::Now() - models_at_ <= age_max) {
      now = models_;
    } else if (waiting_.size() < kModelsWaitingMax) {
      waiting_.push_back(std::move(done));
      return;
    }
  }
  std::move(done)(now);
}

void Gateway::KeepList() {
  const auto wanted = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return stopping_ || !waiting_.empty();
  };
  while (true) {
    std::vector<OnModels> asked;
    bool stopping = false;
    {
      absl::MutexLock lock(mu_);
      mu_.Await(absl::Condition(&wanted));
      asked.swap(waiting_);
      stopping = stopping_;
    }
    absl::StatusOr<Models> models = absl::UnavailableError("the node is stopping");
    const absl::Time at = absl::Now();
    if (!stopping) models = Fetch();
    if (models.ok()) {
      absl::MutexLock lock(mu_);
      models_ = *models;
      models_at_ = at;
    }
    for (OnModels& done : asked) std::move(done)(models);
    if (stopping) return;
  }
}

absl::StatusOr<Gateway::Models> Gateway::Fetch() {
  const Coordinator::Office office = coordinator_->office();
  auto list = std::make_shared<ModelList>();  // shared by all who asked
  if (office.mine) {
    auto models = coordinator_->Models();
    if (!models.ok()) return models.status();
    *list = *std::move(models);
    return list;
  }
  if (office.address.empty()) return NoCoordinator();
  grpc::ClientContext context;
  context.AddMetadata(kForwardedKey, "1");
  context.set_deadline(std::chrono::system_clock::now() + kListTime);
  wire::ListModelsResponse response;
  const absl::Status status =
      FromGrpc(StubAt(office.address)->ListModels(&context, wire::ListModelsRequest(), &response));
  if (!status.ok()) {
    return absl::UnavailableError(
        absl::StrCat("the node that coordinates does not answer: ", status.message()));
  }
  list->assign(response.models().begin(), response.models().end());
  return list;
}

}  // namespace strata
