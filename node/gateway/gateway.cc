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
// A text that cannot be finished by then is cancelled.
constexpr absl::Duration kFinishTime = absl::Seconds(5);

constexpr uint64_t kTickMs = 100;

absl::Status Stopping() { return absl::UnavailableError("the node is stopping"); }

// Who passed the text on goes on with it elsewhere.
absl::Status Stopping(const Gateway::GenerateOptions& text) {
  return text.pass_on ? Stopping() : AsLeaderChanged(Stopping());
}

using Stub = wire::Coordinator::Stub;

// The call of a text that another node writes, if one does. Thread-safe.
class RemoteGeneration final : public GenerationHandle,
                               public std::enable_shared_from_this<RemoteGeneration> {
 public:
  RemoteGeneration() { context_.AddMetadata(kForwardedKey, "1"); }

  grpc::ClientContext* context() { return &context_; }
  // The other node has taken it, under this number; `stub` reaches that node.
  void Started(std::shared_ptr<Stub> stub, uint64_t number) {
    absl::MutexLock lock(mu_);
    stub_ = std::move(stub);
    number_ = number;
  }

  void Cancel() override { context_.TryCancel(); }
  // What the other node says at its end still comes.
  void Finish() override {
    struct Call {
      grpc::ClientContext context;
      wire::FinishGenerationRequest request;
      wire::FinishGenerationResponse response;
    };
    const auto call = std::make_shared<Call>();  // shared with its own end
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

// A text that is written here or elsewhere, by one source after the other.
class Gateway::Text final : public GenerationHandle {
 public:
  explicit Text(std::shared_ptr<GenerationSink> sink) : call_(std::move(sink)) {}

  void Cancel() override { Say(&GenerationHandle::Cancel); }
  void Finish() override { Say(&GenerationHandle::Finish); }
  bool wanted() const { return call_.wanted(); }
  // While it has no source.
  void Refuse(absl::Status status) { call_.Refuse(std::move(status)); }

  // Takes the place of the source before, and hears what was said meanwhile.
  void SetSource(const std::shared_ptr<GenerationHandle>& source) {
    Word said = nullptr;
    {
      absl::MutexLock lock(mu_);
      source_ = source;
      said = said_;
    }
    if (said != nullptr) (source.get()->*said)();
  }

 private:
  using Word = void (GenerationHandle::*)();

  void Say(Word word) {
    (call_.*word)();
    std::shared_ptr<GenerationHandle> source;
    {
      absl::MutexLock lock(mu_);
      if (said_ == nullptr) said_ = word;
      source = source_;
    }
    if (source != nullptr) (source.get()->*word)();
  }

  GenerationCall call_;
  absl::Mutex mu_;
  Word said_ ABSL_GUARDED_BY(mu_) = nullptr;                       // first
  std::shared_ptr<GenerationHandle> source_ ABSL_GUARDED_BY(mu_);  // shared with who runs it
};

// Hears what this node writes.
class Gateway::Local final : public GenerationSink {
 public:
  Local(Gateway* gateway, PendingRequest asked)
      : gateway_(gateway), gate_(gateway->gate_), asked_(std::move(asked)), to_(asked_.sink) {}

  void OnStarted(const std::vector<int32_t>& prompt) override {
    started_ = true;
    to_->OnStarted(prompt);
  }
  void OnToken(const wire::SampledToken& token) override { to_->OnToken(token); }
  void OnEnd(absl::Status status, FinishReason reason, const GenerationUsage& usage) override {
    PendingRequest asked = std::move(asked_);  // and lets go of the text, which holds this
    asked.started = started_;
    const RetryDecision next = DecideRetry({.status = status,
                                            .started = started_,
                                            .resumed = asked.resumed,
                                            .wanted = asked.text->wanted()});
    // Who passed it on goes on with it elsewhere.
    if (next != RetryDecision::kFinish && asked.options.pass_on && gate_->TryEnter()) {
      gateway_->GoOn(std::move(asked), next, status);
      gate_->Leave();
    } else {
      to_->OnEnd(std::move(status), reason, usage);
    }
  }

 private:
  Gateway* const gateway_;                    // only inside the gate
  const std::shared_ptr<CallbackGate> gate_;  // shared with the gateway
  PendingRequest asked_;
  const std::shared_ptr<ResumableGeneration> to_;  // shared with who asked
  bool started_ = false;
};

// Reads what another node writes. Its own, until the call's end.
class Gateway::Reader final : public grpc::ClientReadReactor<wire::GenerateEvent> {
 public:
  Reader(Gateway* gateway, PendingRequest asked, std::shared_ptr<Stub> stub)
      : gateway_(gateway), asked_(std::move(asked)), to_(asked_.sink), stub_(std::move(stub)) {
    gateway_->gate_->Enter();
    asked_.text->SetSource(text_);
  }

  void Start() {
    stub_->async()->Generate(text_->context(), &asked_.request, this);
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
        text_->Started(stub_, event_.started().text());
        to_->OnStarted({prompt.begin(), prompt.end()});
        break;
      }
      case wire::GenerateEvent::kToken:
        to_->OnToken(event_.token());
        break;
      case wire::GenerateEvent::kEnded:
        ended_ = EndedFromWire(event_.ended());
        break;
      default:
        break;
    }
    event_.Clear();
    StartRead(&event_);
  }
  void OnDone(const grpc::Status& status) override {
    Gateway* const gateway = gateway_;
    const absl::Status said = TextStatusFromGrpc(status);
    const RetryDecision next = DecideRetry({.status = said,
                                            .said_by_source = SaidByPeer(status),
                                            .started = started_,
                                            .resumed = asked_.resumed,
                                            .wanted = asked_.text->wanted()});
    if (next == RetryDecision::kFinish) {
      to_->OnEnd(said, ended_.reason, ended_.usage);
    } else {
      asked_.started = started_;
      gateway->GoOn(std::move(asked_), next, said);
    }
    const std::shared_ptr<CallbackGate> gate = gateway->gate_;
    delete this;
    gate->Leave();
  }

  Gateway* const gateway_;
  PendingRequest asked_;
  const std::shared_ptr<ResumableGeneration> to_;  // shared with who asked
  const std::shared_ptr<Stub> stub_;               // shared with calls about the text
  const std::shared_ptr<RemoteGeneration> text_ =
      std::make_shared<RemoteGeneration>();  // with the text
  bool started_ = false;
  wire::GenerateEvent event_;
  EndedGeneration ended_;
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
    left.swap(asked_);
    for (PendingRequest& asked : requests_waiting_) left.push_back(std::move(asked));
    requests_waiting_.clear();
  }
  for (const PendingRequest& asked : left) asked.text->Refuse(Stopping(asked.options));
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
                                                    std::shared_ptr<GenerationSink> sink,
                                                    GenerateOptions options) {
  auto resumable = std::make_shared<ResumableGeneration>(request, std::move(sink));
  auto text = std::make_shared<Text>(resumable);  // shared with who asked
  {
    absl::MutexLock lock(mu_);
    if (!stopping_) {
      asked_.push_back({.text = text,
                        .request = request,
                        .sink = std::move(resumable),
                        .options = options,
                        .until = SteadyTime::Now() + options_.begin_time,
                        .last = absl::OkStatus()});
      // One turn of the loop is enough for all who come until then.
      if (asked_.size() == 1) loop_->Post([this] { Pump(); });
      return text;
    }
  }
  text->Refuse(Stopping(options));
  return text;
}

