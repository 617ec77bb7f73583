#include "node/workers/worker_process.h"

#include <signal.h>

#include <functional>
#include <memory>

#include "gtest/gtest.h"
#include "transport/base/event_loop.h"

namespace strata {
namespace {

// Pings of a worker that has nothing to do are an hour apart.
constexpr WorkerTimeouts kIdleSoon = {
    .ping_every_ms = 20, .idle_pings = 2, .idle_ping_every_ms = 3'600'000, .silent_ms = 1'000};

// A worker and its loop, which stops when the worker has died.
class Watched final : private WorkerProcess::Observer {
 public:
  // `told` is called after each answer.
  void Run(std::function<void(WorkerProcess* worker, int answers)> told) {
    told_ = std::move(told);
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
  void OnWorkerTold() override { told_(worker_.get(), ++answers_); }

  const std::unique_ptr<EventLoop> loop_ = EventLoop::Create();
  std::function<void(WorkerProcess*, int)> told_;
  int answers_ = 0;
  WorkerDeath death_;
  std::unique_ptr<WorkerProcess> worker_;
};

TEST(WorkerProcess, OneThatMayHaveWorkSoonIsAskedAsOftenAsEver) {
  Watched watched;
  int answers = 0;
  watched.Run([&](WorkerProcess* worker, int count) {
    answers = count;
    // After the second it is asked no more, but that it may have work; the fourth is answered then.
    if (count == 2 || count == 4) watched.loop()->Post([worker] { worker->Watch(); });
    if (count == 6) worker->Stop();
  });
  EXPECT_GE(answers, 6);
  EXPECT_EQ(watched.death().code, absl::StatusCode::kOk);
}

TEST(WorkerProcess, AFrozenOneThatMayHaveWorkIsKilledSoon) {
  Watched watched;
  watched.Run([&](WorkerProcess* worker, int count) {
    if (count != 2) return;
    kill(worker->pid(), SIGSTOP);
    watched.loop()->Post([worker] { worker->Watch(); });
  });
  EXPECT_EQ(watched.death().what, "stopped answering");
}

}  // namespace
}  // namespace strata
