#include "node/gateway/gateway.h"

#include <utility>

#include "absl/log/log.h"
#include "coordinator/request/generation_request.h"
#include "coordinator/request/request_status.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"
#include "node/gateway/generation_proto.h"
#include "transport/base/steady_time.h"
#include "transport/base/thread_name.h"
#include "transport/rpc/forwarding.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_deadline.h"
#include "transport/rpc/grpc_status.h"
#include "transport/rpc/printable_message.h"

namespace strata {
namespace {

constexpr absl::Duration kListTime = absl::Seconds(5);
// A request that cannot be finished in this time is cancelled.
constexpr absl::Duration kFinishTime = absl::Seconds(5);

constexpr uint64_t kTickMs = 100;

absl::Status Stopping() { return absl::UnavailableError("the node is stopping"); }

// The node that forwarded the request resumes it elsewhere.
absl::Status Stopping(const Gateway::GenerateOptions& options) {
  return options.pass_on ? Stopping() : AsLeaderChanged(Stopping());
}

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

absl::Status NoCoordinator(const std::string& why) {
  return WithRetryAfterMs(
      absl::UnavailableError(
          why.empty() ? "no node coordinates at present; try again in a few seconds" : why),
      kRetrySoonMs);
}

// A request that runs here or elsewhere, at one source after the other.
class Gateway::Text final : public GenerationHandle {
 public:
  explicit Text(std::shared_ptr<GenerationListener> sink) : call_(std::move(sink)) {}

  void Cancel() override { Stop(&GenerationHandle::Cancel); }
  void Finish() override { Stop(&GenerationHandle::Finish); }
  bool wanted() const { return call_.wanted(); }
  // REQUIRES: the request has no source.
  void Refuse(absl::Status status) { call_.Refuse(std::move(status)); }

  // Replaces the source before, and passes on a stop that was called meanwhile.
  void SetSource(const std::shared_ptr<GenerationHandle>& source) {
    StopMethod stop = nullptr;
    {
      absl::MutexLock lock(mu_);
      source_ = source;
      stop = stop_;
    }
    if (stop != nullptr) (source.get()->*stop)();
  }

 private:
  using StopMethod = void (GenerationHandle::*)();

  void Stop(StopMethod stop) {
    (call_.*stop)();
    std::shared_ptr<GenerationHandle> source;
    {
      absl::MutexLock lock(mu_);
      if (stop_ == nullptr) stop_ = stop;
      source = source_;
    }
    if (source != nullptr) (source.get()->*stop)();
  }

  GenerationCall call_;
  absl::Mutex mu_;
  StopMethod stop_ ABSL_GUARDED_BY(mu_) = nullptr;                 // the first one called
  std::shared_ptr<GenerationHandle> source_ ABSL_GUARDED_BY(mu_);  // shared with its runner
};

// Listens to a request that runs on this node.
class Gateway::Local final : public GenerationListener {
 public:
  Local(Gateway* gateway, PendingRequest pending)
      : gateway_(gateway),
        gate_(gateway->gate_),
        pending_(std::move(pending)),
        to_(pending_.sink) {}

  void OnStarted(const std::vector<int32_t>& prompt) override {
    started_ = true;
    to_->OnStarted(prompt);
  }
  void OnToken(const wire::SampledToken& token) override { to_->OnToken(token); }
  void OnEnd(absl::Status status, FinishReason reason, const GenerationUsage& usage) override {
    // Drops the reference on the generation, which holds this.
    PendingRequest pending = std::move(pending_);
    pending.started = started_;
    const RetryDecision next = DecideRetry({.status = status,
                                            .started = started_,
                                            .resumed = pending.resumed,
                                            .wanted = pending.generation->wanted()});
    // A forwarded request is resumed by the node that forwarded it.
    if (next != RetryDecision::kFinish && pending.options.pass_on && gate_->TryEnter()) {
      gateway_->Retry(std::move(pending), next, status);
      gate_->Leave();
    } else {
      to_->OnEnd(std::move(status), reason, usage);
    }
  }

 private:
  Gateway* const gateway_;                    // only inside the gate
  const std::shared_ptr<CallbackGate> gate_;  // shared with the gateway
  PendingRequest pending_;
  const std::shared_ptr<ResumableGeneration> to_;  // shared with the caller
  bool started_ = false;
};

// Reads the events of a request that runs on another node. Deletes itself at the call's end.
class Gateway::Reader final : public grpc::ClientReadReactor<wire::GenerateEvent> {
 public:
  Reader(Gateway* gateway, PendingRequest pending, std::shared_ptr<Stub> stub)
      : gateway_(gateway),
        pending_(std::move(pending)),
        to_(pending_.sink),
        stub_(std::move(stub)) {
    gateway_->gate_->Enter();
    pending_.generation->SetSource(remote_);
  }

