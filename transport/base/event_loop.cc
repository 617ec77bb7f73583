#include "transport/base/event_loop.h"

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/log/check.h"
#include "transport/base/mutex.h"
#include "uv.h"

namespace strata {
namespace {

// Timers that repeat after this long or longer fire at multiples of it, so that one wake-up serves
// all of them.
constexpr uint64_t kPatientMs = 1'000;

class UvEventLoop final : public EventLoop {
 public:
  UvEventLoop() {
    CHECK_EQ(uv_loop_init(&loop_), 0);
    CHECK_EQ(uv_async_init(&loop_, &wake_, &UvEventLoop::OnWake), 0);
    wake_.data = this;
  }

  ~UvEventLoop() override {
    CHECK_EQ(watches_, 0) << "a timer or watch outlives its loop";
    std::vector<absl::AnyInvocable<void() &&>> unwanted;
    {
      MutexLock lock(&mu_);
      stopped_ = true;
      unwanted.swap(posted_);
    }
    unwanted.clear();
    uv_close(reinterpret_cast<uv_handle_t*>(&wake_), nullptr);
    while (uv_run(&loop_, UV_RUN_DEFAULT) != 0) {  // frees closed handles
    }
    CHECK_EQ(uv_loop_close(&loop_), 0);
  }

  void Run() override {
    thread_.store(std::this_thread::get_id());
    CHECK(!ran_) << "a loop runs once";
    ran_ = true;
    uv_run(&loop_, UV_RUN_DEFAULT);
    RunPosted();  // posted between the last wake-up and Stop()
    thread_.store(std::thread::id());
  }

  void Stop() override {
    MutexLock lock(&mu_);
    if (std::exchange(stopped_, true)) return;
    uv_async_send(&wake_);
  }

  void Post(absl::AnyInvocable<void() &&> fn) override {
    MutexLock lock(&mu_);
    if (!stopped_) {
      posted_.push_back(std::move(fn));
      // Under the lock: the loop cannot be destroyed while it is held.
      uv_async_send(&wake_);
      return;
    }
    // `fn` is destroyed on return, after the lock is released.
  }

  std::unique_ptr<Handle> StartTimer(TimerOptions options, absl::AnyInvocable<void()> fn) override;
  std::unique_ptr<Handle> OnSignal(int signum, absl::AnyInvocable<void()> fn) override;
  std::unique_ptr<Handle> WatchFd(int fd, FdEvents wanted,
                                  absl::AnyInvocable<void(FdEvents)> fn) override;

  bool InLoopThread() const override { return thread_.load() == std::this_thread::get_id(); }

 private:
  template <typename UvHandle>
  friend class Watch;

  static void OnWake(uv_async_t* wake) { static_cast<UvEventLoop*>(wake->data)->RunPosted(); }

  // Runs one batch: functions that these post in turn wait for the next, so that timers and sockets
  // get their share.
  void RunPosted() {
    std::vector<absl::AnyInvocable<void() &&>> batch;
    bool stop;
    {
      MutexLock lock(&mu_);
      batch.swap(posted_);
      stop = stopped_;
    }
    if (stop) uv_stop(&loop_);
    for (auto& fn : batch) {
      std::move(fn)();
      fn = nullptr;
    }
  }

  // On the loop thread, or while no thread is.
  void CheckThread() const {
    const std::thread::id id = thread_.load();
    CHECK(id == std::thread::id() || id == std::this_thread::get_id())
        << "only the loop thread may do this";
  }

  uv_loop_t loop_;
  uv_async_t wake_;
  std::atomic<std::thread::id> thread_;  // the thread in Run()

  // Loop thread only.
  bool ran_ = false;
  int watches_ = 0;

  Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<absl::AnyInvocable<void() &&>> posted_ ABSL_GUARDED_BY(mu_);
};

// A uv_timer_t, uv_signal_t or uv_poll_t and its callback. libuv closes a handle only in a later
// turn of the loop, so the handle outlives its owner for that long.
template <typename UvHandle>
class Watch final : public EventLoop::Handle {
 public:
  // `fn` takes the `events` of Call().
  Watch(UvEventLoop* loop, absl::AnyInvocable<void(int)> fn, int wanted = 0)
      : loop_(loop), state_(new State) {
    loop_->CheckThread();
    ++loop_->watches_;
    state_->fn = std::move(fn);
    state_->wanted = wanted;
    state_->uv.data = state_;
  }

