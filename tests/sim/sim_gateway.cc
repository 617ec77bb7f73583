#include "tests/sim/sim_gateway.h"

#include <utility>

#include "absl/time/time.h"
#include "coordinator/models/coordinator.h"
#include "coordinator/request/generation_request.h"
#include "coordinator/request/request_status.h"
#include "node/gateway/gateway.h"

namespace strata {
namespace {

const int64_t kBeginUs = absl::ToInt64Microseconds(Gateway::Options().begin_time);
const int64_t kResumeUs = absl::ToInt64Microseconds(Gateway::Options().resume_time);
constexpr int64_t kResumePauseUs = absl::ToInt64Microseconds(kGatewayResumePause);
constexpr int64_t kConnectUs = absl::ToInt64Microseconds(kGatewayConnectTime);
constexpr int64_t kTickUs = 100'000;  // as in node/gateway/gateway.cc

// The text at the node that writes it, which tells the one that asked.
class Told final : public GenerationListener {
 public:
  struct To {
    std::function<void(std::vector<int32_t>)> started;
    std::function<void(wire::SampledToken)> token;
    std::function<void(absl::Status, FinishReason, GenerationUsage)> end;
  };
  Told(std::shared_ptr<SimWire> wire, To to) : wire_(std::move(wire)), to_(std::move(to)) {}

  void OnStarted(const std::vector<int32_t>& prompt) override {
    wire_->Send(1, [prompt, fn = to_.started] { fn(prompt); });
  }
  void OnToken(const wire::SampledToken& token) override {
    wire_->Send(1, [token, fn = to_.token] { fn(token); });
  }
  void OnEnd(absl::Status status, FinishReason reason, const GenerationUsage& usage) override {
    wire_->Send(1, [status, reason, usage, fn = to_.end] { fn(status, reason, usage); });
  }

 private:
  const std::shared_ptr<SimWire> wire_;  // shared with both ends
  const To to_;
};

}  // namespace

// As Gateway::Text.
class SimGateway::Text final : public GenerationHandle {
 public:
  explicit Text(std::shared_ptr<GenerationListener> sink) : call_(std::move(sink)) {}

  void Cancel() override { Say(&GenerationHandle::Cancel); }
  void Finish() override { Say(&GenerationHandle::Finish); }
  bool wanted() const { return call_.wanted(); }
  void Refuse(absl::Status status) { call_.Refuse(std::move(status)); }
  void SetSource(const std::shared_ptr<GenerationHandle>& source) {
    source_ = source;
    if (said_ != nullptr) (source.get()->*said_)();
  }

 private:
  using Word = void (GenerationHandle::*)();
  void Say(Word word) {
    (call_.*word)();
    if (said_ == nullptr) said_ = word;
    if (const auto source = source_) (source.get()->*word)();
  }

  GenerationCall call_;
  Word said_ = nullptr;
  std::shared_ptr<GenerationHandle> source_;  // shared with who runs it
};

// As Gateway::Local.
class SimGateway::Local final : public GenerationListener {
 public:
  Local(SimGateway* gateway, Asked asked)
      : gateway_(gateway), asked_(std::move(asked)), to_(asked_.sink) {}

  // Its process has ended.
  void Forget() { asked_ = Asked(); }

  void OnStarted(const std::vector<int32_t>& prompt) override {
    started_ = true;
    to_->OnStarted(prompt);
  }
  void OnToken(const wire::SampledToken& token) override { to_->OnToken(token); }
  void OnEnd(absl::Status status, FinishReason reason, const GenerationUsage& usage) override {
    Asked asked = std::move(asked_);
    const RetryDecision next = DecideRetry({.status = status,
                                            .started = started_,
                                            .resumed = asked.resumed,
                                            .wanted = asked.text->wanted()});
    asked.started = started_;
    if (next != RetryDecision::kFinish && asked.pass_on) {
      gateway_->Resume(std::move(asked), next, status);
    } else {
      to_->OnEnd(std::move(status), reason, usage);
    }
  }

