#include "coordinator/generation/generation_engine.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/log/check.h"
#include "coordinator/scheduler/scheduler.h"
#include "transport/base/mutex.h"
#include "transport/base/rate_window.h"

namespace strata {
namespace {

// Steps that are submitted before listeners are called.
constexpr uint32_t kSubmitsMax = 8;
constexpr std::chrono::milliseconds kQuiescePoll(20);

}  // namespace

// One thread at a time pumps: submits the scheduler's steps and calls listeners, both without the
// lock. Other threads change the state meanwhile and return; so steps and events keep their order,
// and a pipeline may answer from inside Submit().
struct GenerationEngine::State {
  explicit State(GenerationEngineOptions o)
      : policy(o.policy),
        clock(o.clock != nullptr ? o.clock : Clock::Real()),
        model_drafter(std::move(o.model_drafter)) {}

  const SchedulerPolicy policy;
  const Clock* const clock;
  const MakeModelDrafter model_drafter;

  mutable Mutex mu;
  CondVar changed;
  std::optional<Scheduler> scheduler ABSL_GUARDED_BY(mu);
  Pipeline* pipeline ABSL_GUARDED_BY(mu) = nullptr;  // null: not started, broken or stopped
  // By request. Shared with the callers of Add().
  std::map<uint64_t, std::shared_ptr<GenerationListener>> listeners ABSL_GUARDED_BY(mu);
  // Not OK: the reason why new requests are refused.
  absl::Status refusal ABSL_GUARDED_BY(mu) = absl::UnavailableError("the model is not ready yet");
  absl::Status broken ABSL_GUARDED_BY(mu);  // how the pipeline ended
  bool stopped ABSL_GUARDED_BY(mu) = false;
  bool forgets_kept ABSL_GUARDED_BY(mu) = false;  // once it starts
  // A step that was formed, but the first stage had no room for it.
  std::optional<wire::Step> unsent ABSL_GUARDED_BY(mu);
  uint64_t n_writable ABSL_GUARDED_BY(mu) = 0;  // OnWritable() so far
  bool is_blocked ABSL_GUARDED_BY(mu) = false;  // until something happens
  bool quiescing ABSL_GUARDED_BY(mu) = false;
  bool broke ABSL_GUARDED_BY(mu) = false;  // the previous pipeline was lost, not given up
  bool is_pumping ABSL_GUARDED_BY(mu) = false;
  std::thread::id pumping_thread ABSL_GUARDED_BY(mu);
  std::vector<RateWindow> busy_us ABSL_GUARDED_BY(mu);  // by stage, since Start()

  void Pump() ABSL_LOCKS_EXCLUDED(mu);
  // No step goes to the pipeline any more.
  void DropPipeline() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Waits until no thread calls listeners or the pipeline. Not from a listener.
  void AwaitPump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

