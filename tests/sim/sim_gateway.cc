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

// The sink at the node that generates, which sends the output to the node of the client.
class RemoteSink final : public GenerationListener {
 public:
  struct Callbacks {
    std::function<void(std::vector<int32_t>)> started;
    std::function<void(wire::SampledToken)> token;
    std::function<void(absl::Status, FinishReason, GenerationUsage)> end;
  };
  RemoteSink(std::shared_ptr<SimConnection> connection, Callbacks callbacks)
      : connection_(std::move(connection)), callbacks_(std::move(callbacks)) {}

  void OnStarted(const std::vector<int32_t>& prompt) override {
    connection_->Send(1, [prompt, fn = callbacks_.started] { fn(prompt); });
  }
  void OnToken(const wire::SampledToken& token) override {
    connection_->Send(1, [token, fn = callbacks_.token] { fn(token); });
  }
  void OnEnd(absl::Status status, FinishReason reason, const GenerationUsage& usage) override {
    connection_->Send(1,
                      [status, reason, usage, fn = callbacks_.end] { fn(status, reason, usage); });
  }

 private:
  const std::shared_ptr<SimConnection> connection_;  // shared with both ends
  const Callbacks callbacks_;
};

}  // namespace

// The client's handle, as in node/gateway/gateway.cc.
class SimGateway::Generation final : public GenerationHandle {
 public:
  explicit Generation(std::shared_ptr<GenerationListener> sink) : call_(std::move(sink)) {}

  void Cancel() override { Forward(&GenerationHandle::Cancel); }
  void Finish() override { Forward(&GenerationHandle::Finish); }
  bool wanted() const { return call_.wanted(); }
  void Refuse(absl::Status status) { call_.Refuse(std::move(status)); }
  void SetSource(const std::shared_ptr<GenerationHandle>& source) {
    source_ = source;
    if (forwarded_ != nullptr) (source.get()->*forwarded_)();
  }

 private:
  using Method = void (GenerationHandle::*)();
  void Forward(Method method) {
    (call_.*method)();
    if (forwarded_ == nullptr) forwarded_ = method;
    if (const auto source = source_) (source.get()->*method)();
  }

  GenerationCall call_;
  Method forwarded_ = nullptr;
  std::shared_ptr<GenerationHandle> source_;  // shared with the node that runs it
};

// As Gateway::Local.
class SimGateway::Local final : public GenerationListener {
 public:
  Local(SimGateway* gateway, PendingRequest pending)
      : gateway_(gateway), pending_(std::move(pending)), to_(pending_.sink) {}

  // Its process has ended.
  void Forget() { pending_ = PendingRequest(); }

  void OnStarted(const std::vector<int32_t>& prompt) override {
    started_ = true;
    to_->OnStarted(prompt);
  }
  void OnToken(const wire::SampledToken& token) override { to_->OnToken(token); }
  void OnEnd(absl::Status status, FinishReason reason, const GenerationUsage& usage) override {
    PendingRequest pending = std::move(pending_);
    const RetryDecision next = DecideRetry({.status = status,
                                            .started = started_,
                                            .resumed = pending.resumed,
                                            .wanted = pending.generation->wanted()});
    pending.started = started_;
    if (next != RetryDecision::kFinish && pending.pass_on) {
      gateway_->Resume(std::move(pending), next, status);
    } else {
      to_->OnEnd(std::move(status), reason, usage);
    }
  }

 private:
  SimGateway* const gateway_;
  PendingRequest pending_;
  const std::shared_ptr<ResumableGeneration> to_;  // shared with the client
  bool started_ = false;
};

