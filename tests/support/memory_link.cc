#include "tests/support/memory_link.h"

#include <chrono>
#include <deque>
#include <list>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/log/check.h"
#include "transport/base/version.h"
#include "transport/link/link_session.h"

namespace strata {
namespace {

using Work = absl::AnyInvocable<void() &&>;
using Time = std::chrono::steady_clock::time_point;

// Runs one end's work in order.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual void Post(Work work) = 0;
  virtual void PostAfterMs(int64_t ms, Work work) = 0;
  // Whether this thread may wait for posted work.
  virtual bool CanWait() const = 0;
};

class LoopExecutor final : public Executor {
 public:
  explicit LoopExecutor(FakeEventLoop* loop) : loop_(loop) {}
  void Post(Work work) override { loop_->Post(std::move(work)); }
  void PostAfterMs(int64_t ms, Work work) override {
    timers_.emplace_back();
    const auto timer = std::prev(timers_.end());
    *timer = loop_->StartTimer({.delay_ms = static_cast<uint64_t>(ms)},
                               [this, timer, work = std::move(work)]() mutable {
                                 Work now = std::move(work);
                                 timers_.erase(timer);
                                 std::move(now)();
                               });
  }
  bool CanWait() const override { return false; }

 private:
  FakeEventLoop* const loop_;
  std::list<std::unique_ptr<EventLoop::Handle>> timers_;
};

class ThreadExecutor final : public Executor {
 public:
  // The thread is detached, because an end's last work releases its executor.
  ThreadExecutor() : state_(std::make_shared<State>()) {
    std::thread([state = state_] {
      while (std::optional<Work> work = Next(state.get())) std::move (*work)();
    }).detach();
  }
  ~ThreadExecutor() override {
    MutexLock lock(&state_->mu);
    state_->stopped = true;
    state_->changed.NotifyAll();
  }
  void Post(Work work) override {
    MutexLock lock(&state_->mu);
    state_->ready.push_back(std::move(work));
    state_->changed.NotifyAll();
  }
  void PostAfterMs(int64_t ms, Work work) override {
    MutexLock lock(&state_->mu);
    state_->later.emplace_back(std::chrono::steady_clock::now() + std::chrono::milliseconds(ms),
                               std::move(work));
    state_->changed.NotifyAll();
  }
  bool CanWait() const override { return true; }

 private:
  struct State {
    Mutex mu;
    CondVar changed;
    bool stopped ABSL_GUARDED_BY(mu) = false;
    std::deque<Work> ready ABSL_GUARDED_BY(mu);
    std::vector<std::pair<Time, Work>> later ABSL_GUARDED_BY(mu);
  };

  // Blocks; nullopt once stopped.
  static std::optional<Work> Next(State* state) {
    MutexLock lock(&state->mu);
    while (true) {
      if (!state->ready.empty()) {
        Work work = std::move(state->ready.front());
        state->ready.pop_front();
        return work;
      }
      if (state->stopped) return std::nullopt;
      const Time now = std::chrono::steady_clock::now();
      Time next = Time::max();
      for (auto it = state->later.begin(); it != state->later.end(); ++it) {
        if (it->first <= now) {
          Work work = std::move(it->second);
          state->later.erase(it);
          return work;
        }
        next = std::min(next, it->first);
      }
      if (next == Time::max()) {
        state->changed.Wait(&state->mu);
      } else {
        state->changed.WaitUntil(&state->mu, next);
      }
    }
  }

  const std::shared_ptr<State> state_;  // shared with the thread
};

// A frame as it lies in a queue.
struct Sent {
  std::string front;
  Payload payload;
};

absl::StatusOr<Frame> Decode(const Sent& sent) {
  const absl::string_view parts[] = {sent.front, sent.payload.bytes()};
  return DecodeFrame(parts, sent.payload.owner());
}

class WireEnd;

// Both directions. Shared by the two ends and the test.
class Pipe final : public MemoryWire, public std::enable_shared_from_this<Pipe> {
 public:
  // `loop` delivers frames where `delay_ms` > 0.
  Pipe(FakeEventLoop* loop, int64_t delay_ms) : delay_ms_(delay_ms), delayed_(loop) {}

  void Break() override;
  void Stall() override;
  void Resume() override;
  void FlipBitToAcceptor(size_t bit) override { FlipBit(kAcceptor, bit); }
  void FlipBitToDialler(size_t bit) override { FlipBit(kDialler, bit); }

  static constexpr int kDialler = 0;
  static constexpr int kAcceptor = 1;

