#include "node/gateway/request_router.h"

#include <utility>

#include "absl/log/log.h"
#include "coordinator/request/request_status.h"

namespace strata {
namespace {

// The node that forwarded the request resumes it elsewhere.
absl::Status Stopping(bool pass_on) {
  absl::Status status = absl::UnavailableError("the node is stopping");
  return pass_on ? status : AsLeaderChanged(std::move(status));
}

}  // namespace

absl::Status NoCoordinator(const std::string& why) {
  return WithRetryAfterMs(
      absl::UnavailableError(
          why.empty() ? "no node coordinates at present; try again in a few seconds" : why),
      kRetrySoonMs);
}

// The client's way to the source that runs its request, one after the other. Thread-safe.
class RequestAttempt::Handle final : public GenerationHandle {
 public:
  void Cancel() override { Stop(&GenerationHandle::Cancel); }
  void Finish() override { Stop(&GenerationHandle::Finish); }
  bool wanted() const {
    absl::MutexLock lock(mu_);
    return stop_ == nullptr;
  }
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
    std::shared_ptr<GenerationHandle> source;
    {
      absl::MutexLock lock(mu_);
      if (stop_ == nullptr) stop_ = stop;
      source = source_;
    }
    if (source != nullptr) (source.get()->*stop)();
  }

  mutable absl::Mutex mu_;
  StopMethod stop_ ABSL_GUARDED_BY(mu_) = nullptr;                 // the first one called
  std::shared_ptr<GenerationHandle> source_ ABSL_GUARDED_BY(mu_);  // shared with its runner
};

struct RequestAttempt::Request {
  wire::GenerateRequest request;                // for the next source
  std::shared_ptr<Handle> handle;               // shared with the client
  std::shared_ptr<ResumableGeneration> output;  // shared with nobody but calls in progress
  bool pass_on = true;
  SteadyTime until;      // deadline of the wait, extended by the time that a node had the request
  SteadyTime begun;      // at the last source
  bool resumed = false;  // it has begun at an earlier source
  bool started = false;  // at the last source
  absl::Status last;     // why it waits; OK: no node coordinates
  SteadyTime not_before = SteadyTime::InfinitePast();

  void End(absl::Status status) { output->OnEnd(std::move(status), FinishReason::kCancelled, {}); }
};

RequestAttempt::RequestAttempt(RequestRouter* router, std::unique_ptr<Request> request)
    : router_(router), gate_(router->gate_), request_(std::move(request)) {}
RequestAttempt::~RequestAttempt() = default;

const wire::GenerateRequest& RequestAttempt::request() const { return request_->request; }

void RequestAttempt::SetSource(const std::shared_ptr<GenerationHandle>& source) {
  request_->handle->SetSource(source);
}

void RequestAttempt::OnStarted(const std::vector<int32_t>& prompt) {
  if (request_ == nullptr) return;
  request_->started = true;
  request_->output->OnStarted(prompt);
}

void RequestAttempt::OnProgress(const PromptProgress& progress) {
  if (request_ != nullptr) request_->output->OnProgress(progress);
}

void RequestAttempt::OnToken(const wire::SampledToken& token) {
  if (request_ == nullptr) return;
  const ResumableGeneration& output = *request_->output;
  if (output.started() && token.position() <= output.next_position()) {
    return request_->output->OnToken(token);
  }
  const std::shared_ptr<Handle> handle = request_->handle;  // shared with the client
  End(absl::DataLossError("the node that coordinates left out a token"), /*from_source=*/true,
      FinishReason::kCancelled, {});
  handle->Cancel();
}

void RequestAttempt::OnEnd(absl::Status status, FinishReason reason, const GenerationUsage& usage) {
  End(std::move(status), /*from_source=*/true, reason, usage);
}

void RequestAttempt::OnBroken(absl::Status status) {
  End(std::move(status), /*from_source=*/false, FinishReason::kCancelled, {});
}

void RequestAttempt::End(absl::Status status, bool from_source, FinishReason reason,
                         const GenerationUsage& usage) {
  // Drops the reference on the source, which holds this: this may go with the request.
  std::unique_ptr<Request> ended = std::move(request_);
  if (ended == nullptr) return;
  const std::shared_ptr<CallbackGate> gate = gate_;  // shared with the router
  const RetryDecision next = DecideRetry({.status = status,
                                          .from_source = from_source,
                                          .started = ended->started,
                                          .resumed = ended->resumed,
                                          .wanted = ended->handle->wanted()});
  // A forwarded request is resumed by the node that forwarded it.
  if (next != RetryDecision::kFinish && ended->pass_on && gate->TryEnter()) {
    router_->Retry(std::move(ended), next, status);
    gate->Leave();
  } else {
    ended->output->OnEnd(std::move(status), reason, usage);
  }
}

RequestRouter::RequestRouter(RequestRunner* runner, Options options)
    : runner_(runner), options_(std::move(options)) {}
RequestRouter::~RequestRouter() { gate_->Wait(); }

std::shared_ptr<GenerationHandle> RequestRouter::Generate(
    const wire::GenerateRequest& request, std::shared_ptr<GenerationListener> client,
    bool pass_on) {
  auto handle = std::make_shared<RequestAttempt::Handle>();  // shared with the client
  auto incoming = std::make_unique<Request>(
      Request{.request = request,
              .handle = handle,
              .output = std::make_shared<ResumableGeneration>(request, std::move(client)),
              .pass_on = pass_on,
              .until = options_.now() + options_.begin_time,
              .last = absl::OkStatus()});
  bool is_first = false;
  {
    absl::MutexLock lock(mu_);
    if (!stopping_) {
      is_first = incoming_.empty();
      incoming_.push_back(std::move(incoming));
    }
  }
  if (incoming != nullptr) incoming->End(Stopping(pass_on));
  // One call dispatches all requests that come until then.
  if (is_first) runner_->DispatchSoon();
  return handle;
}

