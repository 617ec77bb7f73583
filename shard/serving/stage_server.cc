#include "shard/serving/stage_server.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/log/check.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "shard/engine/activation_codec.h"
#include "shard/model/stage_spec.h"
#include "shard/serving/async_sender.h"
#include "shard/serving/step_check.h"
#include "shard/serving/step_runner.h"
#include "transport/base/epoch.h"
#include "transport/base/version.h"
#include "transport/rpc/grpc_status.h"
#include "transport/rpc/request_log.h"

namespace strata {
namespace {

// Tasks that may wait for the compute thread; callers queue further ones themselves
// (coordinator/generation/remote_tokenizer.h).
constexpr size_t kTasksMax = 64;
// How often a thread that waits for room checks again.
constexpr absl::Duration kRoomWait = absl::Milliseconds(20);

class StageServerImpl final : public StageServer, public Link::Receiver {
 public:
  StageServerImpl(wire::StageSpec spec, Clock* clock) : spec_(std::move(spec)), clock_(clock) {}

  ~StageServerImpl() override { End(); }

  void Stop() override { End(); }
  std::unique_ptr<Stage> TakeStage() override {
    {
      absl::MutexLock lock(mu_);
      keeps_stage_ = true;
    }
    End();
    return std::move(kept_stage_);
  }

  void StartThread(LoadFn load, LoadedFn loaded) {
    thread_ = std::thread([this, load = std::move(load), loaded = std::move(loaded)]() mutable {
      Run(std::move(load), std::move(loaded));
    });
  }

  absl::StatusOr<Incoming> Accept(const wire::Hello& peer) override;
  void SetIncoming(std::unique_ptr<Link> link) override;
  void AbandonIncoming() override;
  wire::Hello OutgoingHello() const override;
  Link::Receiver* outgoing_receiver() override { return &outgoing_receiver_; }
  void SetOutgoing(std::unique_ptr<Link> link, std::string note) override;
  absl::Status SetActivations(const wire::ActivationRule& rule) override;
  wire::ActivationRule activations() const override {
    absl::MutexLock lock(mu_);
    return activations_;
  }
  absl::Status Post(Task task) override;
  bool load_failed() const override { return load_failed_.load(std::memory_order_relaxed); }

  uint32_t busy_ms() const override {
    const int64_t since = busy_since_us_.load(std::memory_order_relaxed);
    return since == 0 ? 0 : static_cast<uint32_t>((clock_->NowUs() - since) / 1000 + 1);
  }
  uint64_t steps_done() const override { return steps_done_.load(std::memory_order_relaxed); }
  Work work() const override {
    absl::MutexLock lock(mu_);
    Work work = work_;
    if (computing_since_us_ != 0) work.busy_us += clock_->NowUs() - computing_since_us_;
    if (outgoing_open_) {
      work.link_wire = outgoing_->wire();
      work.link_note = outgoing_note_;
    }
    return work;
  }
  std::shared_ptr<KvStore> kv_store() const override {
    absl::MutexLock lock(mu_);
    return kv_store_.lock();
  }
  const wire::StageSpec& spec() const override { return spec_; }

 private:
  struct QueuedFrame {
    Frame frame;
    int64_t at_us;
  };

  // On the link to the next stage nothing comes back but its end.
  class OutgoingReceiver final : public Link::Receiver {
   public:
    explicit OutgoingReceiver(StageServerImpl* server) : server_(server) {}
    void OnFrame(Frame) override {}
    void OnWritable() override { server_->OnOutgoingWritable(); }
    void OnClosed(absl::Status status) override { server_->OnOutgoingClosed(std::move(status)); }

   private:
    StageServerImpl* const server_;
  };

  // Link::Receiver of the link before this stage.
  void OnFrame(Frame frame) override;
  void OnClosed(absl::Status status) override;

  void OnOutgoingWritable();
  void OnOutgoingClosed(absl::Status status);