void Gateway::Pump() {
  std::vector<PendingRequest> asked;
  {
    absl::MutexLock lock(mu_);
    asked.swap(asked_);
  }
  for (PendingRequest& one : asked) Begin(std::move(one));
}

void Gateway::Begin(PendingRequest asked) {
  const ClusterView& view = cluster_->view();
  asked.begun = SteadyTime::Now();
  if (view.is_coordinator) {
    const bool may_come = asked.resumed || coordinator_->MayReload();
    const absl::Status answers =
        may_come ? coordinator_->Answers(asked.request.model()) : absl::OkStatus();
    const bool is_unknown = absl::IsNotFound(answers) && !asked.resumed;
    if (!answers.ok() && !is_unknown) {
      asked.last = asked.resumed ? answers : Coordinator::LoadingAgain();
      Wait(std::move(asked));
    } else {
      const wire::GenerateRequest request = asked.request;
      const std::shared_ptr<Text> text = asked.text;  // shared with who asked
      const auto call =
          std::make_shared<GenerationCall>(std::make_shared<Local>(this, std::move(asked)));
      text->SetSource(call);
      coordinator_->Generate(request, call);
    }
    return;
  }
  if (!asked.options.pass_on && !view.coordinator.is_nobody()) {
    asked.text->Refuse(AsLeaderChanged(absl::UnavailableError("another node coordinates")));
    return;
  }
  const std::string address =
      view.coordinator.is_nobody() ? "" : cluster_->AddressOf(view.coordinator);
  if (address.empty()) {
    if (view.refused) asked.last = NoCoordinator(cluster_->WhyRefused());
    Wait(std::move(asked));
  } else {
    (new Reader(this, std::move(asked), StubAt(address)))->Start();
  }
}

