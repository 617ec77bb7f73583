#include "node/workers/worker_process.h"

#include <signal.h>

#include <functional>
#include <memory>

#include "gtest/gtest.h"
#include "transport/base/event_loop.h"

namespace strata {
namespace {

// Pings of an idle worker are an hour apart.
constexpr WorkerTimeouts kIdleSoon = {
    .ping_every_ms = 20, .idle_pings = 2, .idle_ping_every_ms = 3'600'000, .silent_ms = 1'000};

// A worker and its loop, which stops when the worker has died.
class WatchedWorker final : private WorkerProcess::Observer {
 public:
  // Calls `on_report` after each answer.
  void Run(std::function<void(WorkerProcess* worker, int answers)> on_report) {
    on_report_ = std::move(on_report);
    auto started = WorkerProcess::Start(
        loop_.get(), {.program = FAKE_WORKER, .label = "worker", .timeouts = kIdleSoon}, this);
    ASSERT_TRUE(started.ok()) << started.status();
    worker_ = *std::move(started);
    loop_->Run();
    worker_.reset();
  }
  const WorkerDeath& death() const { return death_; }
  EventLoop* loop() { return loop_.get(); }

 private:
  void OnWorkerReady() override {}
  void OnWorkerDied(const WorkerDeath& death) override {
    death_ = death;
    loop_->Stop();
  }
  void OnWorkerReport() override { on_report_(worker_.get(), ++answers_); }

  const std::unique_ptr<EventLoop> loop_ = EventLoop::Create();
  std::function<void(WorkerProcess*, int)> on_report_;
  int answers_ = 0;
  WorkerDeath death_;
  std::unique_ptr<WorkerProcess> worker_;
};

TEST(WorkerProcess, AWatchedIdleWorkerIsPingedAtTheUsualRate) {
  WatchedWorker watched;
  int answers = 0;
  watched.Run([&](WorkerProcess* worker, int count) {
    answers = count;
    // After two idle answers the pings stop; Watch() starts two more each time.
    if (count == 2 || count == 4) watched.loop()->Post([worker] { worker->Watch(); });
    if (count == 6) worker->Stop();
  });
  EXPECT_GE(answers, 6);
  EXPECT_EQ(watched.death().code, absl::StatusCode::kOk);
}

TEST(WorkerProcess, AWatchedFrozenWorkerIsKilledSoon) {
  WatchedWorker watched;
  watched.Run([&](WorkerProcess* worker, int count) {
    if (count != 2) return;
    kill(worker->pid(), SIGSTOP);
    watched.loop()->Post([worker] { worker->Watch(); });
  });
  EXPECT_EQ(watched.death().what, "stopped answering");
}

}  // namespace
}  // namespace strata