  // `side` is the index of an end. REQUIRES: called once for each end, before anything else.
  void Connect(int side, const std::shared_ptr<WireEnd>& end) { ends_[side] = end; }
  void StartRead(int side);
  // These take effect after the delay.
  void Push(int from, Sent sent);
  void EndSide(int side);
  // These take effect at once.
  void SideEnded(int side);

 private:
  // Locked before mu_ and released after it, because an end that is destroyed calls back here.
  struct Ends {
    explicit Ends(const std::weak_ptr<WireEnd>* ends) : of{ends[0].lock(), ends[1].lock()} {}
    const std::shared_ptr<WireEnd> of[2];
  };
  struct Side {
    std::deque<Sent> inbox;      // to this side
    std::optional<size_t> flip;  // bit of the next frame to this side
    bool reading = false;
    bool read_over = false;
    bool ended = false;  // it sends nothing any more
    bool told_ended = false;
  };

  void Arrive(int from, Sent sent);

  void FlipBit(int side, size_t bit) {
    MutexLock lock(&mu_);
    sides_[side].flip = bit;
  }
  // Completes the reads and writes that can be completed now.
  void Progress(const Ends& ends) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  std::weak_ptr<WireEnd> ends_[2];  // constant after Connect()
  const int64_t delay_ms_;
  LoopExecutor delayed_;  // loop thread only; outlives an end whose last frames are in flight

  Mutex mu_;
  bool broken_ ABSL_GUARDED_BY(mu_) = false;
  bool stalled_ ABSL_GUARDED_BY(mu_) = false;
  Side sides_[2] ABSL_GUARDED_BY(mu_);
};

class WireEnd final : public LinkSession::Wire, public std::enable_shared_from_this<WireEnd> {
 public:
  WireEnd(std::shared_ptr<Pipe> pipe, int side, std::unique_ptr<Executor> executor)
      : pipe_(std::move(pipe)), side_(side), executor_(std::move(executor)) {}
  // Runs after the frames in flight.
  ~WireEnd() override { pipe_->EndSide(side_); }

  void Read() override { pipe_->StartRead(side_); }
  bool Write(Frame frame) override {
    pipe_->Push(side_, Sent{EncodeFramePrefixAndHeader(frame), std::move(frame.payload)});
    executor_->Post([end = shared_from_this()] { end->session_->OnWritten(true); });
    return false;
  }
  void ExpectEnd() override {
    executor_->PostAfterMs(kLinkCloseMs, [weak = weak_from_this()] {
      if (auto end = weak.lock()) end->session_->Cancel();
    });
  }
  void End(const absl::Status&) override { pipe_->EndSide(side_); }
  void Cancel() override {
    executor_->Post([pipe = pipe_] { pipe->Break(); });
  }
  bool CanWait() const override { return executor_->CanWait(); }
  std::string name() const override { return "memory"; }

  void PostRead(absl::StatusOr<Frame> frame) {
    executor_->Post([end = shared_from_this(), frame = std::move(frame)]() mutable {
      end->session_->OnRead(std::move(frame));
    });
  }
  void PostEnded(const absl::Status& status) {
    executor_->Post([end = shared_from_this(), status] { end->session_->OnEnded(status); });
  }

  // Set before the session starts.
  std::shared_ptr<LinkSession> session_;  // shared with its Link

