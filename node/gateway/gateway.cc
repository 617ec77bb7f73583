#include "node/gateway/gateway.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/request/request_status.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"
#include "node/gateway/generation_proto.h"
#include "proto/node.grpc.pb.h"
#include "transport/base/steady_time.h"
#include "transport/rpc/forwarding.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_deadline.h"
#include "transport/rpc/grpc_status.h"
#include "transport/rpc/printable_message.h"
#include "transport/rpc/status_details.h"

namespace strata {
namespace {

constexpr absl::Duration kListTime = absl::Seconds(5);
constexpr absl::Duration kLoadTick = absl::Seconds(1);
// A request that cannot be finished in this time is cancelled.
constexpr absl::Duration kFinishTime = absl::Seconds(5);
constexpr absl::Duration kTextTime = absl::Seconds(10);

absl::Status Stopping() { return absl::UnavailableError("the node is stopping"); }

using Stub = wire::Coordinator::Stub;

// The call of a request that another node runs, if one does. Thread-safe.
class RemoteGeneration final : public GenerationHandle,
                               public std::enable_shared_from_this<RemoteGeneration> {
 public:
  RemoteGeneration() { context_.AddMetadata(kForwardedKey, "1"); }

  grpc::ClientContext* context() { return &context_; }
  // The other node has taken the request, under this number; `stub` reaches that node.
  void Started(std::shared_ptr<Stub> stub, uint64_t number) {
    absl::MutexLock lock(mu_);
    stub_ = std::move(stub);
    number_ = number;
  }

  void Cancel() override { context_.TryCancel(); }
  // The other node's end event still comes.
  void Finish() override {
    struct Call {
      grpc::ClientContext context;
      wire::FinishGenerationRequest request;
      wire::FinishGenerationResponse response;
    };
    const auto call = std::make_shared<Call>();  // shared with its own callback
    std::shared_ptr<Stub> stub;
    {
      absl::MutexLock lock(mu_);
      stub = stub_;
      call->request.set_text(number_);
    }
    if (stub == nullptr) {
      Cancel();
      return;
    }
    call->context.set_deadline(DeadlineIn(kFinishTime));
    stub->async()->FinishGeneration(
        &call->context, &call->request, &call->response,
        [call, stub, self = shared_from_this()](const grpc::Status& status) {
          if (!status.ok()) self->Cancel();
        });
  }

 private:
  grpc::ClientContext context_;

  absl::Mutex mu_;
  std::shared_ptr<Stub> stub_ ABSL_GUARDED_BY(mu_);  // shared with the reader
  uint64_t number_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace

// Reads the events of a request that runs on another node. Deletes itself at the call's end.
class Gateway::Reader final : public grpc::ClientReadReactor<wire::GenerateEvent> {
 public:
  Reader(std::shared_ptr<CallbackGate> gate, std::shared_ptr<RequestAttempt> attempt,
         std::shared_ptr<Stub> stub)
      : gate_(std::move(gate)), attempt_(std::move(attempt)), stub_(std::move(stub)) {
    gate_->Enter();
    attempt_->SetSource(remote_);
  }

  void Start() {
    stub_->async()->Generate(remote_->context(), &attempt_->request(), this);
    StartRead(&event_);
    StartCall();
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    switch (event_.event_case()) {
      case wire::GenerateEvent::kStarted: {
        const auto& prompt = event_.started().prompt();
        remote_->Started(stub_, event_.started().text());
        attempt_->OnStarted({prompt.begin(), prompt.end()});
        break;
      }
      case wire::GenerateEvent::kProgress:
        attempt_->OnProgress(ProgressFromWire(event_.progress()));
        break;
      case wire::GenerateEvent::kToken:
        attempt_->OnToken(event_.token());
        break;
      case wire::GenerateEvent::kEnded:
        result_ = EndedFromWire(event_.ended());
        break;
      default:
        break;
    }
    event_.Clear();
    StartRead(&event_);
  }
  void OnDone(const grpc::Status& status) override {
    const absl::Status plain = RequestStatusFromGrpc(status);
    if (plain.ok() || IsFromPeer(status)) {
      attempt_->OnEnd(plain, result_.reason, result_.usage);
    } else {
      attempt_->OnBroken(plain);
    }
    const std::shared_ptr<CallbackGate> gate = gate_;  // shared with the gateway
    delete this;
    gate->Leave();
  }

  const std::shared_ptr<CallbackGate> gate_;       // shared with the gateway
  const std::shared_ptr<RequestAttempt> attempt_;  // not shared
  const std::shared_ptr<Stub> stub_;               // shared with calls about the request
  const std::shared_ptr<RemoteGeneration> remote_ =
      std::make_shared<RemoteGeneration>();  // shared with the client's handle
  wire::GenerateEvent event_;
  GenerationResult result_;
};

// Reads the events of a load. Deletes itself at the call's end.
class Gateway::LoadCall final : public grpc::ClientReadReactor<wire::LoadModelEvent> {
 public:
  LoadCall(Gateway* gateway, wire::LoadModelRequest request, std::string key, std::string name)
      : gateway_(gateway),
        request_(std::move(request)),
        key_(std::move(key)),
        name_(std::move(name)),
        stub_(gateway->OwnStub()) {
    gateway_->gate_->Enter();
    absl::MutexLock lock(gateway_->mu_);
    gateway_->load_calls_.insert(this);
    if (gateway_->stopping_) context_.TryCancel();
  }

  void Start() {
    stub_->async()->LoadModel(&context_, &request_, this);
    StartRead(&event_);
    StartCall();
  }
  void Cancel() { context_.TryCancel(); }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    MakePrintable(&event_);
    if (event_.has_loaded()) result_ = event_.loaded();
    if (event_.has_progress()) gateway_->loads_->OnProgress(key_, event_.progress());
    if (!event_.note().empty()) gateway_->loads_->OnNote(key_, event_.note());
    event_.Clear();
    StartRead(&event_);
  }
  void OnDone(const grpc::Status& status) override {
    if (!status.ok()) {
      const absl::Status why = RequestStatusFromGrpc(status);
      result_ = Prefixed(absl::StrCat(name_, " cannot be loaded"),
                         IsFromPeer(status) ? why : WithRetryAfterMs(Stopping(), kRetrySoonMs));
    }
    gateway_->loads_->OnEnd(key_, result_);
    {
      absl::MutexLock lock(gateway_->mu_);
      gateway_->load_calls_.erase(this);
    }
    const std::shared_ptr<CallbackGate> gate = gateway_->gate_;  // shared with the gateway
    delete this;
    gate->Leave();
  }

  Gateway* const gateway_;
  const wire::LoadModelRequest request_;
  const std::string key_, name_;
  const std::unique_ptr<Stub> stub_;
  grpc::ClientContext context_;
  wire::LoadModelEvent event_;
  absl::StatusOr<wire::ModelStatus> result_ =
      absl::InternalError("the load ended without a result");
};

Gateway::Gateway(EventLoop* loop, ClusterRuntime* cluster, Coordinator* coordinator,
                 Options options)
    : loop_(loop),
      cluster_(cluster),
      coordinator_(coordinator),
      options_(std::move(options)),
      router_(this, options_.requests),
      models_({.thread_name = "model list", .waiting_max = kModelsWaitingMax},
              [this] { return FetchModels(); }),
      known_models_({.thread_name = "known models", .waiting_max = kModelsWaitingMax},
                    [this] { return FetchKnownModels(); }) {}

Gateway::~Gateway() {
  Stop();
  gate_->Wait();
}

void Gateway::Stop() {
  {
    absl::MutexLock lock(mu_);
    stopping_ = true;
    for (LoadCall* const call : load_calls_) call->Cancel();
  }
  models_.Stop();
  known_models_.Stop();
  router_.Stop();
}

std::unique_ptr<wire::Coordinator::Stub> Gateway::StubAt(const std::string& address) {
  absl::MutexLock lock(mu_);
  if (channel_ == nullptr || channel_address_ != address) {
    channel_ = MakeChannel(address);
    channel_address_ = address;
  }
  return wire::Coordinator::NewStub(channel_);
}

std::shared_ptr<GenerationHandle> Gateway::Generate(const wire::GenerateRequest& request,
                                                    std::shared_ptr<GenerationListener> sink,
                                                    GenerateOptions options) {
  return router_.Generate(request, std::move(sink), options.pass_on);
}

Gateway::Leader Gateway::FindLeader(const std::string& model) {
  const ClusterView& view = cluster_->view();
  Leader leader;
  if (view.is_coordinator) {
    leader.place = Leader::Place::kHere;
    leader.may_reload = coordinator_->MayReload();
    leader.status = coordinator_->Answers(model);
    return leader;
  }
  if (!view.coordinator.is_nobody()) {
    leader.place = Leader::Place::kElsewhere;
    leader.address = cluster_->AddressOf(view.coordinator);
  }
  if (view.refused) leader.status = NoCoordinator(cluster_->WhyRefused());
  return leader;
}

void Gateway::RunHere(const wire::GenerateRequest& request, std::shared_ptr<GenerationCall> call) {
  coordinator_->Generate(request, std::move(call));
}

void Gateway::RunElsewhere(const std::string& address, std::shared_ptr<RequestAttempt> attempt) {
  (new Reader(gate_, std::move(attempt), StubAt(address)))->Start();
}

void Gateway::DispatchSoon() {
  loop_->Post([this] { router_.Dispatch(); });
}

void Gateway::TickSoon() {
  loop_->Post([this] {
    tick_ = loop_->StartTimer(
        {.delay_ms = static_cast<uint64_t>(absl::ToInt64Milliseconds(kRequestTick))},
        [this] { router_.Tick(); });
  });
}

std::string Gateway::AddressOf(const std::string& node_id) const {
  const absl::StatusOr<NodeId> node = NodeId::FromHex(node_id);
  if (!node.ok()) return "";
  if (*node != cluster_->id()) return cluster_->AddressOf(*node);
  const std::vector<std::string>& own = cluster_->own_addresses();
  return own.empty() ? "" : own.front();
}

template <typename Request, typename Response, typename Method>
void Gateway::CallFirstStage(const wire::ModelStatus& model, Request request, Method method,
                             OnResponse<Response> done) {
  if (model.stages_size() == 0) {
    return done(absl::UnavailableError("the model is not ready yet"));
  }
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<wire::Node::Stub> stub;
    Request request;
    Response response;
  };
  const auto call = std::make_shared<Call>();  // shared with its own callback
  call->request = std::move(request);
  call->request.set_stage(0);
  *call->request.mutable_epoch() = model.epoch();
  call->context.set_deadline(DeadlineIn(kTextTime));
  loop_->Post([this, call, method, node_id = model.stages(0).node_id(), done = std::move(done)] {
    const std::string address = AddressOf(node_id);
    if (address.empty()) {
      return done(absl::UnavailableError("no way to the node of the model's first stage is known"));
    }
    gate_->Enter();
    call->stub = wire::Node::NewStub(MakeChannel(address));
    (call->stub->async()->*method)(
        &call->context, &call->request, &call->response,
        [call, done, gate = gate_](const grpc::Status& status) {
          const absl::Status plain = FromGrpc(status);
          if (plain.ok()) {
            done(std::move(call->response));
          } else if (IsFromPeer(status) && !absl::IsNotFound(plain)) {
            done(plain);
          } else {
            done(absl::UnavailableError(
                "the node of the model's first stage does not have it now; try again"));
          }
          gate->Leave();
        });
  });
}

using FirstStage = wire::Node::StubInterface::async_interface;
template <typename Request, typename Response>
using FirstStageMethod = void (FirstStage::*)(grpc::ClientContext*, const Request*, Response*,
                                              std::function<void(grpc::Status)>);

void Gateway::Tokenize(const wire::ModelStatus& model, wire::TokenizeRequest request,
                       OnResponse<wire::TokenizeResponse> done) {
  const FirstStageMethod<wire::TokenizeRequest, wire::TokenizeResponse> method =
      &FirstStage::Tokenize;
  CallFirstStage(model, std::move(request), method, std::move(done));
}

void Gateway::Detokenize(const wire::ModelStatus& model, wire::DetokenizeRequest request,
                         OnResponse<wire::DetokenizeResponse> done) {
  const FirstStageMethod<wire::DetokenizeRequest, wire::DetokenizeResponse> method =
      &FirstStage::Detokenize;
  CallFirstStage(model, std::move(request), method, std::move(done));
}

absl::StatusOr<Gateway::Models> Gateway::FetchModels() {
  const SteadyTime until = SteadyTime::Now() + options_.leadership_time;
  const auto stop = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stopping_; };
  while (true) {
    absl::StatusOr<Models> models = FetchModelsOnce();
    if (!absl::IsUnavailable(models.status()) || SteadyTime::Now() >= until) return models;
    // A node that has just lost its coordinator may have another soon; a node that coordinates
    // knows why the call failed.
    if (!IsLeaderChanged(models.status()) && coordinator_->leadership().mine) return models;
    absl::MutexLock lock(mu_);
    if (mu_.AwaitWithTimeout(absl::Condition(&stop), kRequestTick)) {
      return Stopping();
    }
  }
}