 private:
  SimGateway* const gateway_;
  Asked asked_;
  const std::shared_ptr<ResumableGeneration> to_;  // shared with who asked
  bool started_ = false;
};

// As Gateway::Reader and RemoteGeneration: the call of a text that another node writes.
class SimGateway::Remote final : public GenerationHandle,
                                 public std::enable_shared_from_this<SimGateway::Remote> {
 public:
  Remote(SimGateway* gateway, Asked asked)
      : gateway_(gateway), asked_(std::move(asked)), to_(asked_.sink) {}

  void Start(size_t node) {
    const std::shared_ptr<Text> text = asked_.text;  // shared with who asked
    const auto self = shared_from_this();
    if (!gateway_->cluster().running(node)) {
      gateway_->options_.processes->After(gateway_->options_.node, 1'000, [self] {
        self->OnDone(NoCoordinator(), /*said_by_peer=*/false, FinishReason::kCancelled, {});
      });
      return text->SetSource(self);
    }
    const auto there = std::make_shared<std::shared_ptr<GenerationHandle>>();  // with the other end
    wire_ = SimWire::Open(gateway_->options_.processes,
                          {gateway_->options_.node,
                           [self] {
                             self->OnDone(absl::UnavailableError("the call broke"), false,
                                          FinishReason::kCancelled, {});
                           }},
                          {node, [there] {
                             if (*there != nullptr) (*there)->Cancel();
                           }});
    there_ = there;
    wire_->Send(0, [self, node, there, wire = wire_, request = asked_.request,
                    gateway_of = gateway_->options_.gateway_of] {
      Told::To to;
      to.started = [self](const std::vector<int32_t>& prompt) { self->OnStarted(prompt); };
      to.token = [self](const wire::SampledToken& token) {
        if (!self->done_) self->to_->OnToken(token);
      };
      to.end = [self](const absl::Status& status, FinishReason reason,
                      const GenerationUsage& usage) {
        self->OnDone(status, /*said_by_peer=*/true, reason, usage);
      };
      *there = gateway_of(node)->Generate(request, std::make_shared<Told>(wire, std::move(to)),
                                          /*pass_on=*/false);
    });
    text->SetSource(self);
  }

  // Its process has ended.
  void Forget() {
    done_ = true;
    asked_ = Asked();
    LetGo();
  }

  void Cancel() override {
    if (done_) return;
    if (wire_ != nullptr) wire_->Close(0);
    gateway_->options_.processes->After(
        gateway_->options_.node, 1'000, [self = shared_from_this()] {
          self->OnDone(absl::CancelledError("cancelled"), false, FinishReason::kCancelled, {});
        });
  }
  void Finish() override {
    if (!started_ || done_) return Cancel();
    wire_->Send(0, [there = there_] {
      if (*there != nullptr) (*there)->Finish();
    });
  }

 private:
  void OnStarted(const std::vector<int32_t>& prompt) {
    if (done_) return;
    started_ = true;
    to_->OnStarted(prompt);
  }
  void OnDone(const absl::Status& status, bool said_by_peer, FinishReason reason,
              const GenerationUsage& usage) {
    if (std::exchange(done_, true)) return;
    if (wire_ != nullptr) wire_->Close(0);
    LetGo();
    const RetryDecision next = DecideRetry({.status = status,
                                            .from_source = said_by_peer,
                                            .started = started_,
                                            .resumed = asked_.resumed,
                                            .wanted = asked_.text->wanted()});
    if (next == RetryDecision::kFinish) {
      to_->OnEnd(status, reason, usage);
      if (gateway_->options_.ends_twice) to_->OnEnd(status, reason, usage);
    } else {
      asked_.started = started_;
      gateway_->Resume(std::move(asked_), next, status);
    }
  }

  // The text at the other end holds this in turn.
  void LetGo() {
    wire_ = nullptr;
    there_ = nullptr;
  }

  SimGateway* const gateway_;
  Asked asked_;
  const std::shared_ptr<ResumableGeneration> to_;             // shared with who asked
  std::shared_ptr<SimWire> wire_;                             // shared with both ends
  std::shared_ptr<std::shared_ptr<GenerationHandle>> there_;  // shared with the other end
  bool started_ = false;
  bool done_ = false;
};

SimGateway::~SimGateway() {
  // A text and its source hold each other.
  for (const std::weak_ptr<Local>& local : locals_) {
    if (const auto still = local.lock()) still->Forget();
  }
  for (const std::weak_ptr<Remote>& remote : remotes_) {
    if (const auto still = remote.lock()) still->Forget();
  }
}