  void Run(LoadFn load, LoadedFn loaded);
  void Handle(const QueuedFrame& queued);
  // The link before this stage broke the protocol: it is closed, and its remaining frames dropped.
  void Refuse(const absl::Status& why);
  void LogBreach(const absl::Status& ended) const;
  void RunStep(wire::Step step, const QueuedFrame& queued);
  void LogOpens(const wire::Step& step) const;
  void SendStepError(uint64_t step_id, const absl::Status& status);
  // Sends to the next stage, after SendAsync()'s frames; waits while the link has no room. Gives up
  // when the link closes.
  void SendNext(const Frame& frame);
  // Sends on another thread.
  void SendAsync(Frame frame);
  // Waits until SendAsync()'s frames are sent.
  void AwaitSender();
  // False: the link has no room, try again. True: the frame was sent, or the link is closed.
  bool TrySend(const Frame& frame);
  // Waits until the link may have room.
  void AwaitRoom();
  bool NothingWaits() const;
  // Closes both links with `status`: a peer broke the protocol, or a neighbour is gone.
  void CloseLinks(const absl::Status& status);
  // Stops the compute thread, and ends both links.
  void End();
  // Releases a link on the compute thread: its last owner must not be one of its own callbacks.
  void Retire(std::shared_ptr<Link> link);

  bool is_first() const { return IsFirstStage(spec_); }
  bool is_last() const { return IsLastStage(spec_); }

  // Constant after construction.
  const wire::StageSpec spec_;
  Clock* const clock_;
  const std::string where_ =
      absl::StrCat("stage ", spec_.stage(), " (layers ", spec_.layers().begin(), "-",
                   spec_.layers().end() == 0 ? 0 : spec_.layers().end() - 1, ")");
  OutgoingReceiver outgoing_receiver_{this};

  // Compute thread only.
  std::optional<StepRunner> runner_;   // once loaded
  std::unique_ptr<Stage> kept_stage_;  // for TakeStage(); read after the thread has ended
  uint64_t last_step_id_ = 0;
  bool dropping_ = false;      // frames are dropped until the incoming link has ended
  bool begins_ahead_ = false;  // whether the stage began the last predicted step

  std::atomic<int64_t> busy_since_us_{0};
  std::atomic<uint64_t> steps_done_{0};
  std::atomic<bool> load_failed_{false};