 private:
  struct Call {
    std::shared_ptr<GenerationListener> listener;
    SchedulerEvent event;
  };
  // The next step to submit, if any.
  std::optional<wire::Step> NextStep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void OnSubmitted(wire::Step step, const absl::Status& status, uint64_t n_writable_before)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  std::vector<Call> TakeCalls() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
};

void GenerationEngine::State::DropPipeline() {
  pipeline = nullptr;
  unsent.reset();
  is_blocked = false;
}

void GenerationEngine::State::AwaitPump() {
  CHECK(!is_pumping || pumping_thread != std::this_thread::get_id()) << "called from a listener";
  while (is_pumping) changed.Wait(&mu);
}

std::optional<wire::Step> GenerationEngine::State::NextStep() {
  if (pipeline == nullptr || is_blocked) return std::nullopt;
  if (unsent) return std::exchange(unsent, std::nullopt);
  if (quiescing) return std::nullopt;
  return scheduler->NextStep(clock->NowUs());
}

void GenerationEngine::State::OnSubmitted(wire::Step step, const absl::Status& status,
                                          uint64_t n_writable_before) {
  if (status.ok() || pipeline == nullptr) return;
  if (absl::IsInvalidArgument(status)) {
    return scheduler->OnNotSent(step.step_id(), status, clock->NowUs());
  }
  // No room; or the link has closed, and OnBroken() follows.
  unsent = std::move(step);
  // OnWritable() may have come meanwhile.
  is_blocked = !absl::IsResourceExhausted(status) || n_writable == n_writable_before;
}

std::vector<GenerationEngine::State::Call> GenerationEngine::State::TakeCalls() {
  std::vector<Call> calls;
  if (!scheduler) return calls;
  for (SchedulerEvent& event : scheduler->TakeEvents()) {
    const auto found = listeners.find(event.request);
    if (found == listeners.end()) continue;
    Call& call = calls.emplace_back();
    call.listener = event.end ? std::move(found->second) : found->second;
    if (event.end) listeners.erase(found);
    call.event = std::move(event);
  }
  return calls;
}

void GenerationEngine::State::Pump() {
  mu.Lock();
  if (is_pumping) {
    // The pumping thread does not hold the lock now: it will check the state again.
    mu.Unlock();
    return;
  }
  is_pumping = true;
  pumping_thread = std::this_thread::get_id();
  while (true) {
    // Steps come first: the stages wait for them. But only so many, as fast stages always take
    // more.
    uint32_t n_submits = 0;
    for (; n_submits < kSubmitsMax; ++n_submits) {
      std::optional<wire::Step> step = NextStep();
      if (!step) break;
      Pipeline* const to = pipeline;
      const uint64_t n_writable_before = n_writable;
      mu.Unlock();
      const absl::Status status = to->Submit(*step).status();
      mu.Lock();
      OnSubmitted(*std::move(step), status, n_writable_before);
    }
    std::vector<Call> calls = TakeCalls();
    if (calls.empty() && n_submits < kSubmitsMax) break;
    mu.Unlock();
    for (Call& call : calls) {
      if (call.event.end) {
        call.listener->OnEnd(std::move(call.event.end->status), call.event.end->reason,
                             call.event.end->usage);
      } else if (call.event.progress) {
        call.listener->OnProgress(*call.event.progress);
      } else {
        call.listener->OnToken(call.event.token);
      }
    }
    calls.clear();
    mu.Lock();
  }
  is_pumping = false;
  changed.NotifyAll();
  mu.Unlock();
}

GenerationEngine::GenerationEngine(GenerationEngineOptions options)
    : state_(std::make_shared<State>(std::move(options))) {}

GenerationEngine::~GenerationEngine() { Stop(absl::OkStatus()); }

absl::Status GenerationEngine::Start(Pipeline* pipeline) {
  absl::StatusOr<PipelineFacts> facts = FactsOf(pipeline->stages());
  if (!facts.ok()) return facts.status();
  MutexLock lock(&state_->mu);
  CHECK(!state_->scheduler) << "started twice";
  if (!state_->broken.ok()) return state_->broken;  // before it began
  state_->refusal = absl::OkStatus();
  std::unique_ptr<Drafter> model_drafter;
  if (state_->model_drafter) {
    model_drafter = state_->model_drafter([weak = std::weak_ptr<State>(state_)] {
      if (const std::shared_ptr<State> state = weak.lock()) state->Pump();
    });
  }
  state_->scheduler.emplace(*facts, state_->policy, nullptr, std::move(model_drafter));
  state_->busy_us.assign(facts->n_stages, RateWindow(state_->clock->NowUs()));
  state_->pipeline = pipeline;
  if (std::exchange(state_->forgets_kept, false)) state_->scheduler->ForgetKept();
  return absl::OkStatus();
}

void GenerationEngine::Pause() {
  MutexLock lock(&state_->mu);
  state_->broke = true;
  state_->DropPipeline();
}

void GenerationEngine::Detach() {
  MutexLock lock(&state_->mu);
  state_->DropPipeline();
  state_->AwaitPump();
}

bool GenerationEngine::Quiesce(std::chrono::milliseconds limit, absl::FunctionRef<bool()> wanted) {
  const auto until = std::chrono::steady_clock::now() + limit;
  do {
    MutexLock lock(&state_->mu);
    if (!state_->scheduler) return true;
    state_->quiescing = true;
    if (state_->scheduler->Stats().steps_in_flight == 0) return true;
    const auto now = std::chrono::steady_clock::now();
    if (state_->pipeline == nullptr || now >= until) return false;
    // DropPipeline() does not signal.
    state_->changed.WaitUntil(&state_->mu, std::min(until, now + kQuiescePoll));
  } while (wanted());
  return false;
}

void GenerationEngine::Resume() {
  {
    MutexLock lock(&state_->mu);
    state_->quiescing = false;
  }
  state_->Pump();
}

void GenerationEngine::AllowDrafts(bool allowed) {
  MutexLock lock(&state_->mu);
  if (state_->scheduler) state_->scheduler->AllowDrafts(allowed);
}

void GenerationEngine::ForgetKept(std::chrono::milliseconds limit) {
  {
    MutexLock lock(&state_->mu);
    if (state_->scheduler) {
      state_->scheduler->ForgetKept();
    } else {
      state_->forgets_kept = true;
    }
  }
  state_->Pump();
  const auto until = std::chrono::steady_clock::now() + limit;
  MutexLock lock(&state_->mu);
  while (state_->pipeline != nullptr && state_->scheduler->Stats().forgets_kept) {
    const auto now = std::chrono::steady_clock::now();
    if (now >= until) return;
    state_->changed.WaitUntil(&state_->mu, std::min(until, now + kQuiescePoll));
  }
}

absl::StatusOr<bool> GenerationEngine::Restart(Pipeline* pipeline) {
  absl::StatusOr<PipelineFacts> facts = FactsOf(pipeline->stages());
  if (!facts.ok()) return facts.status();
  bool went_on = false;
  {
    MutexLock lock(&state_->mu);
    CHECK(state_->scheduler && state_->pipeline == nullptr)
        << "Restart() before Start() or Detach()";
    if (state_->stopped) return state_->refusal;
    const int64_t now_us = state_->clock->NowUs();
    state_->quiescing = false;
    went_on = state_->scheduler->Restart(*facts, pipeline->carried().contents,
                                         std::exchange(state_->broke, false), now_us);
    state_->busy_us.assign(facts->n_stages, RateWindow(now_us));
    state_->refusal = state_->broken = absl::OkStatus();
    state_->pipeline = pipeline;
  }
  state_->Pump();
  return went_on;
}

void GenerationEngine::Fail(const absl::Status& status) { OnBroken(status); }

absl::StatusOr<uint64_t> GenerationEngine::Add(GenerationRequest request,
                                               std::shared_ptr<GenerationListener> listener) {
  absl::StatusOr<uint64_t> id;
  {
    MutexLock lock(&state_->mu);
    if (!state_->refusal.ok()) return state_->refusal;
    id = state_->scheduler->Add(std::move(request), state_->clock->NowUs());
    if (!id.ok()) return id;
    state_->listeners[*id] = std::move(listener);
  }
  state_->Pump();
  return id;
}

void GenerationEngine::Cancel(uint64_t id) {
  {
    MutexLock lock(&state_->mu);
    if (!state_->scheduler) return;
    state_->scheduler->Cancel(id, Scheduler::Leave::kDrop, state_->clock->NowUs());
  }
  state_->Pump();
}

void GenerationEngine::Finish(uint64_t id) {
  {
    MutexLock lock(&state_->mu);
    if (!state_->scheduler) return;
    state_->scheduler->Cancel(id, Scheduler::Leave::kKeep, state_->clock->NowUs());
  }
  state_->Pump();
}

void GenerationEngine::Drain() {
  MutexLock lock(&state_->mu);
  if (state_->refusal.ok()) state_->refusal = absl::UnavailableError("the model is being unloaded");
}

bool GenerationEngine::idle() const {
  MutexLock lock(&state_->mu);
  return state_->listeners.empty() && !state_->is_pumping;
}

void GenerationEngine::Stop(const absl::Status& status) {
  {
    MutexLock lock(&state_->mu);
    state_->DropPipeline();
    state_->stopped = true;
    if (state_->refusal.ok()) {
      state_->refusal = status.ok() ? absl::UnavailableError("the model was unloaded") : status;
    }
    if (state_->scheduler) state_->scheduler->EndAll(status, state_->clock->NowUs());
  }
  state_->Pump();
  MutexLock lock(&state_->mu);
  state_->AwaitPump();
}

SchedulerStats GenerationEngine::Stats() const {
  MutexLock lock(&state_->mu);
  SchedulerStats stats = state_->scheduler ? state_->scheduler->Stats() : SchedulerStats();
  const int64_t now_us = state_->clock->NowUs();
  for (const RateWindow& busy : state_->busy_us) {
    stats.idle_share.push_back(IdleShare(busy, now_us));
  }
  if (state_->pipeline != nullptr) stats.bytes_returned = state_->pipeline->bytes_returned();
  return stats;
}

void GenerationEngine::OnResult(wire::Result result) {
  {
    MutexLock lock(&state_->mu);
    if (state_->pipeline == nullptr) return;
    state_->is_blocked = false;
    const int64_t now_us = state_->clock->NowUs();
    for (const wire::StageTiming& timing : result.timings()) {
      if (timing.stage() >= state_->busy_us.size()) continue;
      state_->busy_us[timing.stage()].Add(now_us, timing.compute_us() + timing.sample_us());
    }
    state_->scheduler->OnResult(result, now_us);
  }
  state_->Pump();
}

void GenerationEngine::OnStepError(wire::StepError error) {
  {
    MutexLock lock(&state_->mu);
    if (state_->pipeline == nullptr) return;
    state_->is_blocked = false;
    state_->scheduler->OnStepError(error, state_->clock->NowUs());
  }
  state_->Pump();
}

void GenerationEngine::OnWritable() {
  {
    MutexLock lock(&state_->mu);
    ++state_->n_writable;
    state_->is_blocked = false;
  }
  state_->Pump();
}

void GenerationEngine::OnBroken(absl::Status status) {
  {
    MutexLock lock(&state_->mu);
    state_->DropPipeline();
    if (state_->scheduler) state_->scheduler->EndAll(status, state_->clock->NowUs());
    state_->refusal = status;
    state_->broken = std::move(status);
  }
  state_->Pump();
}

}  // namespace strata
