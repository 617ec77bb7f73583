#include "tests/support/fake_event_loop.h"

#include <algorithm>
#include <utility>

#include "absl/log/check.h"
#include "absl/log/log.h"

namespace strata {

struct FakeEventLoop::Watch {
  int signum = 0;  // 0: a timer
  int64_t due_us = FakeClock::kNever;
  int64_t repeat_us = 0;
  bool cancelled = false;
  absl::AnyInvocable<void()> fn;
};

class FakeEventLoop::WatchHandle : public EventLoop::Handle {
 public:
  WatchHandle(FakeEventLoop* loop, std::shared_ptr<Watch> watch)
      : loop_(loop), watch_(std::move(watch)) {
    loop_->watches_.push_back(watch_);
  }
  ~WatchHandle() override {
    CHECK(loop_->InLoopThread());
    watch_->cancelled = true;
    std::erase(loop_->watches_, watch_);
  }

 private:
  FakeEventLoop* const loop_;
  const std::shared_ptr<Watch> watch_;  // shared with the loop
};

FakeEventLoop::FakeEventLoop(FakeClock* clock)
    : clock_(clock), thread_(std::this_thread::get_id()) {
  clock_->Add(this);
}

FakeEventLoop::~FakeEventLoop() {
  std::deque<absl::AnyInvocable<void() &&>> unwanted;
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    unwanted.swap(posted_);
  }
  unwanted.clear();  // may hold handles, or post in turn
  CHECK(watches_.empty()) << "a timer or signal watch outlives its loop";
  clock_->Remove(this);
}

void FakeEventLoop::Run() {
  CHECK(InLoopThread());
  while (true) {
    while (RunOnePosted()) {
    }
    MutexLock lock(&mu_);
    while (posted_.empty() && !stopped_) changed_.Wait(&mu_);
    if (posted_.empty()) return;
  }
}

void FakeEventLoop::Stop() {
  MutexLock lock(&mu_);
  stopped_ = true;
  changed_.NotifyAll();
}

void FakeEventLoop::Post(absl::AnyInvocable<void() &&> fn) {
  MutexLock lock(&mu_);
  if (stopped_) return;  // `fn` dies after the lock has gone
  posted_.push_back(std::move(fn));
  changed_.NotifyAll();
}

std::unique_ptr<EventLoop::Handle> FakeEventLoop::StartTimer(TimerOptions options,
                                                             absl::AnyInvocable<void()> fn) {
  CHECK(InLoopThread());
  auto watch = std::make_shared<Watch>();
  watch->due_us = clock_->NowUs() + static_cast<int64_t>(options.delay_ms) * 1000;
  watch->repeat_us = static_cast<int64_t>(options.repeat_ms) * 1000;
  watch->fn = std::move(fn);
  return std::make_unique<WatchHandle>(this, std::move(watch));
}

std::unique_ptr<EventLoop::Handle> FakeEventLoop::OnSignal(int signum,
                                                           absl::AnyInvocable<void()> fn) {
  CHECK(InLoopThread());
  auto watch = std::make_shared<Watch>();
  watch->signum = signum;
  watch->fn = std::move(fn);
  return std::make_unique<WatchHandle>(this, std::move(watch));
}

std::unique_ptr<EventLoop::Handle> FakeEventLoop::WatchFd(int, FdEvents,
                                                          absl::AnyInvocable<void(FdEvents)>) {
  LOG(FATAL) << "a fake loop cannot watch descriptors";
}

bool FakeEventLoop::InLoopThread() const { return thread_ == std::this_thread::get_id(); }

void FakeEventLoop::Raise(int signum) {
  CHECK(InLoopThread());
  const auto watches = watches_;  // calls may add and remove some
  for (const auto& watch : watches) {
    if (watch->signum == signum) Call(watch);
  }
}

int64_t FakeEventLoop::NextDueUs() const {
  int64_t due_us = FakeClock::kNever;
  {
    MutexLock lock(&mu_);
    if (!posted_.empty()) return clock_->NowUs();
    if (stopped_) return due_us;
  }
  for (const auto& watch : watches_) due_us = std::min(due_us, watch->due_us);
  return due_us;
}

void FakeEventLoop::RunOne() {
  CHECK(InLoopThread()) << "the clock was moved by another thread than the loop's";
  if (RunOnePosted()) return;
  std::shared_ptr<Watch> next;
  for (const auto& watch : watches_) {
    if (watch->due_us > clock_->NowUs()) continue;
    if (next == nullptr || watch->due_us < next->due_us) next = watch;
  }
  if (next == nullptr) return;
  ++timer_calls_;
  next->due_us = next->repeat_us > 0 ? clock_->NowUs() + next->repeat_us : FakeClock::kNever;
  Call(next);
}

bool FakeEventLoop::RunOnePosted() {
  absl::AnyInvocable<void() &&> fn;
  {
    MutexLock lock(&mu_);
    if (posted_.empty()) return false;
    fn = std::move(posted_.front());
    posted_.pop_front();
  }
  std::move(fn)();
  return true;
}

void FakeEventLoop::Call(const std::shared_ptr<Watch>& watch) {
  const std::shared_ptr<Watch> kept = watch;  // the call may cancel it
  if (!kept->cancelled) kept->fn();
}

}  // namespace strata