  mutable absl::Mutex mu_;
  absl::CondVar changed_, writable_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool keeps_stage_ ABSL_GUARDED_BY(mu_) = false;
  bool serving_ ABSL_GUARDED_BY(mu_) = false;   // loaded
  bool accepted_ ABSL_GUARDED_BY(mu_) = false;  // an incoming link is promised or open
  uint32_t n_embd_ ABSL_GUARDED_BY(mu_) = 0;
  wire::ActivationRule activations_ ABSL_GUARDED_BY(mu_);
  std::deque<QueuedFrame> inbox_ ABSL_GUARDED_BY(mu_);  // at most kInboxStepsMax: what was granted
  uint32_t freed_ ABSL_GUARDED_BY(mu_) = 0;      // places in it not yet released to the sender
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mu_);  // at most kTasksMax
  Work work_ ABSL_GUARDED_BY(mu_);               // without the current step
  std::weak_ptr<KvStore> kv_store_ ABSL_GUARDED_BY(mu_);  // of the stage, while it is here
  int64_t computing_since_us_ ABSL_GUARDED_BY(mu_) = 0;
  // Set when the link before this stage has ended; handled after the inbox is empty.
  std::optional<absl::Status> incoming_ended_ ABSL_GUARDED_BY(mu_);
  // Links are shared with threads that call them outside the lock, since their callbacks take it.
  std::shared_ptr<Link> incoming_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<Link> outgoing_ ABSL_GUARDED_BY(mu_);
  bool outgoing_open_ ABSL_GUARDED_BY(mu_) = false;
  std::string outgoing_note_ ABSL_GUARDED_BY(mu_);
  // Destroyed by the compute thread.
  std::vector<std::shared_ptr<Link>> ended_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;
  AsyncSender sender_;  // the compute thread's
};

void StageServerImpl::End() {
  {
    absl::MutexLock lock(mu_);
    stopping_ = true;
    changed_.SignalAll();
    writable_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
  sender_.Wait();
  CloseLinks(absl::UnavailableError(absl::StrCat(where_, " was unloaded")));
  std::vector<std::shared_ptr<Link>> links;
  {
    absl::MutexLock lock(mu_);
    links.swap(ended_);
    links.push_back(std::move(incoming_));
    links.push_back(std::move(outgoing_));
    outgoing_open_ = false;
  }
  links.clear();  // not under the lock: waits for their callbacks, which take it
}

absl::StatusOr<StageServer::Incoming> StageServerImpl::Accept(const wire::Hello& peer) {
  absl::MutexLock lock(mu_);
  if (CompareEpochs(peer.epoch(), spec_.epoch()) != 0) {
    return absl::AbortedError(absl::StrCat(where_, " is of epoch ", EpochString(spec_.epoch()),
                                           ", the peer of epoch ", EpochString(peer.epoch())));
  }
  if (peer.model_id() != spec_.model_id()) {
    return absl::FailedPreconditionError(absl::StrCat(where_, " holds another model"));
  }
  const uint32_t expected_from = is_first() ? spec_.n_stages() : spec_.stage() - 1;
  if (peer.to_stage() != spec_.stage() || peer.from_stage() != expected_from) {
    return absl::FailedPreconditionError(absl::StrCat(where_, " takes a link from ", expected_from,
                                                      ", not ", peer.from_stage(), " to ",
                                                      peer.to_stage()));
  }
  if (!serving_) return absl::UnavailableError(absl::StrCat(where_, " is not loaded yet"));
  const uint32_t expected_embd = is_first() ? 0 : n_embd_;
  if (peer.n_embd() != expected_embd) {
    return absl::FailedPreconditionError(absl::StrCat(where_, " takes rows of ", expected_embd,
                                                      " floats, the peer sends ", peer.n_embd()));
  }
  if (accepted_) return absl::UnavailableError(absl::StrCat(where_, " has a link already"));
  accepted_ = true;
  freed_ = 0;
  Incoming incoming;
  *incoming.hello.mutable_versions() = LocalVersions();
  incoming.hello.set_model_id(spec_.model_id());
  *incoming.hello.mutable_epoch() = spec_.epoch();
  incoming.hello.set_to_stage(peer.from_stage());
  incoming.hello.set_from_stage(spec_.stage());
  incoming.hello.set_n_embd(expected_embd);
  incoming.hello.set_credits(kInboxStepsMax);
  incoming.receiver = this;
  return incoming;
}

void StageServerImpl::SetIncoming(std::unique_ptr<Link> link) {
  absl::MutexLock lock(mu_);
  DCHECK(accepted_ && incoming_ == nullptr);
  incoming_ = std::move(link);
}

void StageServerImpl::AbandonIncoming() {
  absl::MutexLock lock(mu_);
  accepted_ = false;
}

wire::Hello StageServerImpl::OutgoingHello() const {
  wire::Hello hello;
  *hello.mutable_versions() = LocalVersions();
  hello.set_model_id(spec_.model_id());
  *hello.mutable_epoch() = spec_.epoch();
  hello.set_from_stage(spec_.stage());
  hello.set_to_stage(spec_.stage() + 1);
  if (!is_last()) {
    absl::MutexLock lock(mu_);
    hello.set_n_embd(n_embd_);
  }
  return hello;
}

void StageServerImpl::SetOutgoing(std::unique_ptr<Link> link, std::string note) {
  std::shared_ptr<Link> old;  // destroyed last, outside the lock
  absl::MutexLock lock(mu_);
  DCHECK(link == nullptr || outgoing_ == nullptr);
  old = std::move(outgoing_);
  outgoing_open_ = link != nullptr;
  outgoing_ = std::move(link);
  outgoing_note_ = std::move(note);
  writable_.SignalAll();
}

absl::Status StageServerImpl::SetActivations(const wire::ActivationRule& rule) {
  absl::MutexLock lock(mu_);
  if (!serving_) return absl::FailedPreconditionError(absl::StrCat(where_, " is not loaded"));
  if (is_last()) return absl::OkStatus();  // it sends none
  if (auto s = CheckActivationRule(rule, n_embd_); !s.ok()) {
    return absl::Status(s.code(), absl::StrCat(where_, ": ", s.message()));
  }
  activations_ = rule;
  return absl::OkStatus();
}

absl::Status StageServerImpl::Post(Task task) {
  absl::MutexLock lock(mu_);
  if (!serving_) return absl::FailedPreconditionError(absl::StrCat(where_, " is not loaded"));
  if (tasks_.size() >= kTasksMax) {
    return absl::ResourceExhaustedError(absl::StrCat(where_, " has too many tasks waiting"));
  }
  tasks_.push_back(std::move(task));
  changed_.SignalAll();
  return absl::OkStatus();
}

void StageServerImpl::OnFrame(Frame frame) {
  absl::MutexLock lock(mu_);
  // The link refuses frames beyond the credits granted.
  DCHECK_LT(inbox_.size(), kInboxStepsMax);
  inbox_.push_back({std::move(frame), clock_->NowUs()});
  changed_.Signal();
}

void StageServerImpl::OnClosed(absl::Status status) {
  absl::MutexLock lock(mu_);
  incoming_ended_ = std::move(status);
  changed_.SignalAll();
}

void StageServerImpl::OnOutgoingWritable() {
  absl::MutexLock lock(mu_);
  writable_.SignalAll();
}

void StageServerImpl::OnOutgoingClosed(absl::Status status) {
  std::shared_ptr<Link> incoming;
  {
    absl::MutexLock lock(mu_);
    outgoing_open_ = false;
    incoming = incoming_;
    writable_.SignalAll();
  }
  // The stage before is told why; the stage after knows.
  if (!status.ok()) {
    status = absl::Status(status.code(),
                          absl::StrCat(where_, ": the link after it ended: ", status.message()));
  }
  if (incoming != nullptr) incoming->Close(std::move(status));
  Retire(std::move(incoming));
}

void StageServerImpl::CloseLinks(const absl::Status& status) {
  std::shared_ptr<Link> incoming, outgoing;
  {
    absl::MutexLock lock(mu_);
    incoming = incoming_;
    outgoing = outgoing_;
  }
  if (incoming != nullptr) incoming->Close(status);
  if (outgoing != nullptr) outgoing->Close(status);
}

void StageServerImpl::Retire(std::shared_ptr<Link> link) {
  absl::MutexLock lock(mu_);
  if (link != nullptr) ended_.push_back(std::move(link));
  changed_.SignalAll();
}

void StageServerImpl::Run(LoadFn load, LoadedFn loaded) {
  absl::StatusOr<std::unique_ptr<Stage>> stage = std::move(load)();
  if (!stage.ok()) {
    load_failed_ = true;
    std::move(loaded)(stage.status());
    return;
  }
  runner_.emplace(spec_, where_, clock_, *std::move(stage));
  {
    absl::MutexLock lock(mu_);
    n_embd_ = runner_->stage()->facts().n_embd;
    kv_store_ = runner_->stage()->kv_store();
    serving_ = true;
  }
  std::move(loaded)(runner_->stage()->facts());

  while (true) {
    std::optional<QueuedFrame> queued;
    std::optional<Task> task;
    std::optional<absl::Status> ended;
    std::vector<std::shared_ptr<Link>> to_destroy;
    std::shared_ptr<Link> incoming, outgoing;
    uint32_t freed = 0;
    {
      absl::MutexLock lock(mu_);
      while (!stopping_ && inbox_.empty() && tasks_.empty() && !incoming_ended_ && ended_.empty()) {
        changed_.Wait(&mu_);
      }
      if (stopping_) break;
      to_destroy.swap(ended_);
      if (!tasks_.empty()) {
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      // At most one of each: neither many prompts to tokenize nor many steps delay the others.
      if (!inbox_.empty()) {
        queued = std::move(inbox_.front());
        inbox_.pop_front();
        if (++freed_ >= kInboxReleaseSteps) {
          incoming = incoming_;
          freed = std::exchange(freed_, 0);
        }
      } else if (incoming_ended_ && !task) {
        ended.swap(incoming_ended_);
        if (incoming_ != nullptr) to_destroy.push_back(std::move(incoming_));
        outgoing = std::move(outgoing_);
        outgoing_open_ = false;
        writable_.SignalAll();
      }
    }
    to_destroy.clear();
    if (incoming != nullptr) incoming->Release(freed);
    incoming.reset();
    if (task) (*std::move(task))(runner_->stage());
    if (queued) Handle(*queued);
    if (ended) {
      LogBreach(*ended);
      dropping_ = false;
      // The link after ends with the link before. New links are accepted only when neither can call
      // back any more: its end would be taken for theirs.
      if (outgoing != nullptr) outgoing->Close(*ended);
      outgoing.reset();
      AwaitSender();  // frames of the old link must not be sent over a new one
      busy_since_us_ = 0;
      absl::MutexLock lock(mu_);
      accepted_ = false;
    }
  }
  std::deque<Task> left;
  bool keeps_stage = false;
  {
    absl::MutexLock lock(mu_);
    serving_ = false;
    keeps_stage = keeps_stage_;
    left.swap(tasks_);
  }
  for (Task& task : left) std::move(task)(nullptr);
  if (keeps_stage) kept_stage_ = runner_->TakeStage();
  runner_.reset();
}

// Called once for each incoming link that broke the protocol; the link is closed by then.
void StageServerImpl::LogBreach(const absl::Status& ended) const {
  switch (ended.code()) {
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kResourceExhausted:
      LOG(WARNING) << "the link before " << where_ << " ended: " << ended.message();
      break;
    default:  // the peer is gone, or was unloaded
      break;
  }
}

void StageServerImpl::Refuse(const absl::Status& why) {
  dropping_ = true;
  CloseLinks(why);
}

void StageServerImpl::Handle(const QueuedFrame& queued) {
  if (dropping_) return;
  if (queued.frame.type == FrameType::kError) {
    SendNext(queued.frame);  // on its way from an earlier stage to the coordinator
    busy_since_us_ = 0;
    return;
  }
  if (queued.frame.type != FrameType::kStep) {
    Refuse(absl::InvalidArgumentError(
        absl::StrCat(where_, ": unexpected frame of type ", static_cast<int>(queued.frame.type))));
    return;
  }
  const Stage::Facts& facts = runner_->stage()->facts();
  auto step = ReadStep(queued.frame, spec_,
                       {.n_embd = is_first() ? 0 : facts.n_embd,
                        .n_seq_max = facts.n_seq_max,
                        .n_batch = facts.n_batch},
                       last_step_id_);
  if (!step.ok()) {
    Refuse(absl::Status(step.status().code(), absl::StrCat(where_, ": ", step.status().message())));
    return;
  }
  last_step_id_ = step->step_id();
  busy_since_us_ = clock_->NowUs();
  LogOpens(*step);
  RunStep(*std::move(step), queued);
  busy_since_us_ = 0;
  steps_done_.fetch_add(1, std::memory_order_relaxed);
}

void StageServerImpl::LogOpens(const wire::Step& step) const {
  if (!RequestLogOn()) return;
  for (const wire::SequenceOpen& open : step.opens()) {
    RequestLine("stage", open.request_id())
        .Add("stage", spec_.stage())
        .Add("layers_begin", spec_.layers().begin())
        .Add("layers_end", spec_.layers().end())
        .Add("step", step.step_id())
        .Add("slot", open.slot())
        .Add("prompt_tokens", open.prompt_size())
        .Add("generated_tokens", open.generated_size());
  }
}

void StageServerImpl::RunStep(wire::Step step, const QueuedFrame& queued) {
  const uint64_t bytes_in = FrameBytes(queued.frame);
  const int64_t start_us = clock_->NowUs();
  {
    absl::MutexLock lock(mu_);
    work_.rows += static_cast<uint64_t>(step.tokens_size());
    work_.bytes_in += bytes_in;
    computing_since_us_ = start_us;
  }
  StepRunner::Outcome outcome = runner_->Run(step, queued.frame.payload, start_us);
  {
    absl::MutexLock lock(mu_);
    work_.busy_us += outcome.compute_us + outcome.sample_us;
    computing_since_us_ = 0;
  }
  if (!outcome.status.ok()) {
    SendStepError(step.step_id(), outcome.status);
    return;
  }
  wire::StageTiming* timing = step.add_timings();
  timing->set_stage(spec_.stage());
  timing->set_queue_us(static_cast<uint32_t>(start_us - queued.at_us));
  timing->set_compute_us(static_cast<uint32_t>(outcome.compute_us));
  timing->set_bytes_in(bytes_in);
  if (!is_last()) {
    SendNext(runner_->NextStep(activations(), std::move(step)));
    return;
  }
  timing->set_sample_us(static_cast<uint32_t>(outcome.sample_us));
  *outcome.result.mutable_epoch() = spec_.epoch();
  outcome.result.set_step_id(step.step_id());
  outcome.result.mutable_timings()->Swap(step.mutable_timings());
  const bool is_guessed = runner_->Guess(step, outcome.result);
  Frame result = MakeFrame(FrameType::kResult, outcome.result);
  // Sending takes as long as many kernels, which the device gets only from this thread.
  if (is_guessed && begins_ahead_ && NothingWaits()) {
    SendAsync(std::move(result));
  } else {
    SendNext(result);
  }
  // Overlaps with the result's trip to the coordinator and the next step's trip back.
  if (is_guessed && NothingWaits()) begins_ahead_ = runner_->BeginLookahead();
}

bool StageServerImpl::NothingWaits() const {
  absl::MutexLock lock(mu_);
  return inbox_.empty() && tasks_.empty();
}

void StageServerImpl::SendStepError(uint64_t step_id, const absl::Status& status) {
  wire::StepError error;
  *error.mutable_epoch() = spec_.epoch();
  error.set_step_id(step_id);
  error.set_stage(spec_.stage());
  ToWire(status, where_, error.mutable_status());
  SendNext(MakeFrame(FrameType::kError, error));
}

void StageServerImpl::SendNext(const Frame& frame) {
  AwaitSender();
  while (!TrySend(frame)) {
    busy_since_us_ = clock_->NowUs();  // the next stage is slow; its own node watches it
    AwaitRoom();
  }
}

void StageServerImpl::SendAsync(Frame frame) {
  AwaitSender();
  sender_.Run([this, frame = std::move(frame)] {
    while (!TrySend(frame)) AwaitRoom();
  });
}

void StageServerImpl::AwaitSender() {
  while (!sender_.Wait(kRoomWait)) busy_since_us_ = clock_->NowUs();
}

bool StageServerImpl::TrySend(const Frame& frame) {
  std::shared_ptr<Link> link;
  {
    absl::MutexLock lock(mu_);
    if (!outgoing_open_ || stopping_) return true;  // OnOutgoingClosed() reported it
    link = outgoing_;
  }
  const absl::Status sent = link->Send(frame);
  if (absl::IsResourceExhausted(sent)) return false;
  absl::MutexLock lock(mu_);
  if (sent.ok()) work_.bytes_out += FrameBytes(frame);
  return true;  // sent, or closed: OnOutgoingClosed() reports it
}

void StageServerImpl::AwaitRoom() {
  absl::MutexLock lock(mu_);
  // OnWritable() may have come between Send() and this lock, so never wait for it alone.
  if (outgoing_open_ && !stopping_) writable_.WaitWithTimeout(&mu_, kRoomWait);
}

}  // namespace

std::unique_ptr<StageServer> StageServer::Start(wire::StageSpec spec, Clock* clock, LoadFn load,
                                                LoadedFn loaded) {
  auto server = std::make_unique<StageServerImpl>(std::move(spec), clock);
  server->StartThread(std::move(load), std::move(loaded));
  return server;
}

}  // namespace strata