 private:
  const std::shared_ptr<Pipe> pipe_;
  const int side_;
  const std::unique_ptr<Executor> executor_;
};

void Pipe::Break() {
  const Ends ends(ends_);
  MutexLock lock(&mu_);
  broken_ = true;
  for (Side& side : sides_) side.inbox.clear();
  Progress(ends);
}

void Pipe::Stall() {
  MutexLock lock(&mu_);
  stalled_ = true;
}

void Pipe::Resume() {
  const Ends ends(ends_);
  MutexLock lock(&mu_);
  stalled_ = false;
  Progress(ends);
}

void Pipe::StartRead(int side) {
  const Ends ends(ends_);
  MutexLock lock(&mu_);
  sides_[side].reading = true;
  Progress(ends);
}

void Pipe::Push(int from, Sent sent) {
  if (delay_ms_ == 0) return Arrive(from, std::move(sent));
  delayed_.PostAfterMs(delay_ms_,
                       [weak = weak_from_this(), from, sent = std::move(sent)]() mutable {
                         if (auto pipe = weak.lock()) pipe->Arrive(from, std::move(sent));
                       });
}

void Pipe::EndSide(int side) {
  if (delay_ms_ == 0) return SideEnded(side);
  delayed_.PostAfterMs(delay_ms_, [weak = weak_from_this(), side] {
    if (auto pipe = weak.lock()) pipe->SideEnded(side);
  });
}

void Pipe::Arrive(int from, Sent sent) {
  const Ends ends(ends_);
  MutexLock lock(&mu_);
  if (broken_) return;
  Side& to = sides_[1 - from];
  if (to.flip.has_value()) {
    const size_t bit = *std::exchange(to.flip, std::nullopt);
    sent.front[bit / 8 % sent.front.size()] ^= static_cast<char>(1 << (bit % 8));
  }
  to.inbox.push_back(std::move(sent));
  Progress(ends);
}

void Pipe::SideEnded(int side) {
  const Ends ends(ends_);
  MutexLock lock(&mu_);
  sides_[side].ended = true;
  Progress(ends);
}

void Pipe::Progress(const Ends& ends) {
  if (stalled_ && !broken_) return;
  for (int i = 0; i < 2; ++i) {
    WireEnd* const end = ends.of[i].get();
    Side& side = sides_[i];
    if (end == nullptr) continue;
    if (side.reading && !side.inbox.empty()) {
      side.reading = false;
      end->PostRead(Decode(side.inbox.front()));
      side.inbox.pop_front();
    } else if (side.reading && (broken_ || sides_[1 - i].ended)) {
      side.reading = false;
      side.read_over = true;
      end->PostRead(absl::UnavailableError("the wire has ended"));
    }
    if (side.ended && side.read_over && !std::exchange(side.told_ended, true)) {
      end->PostEnded(broken_ ? absl::UnavailableError("the wire broke") : absl::OkStatus());
    }
  }
}

// Keeps the end while its link lives.
class MemoryLink final : public Link {
 public:
  MemoryLink(std::unique_ptr<Link> link, std::shared_ptr<WireEnd> end)
      : end_(std::move(end)), link_(std::move(link)) {}
  absl::Status Send(Frame frame) override { return link_->Send(std::move(frame)); }
  void Release(uint32_t frames) override { link_->Release(frames); }
  void Close(absl::Status status) override { link_->Close(std::move(status)); }
  const wire::Hello& peer() const override { return link_->peer(); }
  std::string wire() const override { return link_->wire(); }

 private:
  const std::shared_ptr<WireEnd> end_;  // shared with its posted work
  const std::unique_ptr<Link> link_;    // goes first
};

std::shared_ptr<WireEnd> MakeEnd(const std::shared_ptr<Pipe>& pipe, int side,
                                 const MemoryDialOptions& options) {
  std::unique_ptr<Executor> executor;
  if (options.loop != nullptr) {
    executor = std::make_unique<LoopExecutor>(options.loop);
  } else {
    executor = std::make_unique<ThreadExecutor>();
  }
  auto end = std::make_shared<WireEnd>(pipe, side, std::move(executor));
  pipe->Connect(side, end);
  return end;
}

}  // namespace

absl::StatusOr<DialledMemoryLink> DialMemoryLink(MemoryDialOptions options, AcceptLinkFn accept,
                                                 Link::Receiver* receiver) {
  CHECK(options.delay_ms == 0 || options.loop != nullptr);
  CHECK(options.loop == nullptr || options.clock != nullptr);
  auto pipe = std::make_shared<Pipe>(options.loop, options.delay_ms);
  const std::shared_ptr<WireEnd> dialler = MakeEnd(pipe, Pipe::kDialler, options);
  const std::shared_ptr<WireEnd> acceptor = MakeEnd(pipe, Pipe::kAcceptor, options);

  VersionPolicy policy;
  policy.allow_mixed = options.acceptor_allows_mixed_versions;
  acceptor->session_ = LinkSession::Acceptor(
      acceptor.get(), policy,
      [accept = std::move(accept), weak = std::weak_ptr(acceptor)](
          const wire::Hello& hello) mutable -> absl::StatusOr<AcceptedLink> {
        absl::StatusOr<AcceptedLink> accepted = accept(hello);
        if (!accepted.ok()) return accepted;
        accepted->on_open = [on_open = std::move(accepted->on_open),
                             weak](std::unique_ptr<Link> link) mutable {
          std::move(on_open)(std::make_unique<MemoryLink>(std::move(link), weak.lock()));
        };
        return accepted;
      });
  policy.allow_mixed = options.allow_mixed_versions;
  dialler->session_ =
      LinkSession::Dialler(dialler.get(), std::move(options.hello), policy, receiver);

  acceptor->session_->Start();
  dialler->session_->Start();
  if (options.loop != nullptr) {
    options.clock->AdvanceMs(2 * options.delay_ms);
    options.timeout_ms = 0;
  }
  absl::StatusOr<std::unique_ptr<Link>> link = dialler->session_->AwaitOpen(options.timeout_ms);
  if (!link.ok()) return link.status();
  return DialledMemoryLink{std::make_unique<MemoryLink>(*std::move(link), dialler), pipe};
}

}  // namespace strata