  void Start() {
    stub_->async()->Generate(remote_->context(), &pending_.request, this);
    StartRead(&event_);
    StartCall();
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    switch (event_.event_case()) {
      case wire::GenerateEvent::kStarted: {
        const auto& prompt = event_.started().prompt();
        started_ = true;
        remote_->Started(stub_, event_.started().text());
        to_->OnStarted({prompt.begin(), prompt.end()});
        break;
      }
      case wire::GenerateEvent::kToken:
        to_->OnToken(event_.token());
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
    Gateway* const gateway = gateway_;
    const absl::Status plain = RequestStatusFromGrpc(status);
    const RetryDecision next = DecideRetry({.status = plain,
                                            .from_source = IsFromPeer(status),
                                            .started = started_,
                                            .resumed = pending_.resumed,
                                            .wanted = pending_.generation->wanted()});
    if (next == RetryDecision::kFinish) {
      to_->OnEnd(plain, result_.reason, result_.usage);
    } else {
      pending_.started = started_;
      gateway->Retry(std::move(pending_), next, plain);
    }
    const std::shared_ptr<CallbackGate> gate = gateway->gate_;
    delete this;
    gate->Leave();
  }

  Gateway* const gateway_;
  PendingRequest pending_;
  const std::shared_ptr<ResumableGeneration> to_;  // shared with the caller
  const std::shared_ptr<Stub> stub_;               // shared with calls about the request
  const std::shared_ptr<RemoteGeneration> remote_ =
      std::make_shared<RemoteGeneration>();  // shared with the routed generation
  bool started_ = false;
  wire::GenerateEvent event_;
  GenerationResult result_;
};

Gateway::Gateway(EventLoop* loop, ClusterRuntime* cluster, Coordinator* coordinator,
                 Options options)
    : loop_(loop), cluster_(cluster), coordinator_(coordinator), options_(options), lister_([this] {
        RefreshModelList();
      }) {}

Gateway::~Gateway() {
  Stop();
  lister_.join();
  gate_->Wait();
}

void Gateway::Stop() {
  std::vector<PendingRequest> left;
  {
    absl::MutexLock lock(mu_);
    stopping_ = true;
    left.swap(incoming_);
    for (PendingRequest& pending : requests_waiting_) left.push_back(std::move(pending));
    requests_waiting_.clear();
  }
  for (const PendingRequest& pending : left) pending.generation->Refuse(Stopping(pending.options));
}

bool Gateway::stopping() {
  absl::MutexLock lock(mu_);
  return stopping_;
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
  auto resumable = std::make_shared<ResumableGeneration>(request, std::move(sink));
  auto generation = std::make_shared<Text>(resumable);  // shared with the caller
  {
    absl::MutexLock lock(mu_);
    if (!stopping_) {
      incoming_.push_back({.generation = generation,
                           .request = request,
                           .sink = std::move(resumable),
                           .options = options,
                           .until = SteadyTime::Now() + options_.begin_time,
                           .last = absl::OkStatus()});
      // One turn of the loop dispatches all requests that come until then.
      if (incoming_.size() == 1) loop_->Post([this] { Pump(); });
      return generation;
    }
  }
  generation->Refuse(Stopping(options));
  return generation;
}

void Gateway::Pump() {
  std::vector<PendingRequest> incoming;
  {
    absl::MutexLock lock(mu_);
    incoming.swap(incoming_);
  }
  for (PendingRequest& pending : incoming) Begin(std::move(pending));
}

void Gateway::Begin(PendingRequest pending) {
  const ClusterView& view = cluster_->view();
  pending.begun = SteadyTime::Now();
  if (view.is_coordinator) {
    const bool may_load = pending.resumed || coordinator_->MayReload();
    const absl::Status answers =
        may_load ? coordinator_->Answers(pending.request.model()) : absl::OkStatus();
    const bool is_unknown = absl::IsNotFound(answers) && !pending.resumed;
    if (!answers.ok() && !is_unknown) {
      pending.last = pending.resumed ? answers : Coordinator::Reloading();
      Wait(std::move(pending));
    } else {
      const wire::GenerateRequest request = pending.request;
      // Shared with the caller.
      const std::shared_ptr<Text> generation = pending.generation;
      const auto call =
          std::make_shared<GenerationCall>(std::make_shared<Local>(this, std::move(pending)));
      generation->SetSource(call);
      coordinator_->Generate(request, call);
    }
    return;
  }
  if (!pending.options.pass_on && !view.coordinator.is_nobody()) {
    pending.generation->Refuse(AsLeaderChanged(absl::UnavailableError("another node coordinates")));
    return;
  }
  const std::string address =
      view.coordinator.is_nobody() ? "" : cluster_->AddressOf(view.coordinator);
  if (address.empty()) {
    if (view.refused) pending.last = NoCoordinator(cluster_->WhyRefused());
    Wait(std::move(pending));
  } else {
    (new Reader(this, std::move(pending), StubAt(address)))->Start();
  }
}

void Gateway::Retry(PendingRequest pending, RetryDecision decision, const absl::Status& status) {
  const absl::Duration run_time = SteadyTime::Now() - pending.begun;
  if (run_time > kGatewayConnectTime) pending.until += run_time;
  // A source that took the request and had not begun it would return the same status at once.
  const bool was_idle =
      decision == RetryDecision::kRetry ||
      (decision == RetryDecision::kResume && IsLeaderChanged(status) && !pending.started);
  if (was_idle) pending.not_before = SteadyTime::Now() + kGatewayResumePause;
  if (decision == RetryDecision::kResume) return Resume(std::move(pending));
  if (decision == RetryDecision::kRetry) pending.last = status;
  Wait(std::move(pending));
}

void Gateway::Resume(PendingRequest pending) {
  LOG_EVERY_N_SEC(WARNING, 1) << "the coordinator has gone; requests resume when another node "
                                 "coordinates and has loaded their models";
  if (pending.sink->started()) pending.request = pending.sink->Rest();
  // Each source that starts the request renews its time to wait.
  if (!pending.resumed || pending.started) pending.until = SteadyTime::Now() + options_.resume_time;
  pending.resumed = true;
  pending.started = false;
  pending.last = absl::OkStatus();
  Wait(std::move(pending));
}

void Gateway::Wait(PendingRequest pending) {
  absl::Status why = pending.last.ok() ? NoCoordinator() : pending.last;
  if (!pending.generation->wanted()) {
    why = absl::CancelledError("the request was cancelled");
  } else if (SteadyTime::Now() < pending.until) {
    absl::MutexLock lock(mu_);
    if (stopping_) {
      why = Stopping(pending.options);
    } else if (requests_waiting_.size() < kRequestsWaitingMax) {
      requests_waiting_.push_back(std::move(pending));
      if (requests_waiting_.size() > 1) return;
      loop_->Post([this] { tick_ = loop_->StartTimer({.delay_ms = kTickMs}, [this] { Tick(); }); });
      return;
    }
  }
  pending.generation->Refuse(std::move(why));
}

void Gateway::Tick() {
  std::vector<PendingRequest> waiting;
  {
    absl::MutexLock lock(mu_);
    waiting.swap(requests_waiting_);
  }
  const SteadyTime now = SteadyTime::Now();
  for (PendingRequest& pending : waiting) {
    if (now < pending.not_before) {
      Wait(std::move(pending));
    } else {
      Begin(std::move(pending));  // which may enqueue it again
    }
  }
}

void Gateway::ListModels(absl::Duration age_max, OnModels done) {
  absl::StatusOr<Models> now =
      absl::ResourceExhaustedError("too many calls for the list of models at once");
  {
    absl::MutexLock lock(mu_);
    if (stopping_) {
      now = Stopping();
    } else if (models_ != nullptr && SteadyTime::Now() - models_at_ <= age_max) {
      now = models_;
    } else if (models_waiting_.size() < kModelsWaitingMax) {
      models_waiting_.push_back(std::move(done));
      return;
    }
  }
  std::move(done)(now);
}

void Gateway::RefreshModelList() {
  NameThread("model list");
  const auto is_due = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return stopping_ || !models_waiting_.empty();
  };
  while (true) {
    std::vector<OnModels> callbacks;
    bool stopping = false;
    {
      absl::MutexLock lock(mu_);
      mu_.Await(absl::Condition(&is_due));
      callbacks.swap(models_waiting_);
      stopping = stopping_;
    }
    absl::StatusOr<Models> models = Stopping();
    const SteadyTime at = SteadyTime::Now();
    if (!stopping) models = FetchModels();
    if (models.ok()) {
      absl::MutexLock lock(mu_);
      models_ = *models;
      models_at_ = at;
    }
    for (OnModels& done : callbacks) std::move(done)(models);
    if (stopping) return;
  }
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
    if (mu_.AwaitWithTimeout(absl::Condition(&stop), absl::Milliseconds(kTickMs))) {
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

}  // namespace strata
