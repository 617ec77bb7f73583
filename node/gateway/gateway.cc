#include "node/gateway/gateway.h"

#include <utility>

#include "absl/log/log.h"
#include "coordinator/request/request_status.h"
#include "coordinator/request/text_request.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"
#include "node/gateway/text_wire.h"
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
  return text.pass_on ? Stopping() : AsHandedOver(Stopping());
}

using Stub = wire::Coordinator::Stub;

// The call of a text that another node writes, if one does. Thread-safe.
class RemoteText final : public TextControl, public std::enable_shared_from_this<RemoteText> {
 public:
  RemoteText() { context_.AddMetadata(kForwardedKey, "1"); }

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
      wire::FinishTextRequest request;
      wire::FinishTextResponse response;
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
    stub->async()->FinishText(&call->context, &call->request, &call->response,
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
class Gateway::Text final : public TextControl {
 public:
  explicit Text(std::shared_ptr<TextSink> sink) : call_(std::move(sink)) {}

  void Cancel() override { Say(&TextControl::Cancel); }
  void Finish() override { Say(&TextControl::Finish); }
  bool wanted() const { return call_.wanted(); }
  // While it has no source.
  void Refuse(absl::Status status) { call_.Refuse(std::move(status)); }

  // Takes the place of the source before, and hears what was said meanwhile.
  void SetSource(const std::shared_ptr<TextControl>& source) {
    Word said = nullptr;
    {
      absl::MutexLock lock(mu_);
      source_ = source;
      said = said_;
    }
    if (said != nullptr) (source.get()->*said)();
  }

 private:
  using Word = void (TextControl::*)();

  void Say(Word word) {
    (call_.*word)();
    std::shared_ptr<TextControl> source;
    {
      absl::MutexLock lock(mu_);
      if (said_ == nullptr) said_ = word;
      source = source_;
    }
    if (source != nullptr) (source.get()->*word)();
  }

  TextCall call_;
  absl::Mutex mu_;
  Word said_ ABSL_GUARDED_BY(mu_) = nullptr;                  // first
  std::shared_ptr<TextControl> source_ ABSL_GUARDED_BY(mu_);  // shared with who runs it
};

// Hears what this node writes.
class Gateway::Local final : public TextSink {
 public:
  Local(Gateway* gateway, Asked asked)
      : gateway_(gateway), gate_(gateway->gate_), asked_(std::move(asked)), to_(asked_.sink) {}

  void OnStarted(const std::vector<int32_t>& prompt) override {
    started_ = true;
    to_->OnStarted(prompt);
  }
  void OnToken(const wire::SampledToken& token) override { to_->OnToken(token); }
  void OnEnd(absl::Status status, FinishReason reason, const TextUsage& usage) override {
    Asked asked = std::move(asked_);  // and lets go of the text, which holds this
    asked.started = started_;
    const AfterSource next = WhatFollows({.status = status,
                                          .started = started_,
                                          .resumed = asked.resumed,
                                          .wanted = asked.text->wanted()});
    // Who passed it on goes on with it elsewhere.
    if (next != AfterSource::kEnds && asked.options.pass_on && gate_->TryEnter()) {
      gateway_->GoOn(std::move(asked), next, status);
      gate_->Leave();
    } else {
      to_->OnEnd(std::move(status), reason, usage);
    }
  }

 private:
  Gateway* const gateway_;            // only inside the gate
  const std::shared_ptr<Gate> gate_;  // shared with the gateway
  Asked asked_;
  const std::shared_ptr<ResumableText> to_;  // shared with who asked
  bool started_ = false;
};

// Reads what another node writes. Its own, until the call's end.
class Gateway::Reader final : public grpc::ClientReadReactor<wire::GenerateTextEvent> {
 public:
  Reader(Gateway* gateway, Asked asked, std::shared_ptr<Stub> stub)
      : gateway_(gateway), asked_(std::move(asked)), to_(asked_.sink), stub_(std::move(stub)) {
    gateway_->gate_->Enter();
    asked_.text->SetSource(text_);
  }

  void Start() {
    stub_->async()->GenerateText(text_->context(), &asked_.request, this);
    StartRead(&event_);
    StartCall();
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    switch (event_.event_case()) {
      case wire::GenerateTextEvent::kStarted: {
        const auto& prompt = event_.started().prompt();
        started_ = true;
        text_->Started(stub_, event_.started().text());
        to_->OnStarted({prompt.begin(), prompt.end()});
        break;
      }
      case wire::GenerateTextEvent::kToken:
        to_->OnToken(event_.token());
        break;
      case wire::GenerateTextEvent::kEnded:
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
    const AfterSource next = WhatFollows({.status = said,
                                          .said_by_source = SaidByPeer(status),
                                          .started = started_,
                                          .resumed = asked_.resumed,
                                          .wanted = asked_.text->wanted()});
    if (next == AfterSource::kEnds) {
      to_->OnEnd(said, ended_.reason, ended_.usage);
    } else {
      asked_.started = started_;
      gateway->GoOn(std::move(asked_), next, said);
    }
    const std::shared_ptr<Gate> gate = gateway->gate_;
    delete this;
    gate->Leave();
  }

  Gateway* const gateway_;
  Asked asked_;
  const std::shared_ptr<ResumableText> to_;  // shared with who asked
  const std::shared_ptr<Stub> stub_;         // shared with calls about the text
  const std::shared_ptr<RemoteText> text_ = std::make_shared<RemoteText>();  // with the text
  bool started_ = false;
  wire::GenerateTextEvent event_;
  EndedText ended_;
};

Gateway::Gateway(EventLoop* loop, ClusterRuntime* cluster, Coordinator* coordinator,
                 Options options)
    : loop_(loop), cluster_(cluster), coordinator_(coordinator), options_(options), lister_([this] {
        KeepList();
      }) {}

Gateway::~Gateway() {
  Stop();
  lister_.join();
  gate_->Wait();
}

void Gateway::Stop() {
  std::vector<Asked> left;
  {
    absl::MutexLock lock(mu_);
    stopping_ = true;
    left.swap(asked_);
    for (Asked& asked : texts_waiting_) left.push_back(std::move(asked));
    texts_waiting_.clear();
  }
  for (const Asked& asked : left) asked.text->Refuse(Stopping(asked.options));
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

std::shared_ptr<TextControl> Gateway::Generate(const wire::GenerateTextRequest& request,
                                               std::shared_ptr<TextSink> sink,
                                               GenerateOptions options) {
  auto resumable = std::make_shared<ResumableText>(request, std::move(sink));
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
  std::vector<Asked> asked;
  {
    absl::MutexLock lock(mu_);
    asked.swap(asked_);
  }
  for (Asked& one : asked) Begin(std::move(one));
}

void Gateway::Begin(Asked asked) {
  const ClusterView& view = cluster_->view();
  asked.begun = SteadyTime::Now();
  if (view.is_coordinator) {
    const bool may_come = asked.resumed || coordinator_->Adopts();
    const absl::Status answers =
        may_come ? coordinator_->Answers(asked.request.model()) : absl::OkStatus();
    const bool is_unknown = absl::IsNotFound(answers) && !asked.resumed;
    if (!answers.ok() && !is_unknown) {
      asked.last = asked.resumed ? answers : Coordinator::LoadingAgain();
      Wait(std::move(asked));
    } else {
      const wire::GenerateTextRequest request = asked.request;
      const std::shared_ptr<Text> text = asked.text;  // shared with who asked
      const auto call = std::make_shared<TextCall>(std::make_shared<Local>(this, std::move(asked)));
      text->SetSource(call);
      coordinator_->Generate(request, call);
    }
    return;
  }
  if (!asked.options.pass_on && !view.coordinator.is_nobody()) {
    asked.text->Refuse(AsHandedOver(absl::UnavailableError("another node coordinates")));
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

void Gateway::GoOn(Asked asked, AfterSource how, const absl::Status& said) {
  const absl::Duration had = SteadyTime::Now() - asked.begun;
  if (had > kGatewayConnectTime) asked.until += had;
  // Who took it and had not begun with it would say the same at once.
  const bool was_idle = how == AfterSource::kAsksAgain ||
                        (how == AfterSource::kResumes && IsHandedOver(said) && !asked.started);
  if (was_idle) asked.not_before = SteadyTime::Now() + kGatewayResumePause;
  if (how == AfterSource::kResumes) return Resume(std::move(asked));
  if (how == AfterSource::kAsksAgain) asked.last = said;
  Wait(std::move(asked));
}

void Gateway::Resume(Asked asked) {
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

void Gateway::Wait(Asked asked) {
  absl::Status why = asked.last.ok() ? NoCoordinator() : asked.last;
  if (!asked.text->wanted()) {
    why = absl::CancelledError("nobody wants the text any more");
  } else if (SteadyTime::Now() < asked.until) {
    absl::MutexLock lock(mu_);
    if (stopping_) {
      why = Stopping(asked.options);
    } else if (texts_waiting_.size() < kTextsWaitingMax) {
      texts_waiting_.push_back(std::move(asked));
      if (texts_waiting_.size() > 1) return;
      loop_->Post([this] { tick_ = loop_->StartTimer({.delay_ms = kTickMs}, [this] { Tick(); }); });
      return;
    }
  }
  asked.text->Refuse(std::move(why));
}

void Gateway::Tick() {
  std::vector<Asked> asked;
  {
    absl::MutexLock lock(mu_);
    asked.swap(texts_waiting_);
  }
  const SteadyTime now = SteadyTime::Now();
  for (Asked& one : asked) {
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

void Gateway::KeepList() {
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
  const SteadyTime until = SteadyTime::Now() + options_.office_time;
  const auto stop = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stopping_; };
  while (true) {
    absl::StatusOr<Models> models = FetchOnce();
    if (!absl::IsUnavailable(models.status()) || SteadyTime::Now() >= until) return models;
    // One that has just lost its coordinator may have another soon; one that coordinates knows why.
    if (!IsHandedOver(models.status()) && coordinator_->office().mine) return models;
    absl::MutexLock lock(mu_);
    if (mu_.AwaitWithTimeout(absl::Condition(&stop), absl::Milliseconds(kTickMs))) {
      return Stopping();
    }
  }
}

absl::StatusOr<Gateway::Models> Gateway::FetchOnce() {
  const Coordinator::Office office = coordinator_->office();
  auto list = std::make_shared<ModelList>();  // shared by all who asked
  if (office.mine) {
    auto models = coordinator_->Models();
    if (!models.ok()) return models.status();
    *list = *std::move(models);
    return list;
  }
  if (office.address.empty()) return NoCoordinator(office.refused);
  grpc::ClientContext context;
  context.AddMetadata(kForwardedKey, "1");
  context.set_deadline(DeadlineIn(kListTime));
  wire::ListModelsResponse response;
  const grpc::Status status =
      StubAt(office.address)->ListModels(&context, wire::ListModelsRequest(), &response);
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