  ~Watch() override {
    loop_->CheckThread();
    --loop_->watches_;
    state_->cancelled = true;
    if (!state_->running) state_->fn = nullptr;
    uv_close(reinterpret_cast<uv_handle_t*>(&state_->uv),
             [](uv_handle_t* uv) { delete static_cast<State*>(uv->data); });
  }

  UvHandle* uv() { return &state_->uv; }

  static int Wanted(const UvHandle* uv) { return static_cast<const State*>(uv->data)->wanted; }

  static void Call(UvHandle* uv, int events) {
    auto* state = static_cast<State*>(uv->data);
    if (state->cancelled) return;
    state->running = true;
    state->fn(events);
    state->running = false;
    if (state->cancelled) state->fn = nullptr;
  }

 private:
  struct State {
    UvHandle uv;
    absl::AnyInvocable<void(int)> fn;
    int wanted = 0;
    bool running = false;
    bool cancelled = false;
  };

  UvEventLoop* const loop_;
  State* const state_;  // deleted by libuv's close callback
};

void OnTimer(uv_timer_t* uv) { Watch<uv_timer_t>::Call(uv, 0); }

std::unique_ptr<EventLoop::Handle> UvEventLoop::StartTimer(TimerOptions options,
                                                           absl::AnyInvocable<void()> fn) {
  // The loop caches the time at the start of each turn, which may be long ago.
  uv_update_time(&loop_);
  const bool patient = options.delay_ms >= kPatientMs && options.repeat_ms >= kPatientMs;
  const auto shared = [this, patient](uint64_t ms) {
    return patient ? ms - (uv_now(&loop_) + ms) % kPatientMs : ms;
  };
  const uint64_t delay_ms = shared(options.delay_ms), repeat_ms = options.repeat_ms;
  const auto handle = std::make_shared<uv_timer_t*>(nullptr);  // set below; with the callback
  auto timer = std::make_unique<Watch<uv_timer_t>>(this, [=, fn = std::move(fn)](int) mutable {
    if (patient) uv_timer_start(*handle, &OnTimer, shared(repeat_ms), repeat_ms);
    fn();
  });
  *handle = timer->uv();
  CHECK_EQ(uv_timer_init(&loop_, timer->uv()), 0);
  CHECK_EQ(uv_timer_start(timer->uv(), &OnTimer, delay_ms, repeat_ms), 0);
  return timer;
}

std::unique_ptr<EventLoop::Handle> UvEventLoop::OnSignal(int signum,
                                                         absl::AnyInvocable<void()> fn) {
  auto watch =
      std::make_unique<Watch<uv_signal_t>>(this, [fn = std::move(fn)](int) mutable { fn(); });
  CHECK_EQ(uv_signal_init(&loop_, watch->uv()), 0);
  CHECK_EQ(uv_signal_start(
               watch->uv(), [](uv_signal_t* uv, int) { Watch<uv_signal_t>::Call(uv, 0); }, signum),
           0);
  return watch;
}

// After an error libuv no longer polls, but a datagram socket still works after an error: the owner
// reads the error, and the watch continues.
void OnPoll(uv_poll_t* uv, int status, int events) {
  if (status < 0) {
    events = Watch<uv_poll_t>::Wanted(uv);
    CHECK_EQ(uv_poll_start(uv, events, &OnPoll), 0);
  }
  Watch<uv_poll_t>::Call(uv, events);
}

std::unique_ptr<EventLoop::Handle> UvEventLoop::WatchFd(int fd, FdEvents wanted,
                                                        absl::AnyInvocable<void(FdEvents)> fn) {
  const int events = (wanted.readable ? UV_READABLE : 0) | (wanted.writable ? UV_WRITABLE : 0);
  auto watch = std::make_unique<Watch<uv_poll_t>>(
      this,
      [fn = std::move(fn)](int ready) mutable {
        fn({.readable = (ready & UV_READABLE) != 0, .writable = (ready & UV_WRITABLE) != 0});
      },
      events);
  CHECK_EQ(uv_poll_init(&loop_, watch->uv(), fd), 0);
  CHECK_EQ(uv_poll_start(watch->uv(), events, &OnPoll), 0);
  return watch;
}

}  // namespace

std::unique_ptr<EventLoop> EventLoop::Create() { return std::make_unique<UvEventLoop>(); }

}  // namespace strata