void RequestRouter::Dispatch() {
  std::vector<RequestPtr> incoming;
  {
    absl::MutexLock lock(mu_);
    incoming.swap(incoming_);
  }
  for (RequestPtr& request : incoming) Begin(std::move(request));
}

void RequestRouter::Tick() {
  std::vector<RequestPtr> waiting;
  {
    absl::MutexLock lock(mu_);
    waiting = TakeWaiting();
  }
  const SteadyTime now = options_.now();
  for (RequestPtr& request : waiting) {
    if (now < request->not_before) {
      Wait(std::move(request));
    } else {
      Begin(std::move(request));  // which may enqueue it again
    }
  }
}

void RequestRouter::Stop() {
  std::vector<RequestPtr> left;
  {
    absl::MutexLock lock(mu_);
    stopping_ = true;
    left = TakeWaiting();
    for (RequestPtr& request : incoming_) left.push_back(std::move(request));
    incoming_.clear();
  }
  for (const RequestPtr& request : left) request->End(Stopping(request->pass_on));
}

size_t RequestRouter::waiting() const {
  absl::MutexLock lock(mu_);
  return waiting_.size();
}

std::vector<RequestRouter::RequestPtr> RequestRouter::TakeWaiting() {
  std::vector<RequestPtr> taken;
  while (const auto id = queue_.Next()) {
    RequestPtr request = std::move(waiting_.extract(*id).mapped());
    const std::string& client = request->request.client();
    queue_.Take(*id, client);
    queue_.Leave(*id, client);
    taken.push_back(std::move(request));
  }
  return taken;
}

void RequestRouter::Begin(RequestPtr request) {
  RequestRunner::Leader leader = runner_->FindLeader(request->request.model());
  Request& r = *request;
  r.begun = options_.now();
  if (leader.place == RequestRunner::Leader::Place::kHere) {
    // A new role's models come soon, and so does the one of a request that had begun. But a model
    // that nobody knows does not.
    const bool may_come = r.resumed || (leader.may_reload && !absl::IsNotFound(leader.status));
    if (may_come && !leader.status.ok()) {
      r.last = std::move(leader.status);
      return Wait(std::move(request));
    }
    const wire::GenerateRequest copy = r.request;
    const std::shared_ptr<RequestAttempt::Handle> handle = r.handle;  // shared with the client
    const auto call = std::make_shared<GenerationCall>(
        std::shared_ptr<RequestAttempt>(new RequestAttempt(this, std::move(request))));
    handle->SetSource(call);
    return runner_->RunHere(copy, call);
  }
  if (leader.place == RequestRunner::Leader::Place::kElsewhere && !r.pass_on) {
    return r.End(AsLeaderChanged(absl::UnavailableError("another node coordinates")));
  }
  if (!leader.address.empty()) {
    return runner_->RunElsewhere(leader.address, std::shared_ptr<RequestAttempt>(
                                                     new RequestAttempt(this, std::move(request))));
  }
  if (!leader.status.ok()) r.last = std::move(leader.status);
  Wait(std::move(request));
}

void RequestRouter::Retry(RequestPtr request, RetryDecision decision, const absl::Status& status) {
  Request& r = *request;
  const SteadyTime now = options_.now();
  const absl::Duration run_time = now - r.begun;
  if (run_time > kRequestConnectTime) r.until += run_time;
  // A source that took the request and had not begun it would return the same status at once.
  const bool was_idle =
      decision == RetryDecision::kRetry ||
      (decision == RetryDecision::kResume && IsLeaderChanged(status) && !r.started);
  if (was_idle) r.not_before = now + kRequestResumePause;
  if (decision == RetryDecision::kRetry) r.last = status;
  if (decision == RetryDecision::kResume) {
    LOG_EVERY_N_SEC(WARNING, 1) << "the coordinator has gone; requests resume when another node "
                                   "coordinates and has loaded their models";
    if (r.output->started()) r.request = r.output->Rest();
    // Each source that starts the request renews its time to wait.
    if (!r.resumed || r.started) r.until = now + options_.resume_time;
    r.resumed = true;
    r.last = absl::OkStatus();
  }
  r.started = false;
  Wait(std::move(request));
}

void RequestRouter::Wait(RequestPtr request) {
  Request& r = *request;
  absl::Status why = r.last.ok() ? NoCoordinator() : r.last;
  bool is_first = false;
  if (!r.handle->wanted()) {
    why = absl::CancelledError("the request was cancelled");
  } else if (options_.now() < r.until) {
    absl::MutexLock lock(mu_);
    absl::Status full;
    if (stopping_) {
      why = Stopping(r.pass_on);
    } else if (full = queue_.Add(++last_id_, r.request.client(), r.resumed); full.ok()) {
      is_first = waiting_.empty();
      waiting_.emplace(last_id_, std::move(request));
    } else if (!r.resumed) {
      why = WithRetryAfterMs(std::move(full), kRetrySoonMs);
    }
  }
  if (request != nullptr) return r.End(std::move(why));
  if (is_first) runner_->TickSoon();
}

}  // namespace strata