void Gateway::GoOn(PendingRequest asked, RetryDecision how, const absl::Status& said) {
  const absl::Duration had = SteadyTime::Now() - asked.begun;
  if (had > kGatewayConnectTime) asked.until += had;
  // Who took it and had not begun with it would say the same at once.
  const bool was_idle = how == RetryDecision::kRetry ||
                        (how == RetryDecision::kResume && IsLeaderChanged(said) && !asked.started);
  if (was_idle) asked.not_before = SteadyTime::Now() + kGatewayResumePause;
  if (how == RetryDecision::kResume) return Resume(std::move(asked));
  if (how == RetryDecision::kRetry) asked.last = said;
  Wait(std::move(asked));
}

void Gateway::Resume(PendingRequest asked) {
  LOG_EVERY_N_SEC(WARNING, 1) << "the node that coordinated does no more; texts go on when another "
                                 "one has their models";
  if (asked.sink->started()) asked.request = asked.sink->Rest();
  // Each source that begins with it gives it as much time again.
  if (!asked.resumed || asked.started) asked.until = SteadyTime::Now() + options_.resume_time;
  asked.resumed = true;
  asked.started = false;
  asked.last = absl::OkStatus();
  Wait(std::move(asked));
}

void Gateway::Wait(PendingRequest asked) {
  absl::Status why = asked.last.ok() ? NoCoordinator() : asked.last;
  if (!asked.text->wanted()) {
    why = absl::CancelledError("nobody wants the text any more");
  } else if (SteadyTime::Now() < asked.until) {
    absl::MutexLock lock(mu_);
    if (stopping_) {
      why = Stopping(asked.options);
    } else if (requests_waiting_.size() < kRequestsWaitingMax) {
      requests_waiting_.push_back(std::move(asked));
      if (requests_waiting_.size() > 1) return;
      loop_->Post([this] { tick_ = loop_->StartTimer({.delay_ms = kTickMs}, [this] { Tick(); }); });
      return;
    }
  }
  asked.text->Refuse(std::move(why));
}

void Gateway::Tick() {
  std::vector<PendingRequest> asked;
  {
    absl::MutexLock lock(mu_);
    asked.swap(requests_waiting_);
  }
  const SteadyTime now = SteadyTime::Now();
  for (PendingRequest& one : asked) {
    if (now < one.not_before) {
      Wait(std::move(one));
    } else {
      Begin(std::move(one));  // or it waits on
    }
  }
}

void Gateway::ListModels(absl::Duration age_max, OnModels done) {
  absl::StatusOr<Models> now = absl::ResourceExhaustedError("too many ask for the models at once");
  {
    absl::MutexLock lock(mu_);
    if (stopping_) {
      now = Stopping();
    } else if (models_ != nullptr && SteadyTime::Now() - models_at_ <= age_max) {
      now = models_;
    } else if (waiting_.size() < kModelsWaitingMax) {
      waiting_.push_back(std::move(done));
      return;
    }
  }
  std::move(done)(now);
}

void Gateway::RefreshModelList() {
  NameThread("model list");
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
    absl::StatusOr<Models> models = Stopping();
    const SteadyTime at = SteadyTime::Now();
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
  const SteadyTime until = SteadyTime::Now() + options_.leadership_time;
  const auto stop = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stopping_; };
  while (true) {
    absl::StatusOr<Models> models = FetchOnce();
    if (!absl::IsUnavailable(models.status()) || SteadyTime::Now() >= until) return models;
    // One that has just lost its coordinator may have another soon; one that coordinates knows why.
    if (!IsLeaderChanged(models.status()) && coordinator_->leadership().mine) return models;
    absl::MutexLock lock(mu_);
    if (mu_.AwaitWithTimeout(absl::Condition(&stop), absl::Milliseconds(kTickMs))) {
      return Stopping();
    }
  }
}

absl::StatusOr<Gateway::Models> Gateway::FetchOnce() {
  const Coordinator::Leadership leadership = coordinator_->leadership();
  auto list = std::make_shared<ModelList>();  // shared by all who asked
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
    const absl::Status plain = TextStatusFromGrpc(status);
    return absl::UnavailableError(SaidByPeer(status) ? plain.message() : NoCoordinator().message());
  }
  MakePrintable(&response);
  list->assign(response.models().begin(), response.models().end());
  return list;
}

}  // namespace strata