void SimGateway::Stop() {
  stopping_ = true;
  for (const Asked& asked : std::exchange(waiting_, {})) {
    asked.text->Refuse(absl::UnavailableError("the node is stopping"));
  }
}

std::shared_ptr<GenerationHandle> SimGateway::Generate(const wire::GenerateRequest& request,
                                                       std::shared_ptr<GenerationListener> sink,
                                                       bool pass_on) {
  const auto resumable = std::make_shared<ResumableGeneration>(request, std::move(sink));
  const auto text = std::make_shared<Text>(resumable);  // shared with who asked
  if (stopping_) {
    text->Refuse(absl::UnavailableError("the node is stopping"));
    return text;
  }
  Begin({.text = text,
         .request = request,
         .sink = resumable,
         .pass_on = pass_on,
         .until_us = now_us() + kBeginUs});
  return text;
}

void SimGateway::Begin(Asked asked) {
  const ClusterView& view = cluster().View(options_.node);
  asked.begun_us = now_us();
  if (view.is_coordinator) {
    const bool may_come = asked.resumed || options_.coordinator->MayReload();
    const absl::Status answers = may_come ? options_.coordinator->Answers() : absl::OkStatus();
    if (!answers.ok()) {
      asked.last = asked.resumed ? answers : Coordinator::Reloading();
      Wait(std::move(asked));
    } else {
      const wire::GenerateRequest request = asked.request;
      const std::shared_ptr<Text> text = asked.text;                       // shared with who asked
      const auto local = std::make_shared<Local>(this, std::move(asked));  // shared with its text
      std::erase_if(locals_, [](const auto& other) { return other.expired(); });
      locals_.push_back(local);
      const auto call = std::make_shared<GenerationCall>(local);
      text->SetSource(call);
      options_.coordinator->Generate(request, call);
    }
    return;
  }
  if (view.coordinator.is_nobody()) return Wait(std::move(asked));
  if (!asked.pass_on) {
    asked.text->Refuse(AsLeaderChanged(absl::UnavailableError("another node coordinates")));
    return;
  }
  const auto remote = std::make_shared<Remote>(this, std::move(asked));  // shared with its text
  std::erase_if(remotes_, [](const auto& other) { return other.expired(); });
  remotes_.push_back(remote);
  remote->Start(cluster().NumberOf(view.coordinator));
}

void SimGateway::Resume(Asked asked, RetryDecision how, const absl::Status& said) {
  const int64_t had_us = now_us() - asked.begun_us;
  if (had_us > kConnectUs) asked.until_us += had_us;
  const bool was_idle = how == RetryDecision::kRetry ||
                        (how == RetryDecision::kResume && IsLeaderChanged(said) && !asked.started);
  if (was_idle) asked.not_before_us = now_us() + kResumePauseUs;
  if (how == RetryDecision::kResume) return Resume(std::move(asked));
  if (how == RetryDecision::kRetry) asked.last = said;
  Wait(std::move(asked));
}

void SimGateway::Resume(Asked asked) {
  ++resumed_;
  if (asked.sink->started()) asked.request = asked.sink->Rest();
  if (options_.forgets_tokens) asked.request.clear_generated();
  if (!asked.resumed || asked.started) asked.until_us = now_us() + kResumeUs;
  asked.resumed = true;
  asked.started = false;
  asked.last = absl::OkStatus();
  if (options_.forgets_requests) return;
  Wait(std::move(asked));
}

void SimGateway::Wait(Asked asked) {
  absl::Status why = asked.last.ok() ? NoCoordinator() : asked.last;
  if (!asked.text->wanted()) {
    why = absl::CancelledError("nobody wants the text any more");
  } else if (stopping_) {
    why = absl::UnavailableError("the node is stopping");
  } else if (now_us() < asked.until_us && waiting_.size() < kRequestsWaitingMax) {
    waiting_.push_back(std::move(asked));
    return;
  }
  asked.text->Refuse(std::move(why));
}

void SimGateway::Tick() {
  options_.processes->After(options_.node, kTickUs, [this] { Tick(); });
  for (Asked& one : std::exchange(waiting_, {})) {
    if (now_us() < one.not_before_us) {
      Wait(std::move(one));
    } else {
      Begin(std::move(one));
    }
  }
}

}  // namespace strata