absl::StatusOr<Gateway::Models> Gateway::FetchModelsOnce() {
  const Coordinator::Leadership leadership = coordinator_->leadership();
  auto list = std::make_shared<ModelList>();  // shared by all callers
  if (leadership.mine) {
    auto models = coordinator_->Models();
    if (!models.ok()) return models.status();
    *list = *std::move(models);
    return list;
  }
  if (leadership.address.empty()) return NoCoordinator(leadership.refused);
  grpc::ClientContext context;
  context.AddMetadata(kForwardedKey, "1");
  context.set_deadline(DeadlineIn(kListTime));
  wire::ListModelsResponse response;
  const grpc::Status status =
      StubAt(leadership.address)->ListModels(&context, wire::ListModelsRequest(), &response);
  if (IsUnreadable(status)) return FromGrpc(status);
  if (!status.ok()) {
    const absl::Status plain = RequestStatusFromGrpc(status);
    return absl::UnavailableError(IsFromPeer(status) ? plain.message() : NoCoordinator().message());
  }
  MakePrintable(&response);
  list->assign(response.models().begin(), response.models().end());
  return list;
}

absl::StatusOr<Gateway::KnownModels> Gateway::FetchKnownModels() {
  grpc::ClientContext context;
  context.set_deadline(DeadlineIn(kListTime));
  auto list = std::make_shared<wire::ListKnownModelsResponse>();  // shared by all callers
  const grpc::Status status =
      OwnStub()->ListKnownModels(&context, wire::ListKnownModelsRequest(), list.get());
  if (!status.ok()) return FromGrpc(status);
  return list;
}

std::unique_ptr<wire::Coordinator::Stub> Gateway::OwnStub() const {
  return wire::Coordinator::NewStub(MakeChannel(self_address_, kPatientTimeoutMs));
}

std::function<void()> Gateway::Load(const wire::LoadModelRequest& request, const std::string& name,
                                    LoadQueue::Waiter waiter) {
  const std::string key = absl::StrCat(request.source().node(), ":", request.source().path());
  const LoadQueue::Place place = loads_->Join(key, name, std::move(waiter), SteadyTime::Now());
  if (place.is_first) (new LoadCall(this, request, key, name))->Start();
  loop_->Post([this] {
    if (load_tick_ != nullptr) return;
    const auto every_ms = static_cast<uint64_t>(absl::ToInt64Milliseconds(kLoadTick));
    load_tick_ =
        loop_->StartTimer({.delay_ms = every_ms, .repeat_ms = every_ms}, [this] { TickLoads(); });
  });
  return [loads = loads_, number = place.number] { loads->Leave(number); };
}

void Gateway::TickLoads() {
  loads_->Tick(SteadyTime::Now());
  if (!loads_->is_empty()) return;
  loop_->Post([this] {
    if (loads_->is_empty()) load_tick_.reset();
  });
}

}  // namespace strata