// As Gateway::Reader and RemoteGeneration: the call of a request that another node serves.
class SimGateway::Remote final : public GenerationHandle,
                                 public std::enable_shared_from_this<SimGateway::Remote> {
 public:
  Remote(SimGateway* gateway, PendingRequest pending)
      : gateway_(gateway), pending_(std::move(pending)), to_(pending_.sink) {}

  void Start(size_t node) {
    const std::shared_ptr<Generation> generation = pending_.generation;  // shared with the client
    const auto self = shared_from_this();
    if (!gateway_->cluster().running(node)) {
      gateway_->options_.processes->After(gateway_->options_.node, 1'000, [self] {
        self->OnDone(NoCoordinator(), /*said_by_peer=*/false, FinishReason::kCancelled, {});
      });
      return generation->SetSource(self);
    }
    const auto there = std::make_shared<std::shared_ptr<GenerationHandle>>();  // with the other end
    connection_ = SimConnection::Open(gateway_->options_.processes,
                                      {gateway_->options_.node,
                                       [self] {
                                         self->OnDone(absl::UnavailableError("the call broke"),
                                                      false, FinishReason::kCancelled, {});
                                       }},
                                      {node, [there] {
                                         if (*there != nullptr) (*there)->Cancel();
                                       }});
    there_ = there;
    connection_->Send(0, [self, node, there, connection = connection_, request = pending_.request,
                          gateway_of = gateway_->options_.gateway_of] {
      RemoteSink::Callbacks callbacks;
      callbacks.started = [self](const std::vector<int32_t>& prompt) { self->OnStarted(prompt); };
      callbacks.token = [self](const wire::SampledToken& token) {
        if (!self->done_) self->to_->OnToken(token);
      };
      callbacks.end = [self](const absl::Status& status, FinishReason reason,
                             const GenerationUsage& usage) {
        self->OnDone(status, /*said_by_peer=*/true, reason, usage);
      };
      *there = gateway_of(node)->Generate(
          request, std::make_shared<RemoteSink>(connection, std::move(callbacks)),
          /*pass_on=*/false);
    });
    generation->SetSource(self);
  }

  // Its process has ended.
  void Forget() {
    done_ = true;
    pending_ = PendingRequest();
    Detach();
  }

  void Cancel() override {
    if (done_) return;
    if (connection_ != nullptr) connection_->Close(0);
    gateway_->options_.processes->After(
        gateway_->options_.node, 1'000, [self = shared_from_this()] {
          self->OnDone(absl::CancelledError("cancelled"), false, FinishReason::kCancelled, {});
        });
  }
  void Finish() override {
    if (!started_ || done_) return Cancel();
    connection_->Send(0, [there = there_] {
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
    if (connection_ != nullptr) connection_->Close(0);
    Detach();
    const RetryDecision next = DecideRetry({.status = status,
                                            .from_source = said_by_peer,
                                            .started = started_,
                                            .resumed = pending_.resumed,
                                            .wanted = pending_.generation->wanted()});
    if (next == RetryDecision::kFinish) {
      to_->OnEnd(status, reason, usage);
      if (gateway_->options_.ends_twice) to_->OnEnd(status, reason, usage);
    } else {
      pending_.started = started_;
      gateway_->Resume(std::move(pending_), next, status);
    }
  }

  // The generation at the other end holds this in turn.
  void Detach() {
    connection_ = nullptr;
    there_ = nullptr;
  }

  SimGateway* const gateway_;
  PendingRequest pending_;
  const std::shared_ptr<ResumableGeneration> to_;             // shared with the client
  std::shared_ptr<SimConnection> connection_;                 // shared with both ends
  std::shared_ptr<std::shared_ptr<GenerationHandle>> there_;  // shared with the other end
  bool started_ = false;
  bool done_ = false;
};

SimGateway::~SimGateway() {
  // A generation and its source hold each other.
  for (const std::weak_ptr<Local>& local : locals_) {
    if (const auto still = local.lock()) still->Forget();
  }
  for (const std::weak_ptr<Remote>& remote : remotes_) {
    if (const auto still = remote.lock()) still->Forget();
  }
}

void SimGateway::Stop() {
  stopping_ = true;
  for (const PendingRequest& pending : std::exchange(waiting_, {})) {
    pending.generation->Refuse(absl::UnavailableError("the node is stopping"));
  }
}

std::shared_ptr<GenerationHandle> SimGateway::Generate(const wire::GenerateRequest& request,
                                                       std::shared_ptr<GenerationListener> sink,
                                                       bool pass_on) {
  const auto resumable = std::make_shared<ResumableGeneration>(request, std::move(sink));
  const auto generation = std::make_shared<Generation>(resumable);  // shared with the client
  if (stopping_) {
    generation->Refuse(absl::UnavailableError("the node is stopping"));
    return generation;
  }
  Begin({.generation = generation,
         .request = request,
         .sink = resumable,
         .pass_on = pass_on,
         .until_us = now_us() + kBeginUs});
  return generation;
}

void SimGateway::Begin(PendingRequest pending) {
  const ClusterView& view = cluster().View(options_.node);
  pending.begun_us = now_us();
  if (view.is_coordinator) {
    const bool may_come = pending.resumed || options_.coordinator->MayReload();
    const absl::Status answers = may_come ? options_.coordinator->Answers() : absl::OkStatus();
    if (!answers.ok()) {
      pending.last = pending.resumed ? answers : Coordinator::Reloading();
      Wait(std::move(pending));
    } else {
      const wire::GenerateRequest request = pending.request;
      const std::shared_ptr<Generation> generation = pending.generation;  // shared with the client
      const auto local =
          std::make_shared<Local>(this, std::move(pending));  // shared with its generation
      std::erase_if(locals_, [](const auto& other) { return other.expired(); });
      locals_.push_back(local);
      const auto call = std::make_shared<GenerationCall>(local);
      generation->SetSource(call);
      options_.coordinator->Generate(request, call);
    }
    return;
  }
  if (view.coordinator.is_nobody()) return Wait(std::move(pending));
  if (!pending.pass_on) {
    pending.generation->Refuse(AsLeaderChanged(absl::UnavailableError("another node coordinates")));
    return;
  }
  const auto remote =
      std::make_shared<Remote>(this, std::move(pending));  // shared with its generation
  std::erase_if(remotes_, [](const auto& other) { return other.expired(); });
  remotes_.push_back(remote);
  remote->Start(cluster().NumberOf(view.coordinator));
}

void SimGateway::Resume(PendingRequest pending, RetryDecision how, const absl::Status& status) {
  const int64_t had_us = now_us() - pending.begun_us;
  if (had_us > kConnectUs) pending.until_us += had_us;
  const bool was_idle =
      how == RetryDecision::kRetry ||
      (how == RetryDecision::kResume && IsLeaderChanged(status) && !pending.started);
  if (was_idle) pending.not_before_us = now_us() + kResumePauseUs;
  if (how == RetryDecision::kResume) return Resume(std::move(pending));
  if (how == RetryDecision::kRetry) pending.last = status;
  Wait(std::move(pending));
}

void SimGateway::Resume(PendingRequest pending) {
  ++resumed_;
  if (pending.sink->started()) pending.request = pending.sink->Rest();
  if (options_.forgets_tokens) pending.request.clear_generated();
  if (!pending.resumed || pending.started) pending.until_us = now_us() + kResumeUs;
  pending.resumed = true;
  pending.started = false;
  pending.last = absl::OkStatus();
  if (options_.forgets_requests) return;
  Wait(std::move(pending));
}

void SimGateway::Wait(PendingRequest pending) {
  absl::Status why = pending.last.ok() ? NoCoordinator() : pending.last;
  if (!pending.generation->wanted()) {
    why = absl::CancelledError("the client cancelled the request");
  } else if (stopping_) {
    why = absl::UnavailableError("the node is stopping");
  } else if (now_us() < pending.until_us && waiting_.size() < kRequestsWaitingMax) {
    waiting_.push_back(std::move(pending));
    return;
  }
  pending.generation->Refuse(std::move(why));
}

void SimGateway::Tick() {
  options_.processes->After(options_.node, kTickUs, [this] { Tick(); });
  for (PendingRequest& one : std::exchange(waiting_, {})) {
    if (now_us() < one.not_before_us) {
      Wait(std::move(one));
    } else {
      Begin(std::move(one));
    }
  }
}

}  // namespace strata
