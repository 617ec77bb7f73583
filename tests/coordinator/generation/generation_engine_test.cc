// The thread-safe engine around the scheduler, over fake stages that answer on threads of their
// own, or from inside Submit().
#include "coordinator/generation/generation_engine.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status_matchers.h"
#include "absl/synchronization/notification.h"
#include "coordinator/request/request_status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/generation/fake_stages.h"
#include "transport/base/mutex.h"

namespace strata {
namespace {

using ::absl_testing::StatusIs;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

bool Wanted() { return true; }

class FakePipeline final : public Pipeline {
 public:
  enum class Answers { kInsideSubmit, kOnThread, kNever };

  FakePipeline(Listener* listener, Answers answers)
      : listener_(listener), answers_(answers), stages_(Facts(), {}) {
    wire::StageInfo info;
    info.set_n_ctx(Facts().n_ctx);
    info.set_n_seq_max(Facts().n_slots);
    info.set_n_batch(Facts().n_batch);
    info.mutable_cache()->set_trim(true);
    info.mutable_cache()->set_copy(true);
    infos_.assign(Facts().n_stages, info);
    if (answers_ == Answers::kOnThread) {
      thread_ = std::thread([this] { Run(); });
    }
  }
  ~FakePipeline() override {
    {
      MutexLock lock(&mu_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    if (thread_.joinable()) thread_.join();
  }

  static constexpr char kTooLarge[] = "root ::= …";  // for a frame

  static PipelineFacts Facts() {
    return {.n_stages = 2, .n_ctx = 128, .n_slots = 4, .n_batch = 64, .cache = {.shift = false}};
  }

  absl::StatusOr<uint64_t> Submit(wire::Step step) override {
    FakeStages::Outcome outcome;
    {
      MutexLock lock(&mu_);
      if (broken_) return absl::UnavailableError("closed");
      if (refusals_ > 0) {
        --refusals_;
        // The room comes before the refusal is read.
        if (has_room_at_once_) return Refuse();
        return absl::ResourceExhaustedError("no credit");
      }
      if (std::ranges::any_of(step.opens(), [](const wire::SequenceOpen& open) {
            return open.sampler().grammar() == kTooLarge;
          })) {
        stages_.Skip();
        return absl::InvalidArgumentError("a frame that is too large");
      }
      outcome = stages_.Submit(step, 0);
      if (answers_ != Answers::kInsideSubmit) {
        outcomes_.push_back(std::move(outcome));
        changed_.NotifyAll();
        return step.step_id();
      }
    }
    Deliver(outcome);
    return step.step_id();
  }

  void Break(const absl::Status& status) {
    {
      MutexLock lock(&mu_);
      broken_ = true;
    }
    listener_->OnBroken(status);
  }
  void RefuseNext(int n, bool has_room_at_once) {
    MutexLock lock(&mu_);
    refusals_ = n;
    has_room_at_once_ = has_room_at_once;
  }

  absl::Status Diagnose(const absl::Status& broken) override { return broken; }
  const std::vector<wire::StageInfo>& stages() const override { return infos_; }

 private:
  absl::Status Refuse() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    mu_.Unlock();
    listener_->OnWritable();
    mu_.Lock();
    return absl::ResourceExhaustedError("no credit");
  }
  void Deliver(const FakeStages::Outcome& outcome) {
    if (outcome.result) {
      listener_->OnResult(*outcome.result);
    } else {
      listener_->OnStepError(*outcome.error);
    }
  }
  void Run() {
    while (true) {
      FakeStages::Outcome outcome;
      {
        MutexLock lock(&mu_);
        while (outcomes_.empty() && !stopping_) changed_.Wait(&mu_);
        if (stopping_) return;
        outcome = std::move(outcomes_.front());
        outcomes_.pop_front();
      }
      Deliver(outcome);
    }
  }

  Listener* const listener_;
  const Answers answers_;
  std::vector<wire::StageInfo> infos_;
  Mutex mu_;
  CondVar changed_;
  FakeStages stages_ ABSL_GUARDED_BY(mu_);
  std::deque<FakeStages::Outcome> outcomes_ ABSL_GUARDED_BY(mu_);
  int refusals_ ABSL_GUARDED_BY(mu_) = 0;
  bool has_room_at_once_ ABSL_GUARDED_BY(mu_) = false;
  bool broken_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

class Listener final : public GenerationListener {
 public:
  void OnToken(const wire::SampledToken& token) override {
    MutexLock lock(&mu_);
    EXPECT_FALSE(ended_) << "a token after the end";
    EXPECT_FALSE(in_call_);
    in_call_ = true;
    EXPECT_TRUE(tokens_.empty() || token.position() == last_position_ + 1);
    last_position_ = token.position();
    tokens_.push_back(token.token());
    in_call_ = false;
    if (on_token) on_token(tokens_.size());
  }
  void OnEnd(absl::Status status, FinishReason reason, const GenerationUsage& usage) override {
    MutexLock lock(&mu_);
    EXPECT_FALSE(ended_) << "a second end";
    ended_ = true;
    status_ = std::move(status);
    reason_ = reason;
    usage_ = usage;
    changed_.NotifyAll();
  }
  absl::Status Wait() {
    MutexLock lock(&mu_);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!ended_) {
      if (!changed_.WaitUntil(&mu_, until)) return absl::DeadlineExceededError("it does not end");
    }
    return status_;
  }
  bool ended() {
    MutexLock lock(&mu_);
    return ended_;
  }
  std::vector<int32_t> tokens() {
    MutexLock lock(&mu_);
    return tokens_;
  }
  FinishReason reason() {
    MutexLock lock(&mu_);
    return reason_;
  }
  GenerationUsage usage() {
    MutexLock lock(&mu_);
    return usage_;
  }
  std::function<void(size_t)> on_token;  // set before the request is added

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<int32_t> tokens_ ABSL_GUARDED_BY(mu_);
  int32_t last_position_ ABSL_GUARDED_BY(mu_) = 0;
  bool in_call_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  FinishReason reason_ ABSL_GUARDED_BY(mu_) = FinishReason::kLength;
  GenerationUsage usage_ ABSL_GUARDED_BY(mu_);
};

GenerationRequest MakeRequest(int32_t first, uint32_t tokens_max) {
  GenerationRequest request;
  for (int32_t i = 0; i < 20; ++i) request.prompt.push_back(first + i);
  request.tokens_max = tokens_max;
  request.sampler.set_seed(FakeStages::kEndlessSeed);
  return request;
}

class GenerationEngineTest : public ::testing::Test {
 protected:
  void Begin(FakePipeline::Answers answers) {
    engine.emplace(GenerationEngineOptions{});
    pipeline = std::make_unique<FakePipeline>(&*engine, answers);
    ASSERT_TRUE(engine->Start(pipeline.get()).ok());
  }
  ~GenerationEngineTest() override {
    if (engine) engine->Stop(absl::OkStatus());
    pipeline.reset();
  }
  std::optional<GenerationEngine> engine;
  std::unique_ptr<FakePipeline> pipeline;
};

// The stages have not failed.
TEST_F(GenerationEngineTest, ARequestThatIsMovedAgainAndAgainGoesOn) {
  Begin(FakePipeline::Answers::kNever);
  const auto listener = std::make_shared<Listener>();
  ASSERT_TRUE(engine->Add(MakeRequest(1, 30), listener).ok());
  const auto next = [&](FakePipeline::Answers answers) {
    engine->Detach();
    pipeline = std::make_unique<FakePipeline>(&*engine, answers);
    ASSERT_TRUE(engine->Restart(pipeline.get()).ok());
  };
  for (int moves = 0; moves < 5; ++moves) {
    EXPECT_FALSE(engine->Quiesce(std::chrono::milliseconds(1), Wanted));
    next(FakePipeline::Answers::kNever);
  }
  engine->Pause();
  next(FakePipeline::Answers::kOnThread);
  EXPECT_TRUE(listener->Wait().ok());
}

TEST_F(GenerationEngineTest, GeneratesWhicheverThreadAnswers) {
  for (const auto answers :
       {FakePipeline::Answers::kInsideSubmit, FakePipeline::Answers::kOnThread}) {
    if (engine) engine->Stop(absl::OkStatus());
    pipeline.reset();
    Begin(answers);
    const auto listener = std::make_shared<Listener>();
    ASSERT_TRUE(engine->Add(MakeRequest(1, 30), listener).ok());
    EXPECT_TRUE(listener->Wait().ok());
    EXPECT_EQ(listener->tokens(), FakeStages::Alone(FakePipeline::Facts(), MakeRequest(1, 30), 30));
    EXPECT_EQ(listener->reason(), FinishReason::kLength);
    EXPECT_EQ(listener->usage().tokens, 30);
    EXPECT_EQ(engine->Stats().tokens, 30);
  }
}

TEST_F(GenerationEngineTest, AStepThatNoLinkTakesEndsItsRequest) {
  Begin(FakePipeline::Answers::kOnThread);
  const auto good = std::make_shared<Listener>(), bad = std::make_shared<Listener>();
  GenerationRequest request = MakeRequest(2, 30);
  request.sampler.set_grammar(FakePipeline::kTooLarge);
  ASSERT_TRUE(engine->Add(MakeRequest(1, 30), good).ok());
  ASSERT_TRUE(engine->Add(request, bad).ok());
  EXPECT_THAT(bad->Wait(), StatusIs(Code::kInvalidArgument, HasSubstr("too large")));
  EXPECT_TRUE(good->Wait().ok());
  EXPECT_EQ(good->tokens(), FakeStages::Alone(FakePipeline::Facts(), MakeRequest(1, 30), 30));
}

TEST_F(GenerationEngineTest, ManyThreadsAddAndCancelAtOnce) {
  Begin(FakePipeline::Answers::kOnThread);
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < 20; ++i) {
        const auto listener = std::make_shared<Listener>();
        const GenerationRequest request = MakeRequest(t * 100 + i, 40);
        const auto id = engine->Add(request, listener);
        ASSERT_TRUE(id.ok()) << id.status();
        if (i % 3 == 1) engine->Cancel(*id);
        if (i % 3 == 2) engine->Finish(*id);
        EXPECT_TRUE(listener->Wait().ok());
        const std::vector<int32_t> tokens = listener->tokens();
        EXPECT_TRUE(i % 3 != 0 || tokens.size() == 40);
        EXPECT_EQ(tokens, FakeStages::Alone(FakePipeline::Facts(), request, tokens.size()));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(engine->Stats().requests, 120);
}

TEST_F(GenerationEngineTest, AListenerMayCancelFinishAndAdd) {
  Begin(FakePipeline::Answers::kInsideSubmit);
  const auto listener = std::make_shared<Listener>();
  const auto other = std::make_shared<Listener>();
  // Requests are numbered from 1.
  listener->on_token = [&](size_t n) {
    if (n == 5) engine->Cancel(1);
    if (n == 3) {
      EXPECT_TRUE(engine->Add(MakeRequest(50, 10), other).ok());
    }
  };
  other->on_token = [&](size_t n) {
    if (n == 5) engine->Finish(2);
  };
  ASSERT_TRUE(engine->Add(MakeRequest(1, 30), listener).ok());
  EXPECT_TRUE(listener->Wait().ok());
  EXPECT_TRUE(other->Wait().ok());
  EXPECT_EQ(listener->reason(), FinishReason::kCancelled);
  EXPECT_EQ(other->reason(), FinishReason::kEndOfGeneration);
  EXPECT_GE(other->tokens().size(), 5);
}

TEST_F(GenerationEngineTest, WaitsForRoomInTheFirstStage) {
  Begin(FakePipeline::Answers::kOnThread);
  pipeline->RefuseNext(1, /*has_room_at_once=*/false);
  const auto listener = std::make_shared<Listener>();
  ASSERT_TRUE(engine->Add(MakeRequest(1, 10), listener).ok());
  EXPECT_FALSE(listener->ended());
  engine->OnWritable();
  EXPECT_TRUE(listener->Wait().ok());
  EXPECT_EQ(listener->tokens(), FakeStages::Alone(FakePipeline::Facts(), MakeRequest(1, 10), 10));
}

TEST_F(GenerationEngineTest, NoticesRoomThatComesWhileItIsRefused) {
  Begin(FakePipeline::Answers::kOnThread);
  pipeline->RefuseNext(3, /*has_room_at_once=*/true);
  const auto listener = std::make_shared<Listener>();
  ASSERT_TRUE(engine->Add(MakeRequest(1, 10), listener).ok());
  EXPECT_TRUE(listener->Wait().ok());
}

TEST_F(GenerationEngineTest, ABrokenPipelineEndsEveryRequestWithItsStatus) {
  Begin(FakePipeline::Answers::kNever);
  std::vector<std::shared_ptr<Listener>> listeners;
  for (int i = 0; i < 10; ++i) {
    listeners.push_back(std::make_shared<Listener>());
    ASSERT_TRUE(engine->Add(MakeRequest(i, 10), listeners.back()).ok());
  }
  pipeline->Break(absl::UnavailableError("node-2 is gone"));
  for (const auto& listener : listeners) {
    EXPECT_THAT(listener->Wait(), StatusIs(Code::kUnavailable, HasSubstr("node-2")));
  }
  EXPECT_THAT(engine->Add(MakeRequest(1, 1), listeners[0]),
              StatusIs(Code::kUnavailable, HasSubstr("node-2")));
  EXPECT_TRUE(engine->idle());
}

TEST_F(GenerationEngineTest, RequestsGoOnInThePlaceOfABrokenPipeline) {
  Begin(FakePipeline::Answers::kOnThread);
  std::vector<std::shared_ptr<Listener>> listeners;
  absl::Notification in_progress;
  for (int i = 0; i < 6; ++i) {
    listeners.push_back(std::make_shared<Listener>());
    if (i == 0) {
      listeners[0]->on_token = [&](size_t n) {
        if (n == 5) in_progress.Notify();
      };
    }
    ASSERT_TRUE(engine->Add(MakeRequest(i, 60), listeners.back()).ok());
  }
  in_progress.WaitForNotification();
  engine->Pause();
  engine->Detach();
  pipeline.reset();
  // A request that comes meanwhile waits, too.
  listeners.push_back(std::make_shared<Listener>());
  ASSERT_TRUE(engine->Add(MakeRequest(6, 60), listeners.back()).ok());
  EXPECT_FALSE(listeners.back()->ended());

  pipeline = std::make_unique<FakePipeline>(&*engine, FakePipeline::Answers::kInsideSubmit);
  ASSERT_TRUE(engine->Restart(pipeline.get()).ok());
  for (int i = 0; i < 7; ++i) {
    EXPECT_TRUE(listeners[i]->Wait().ok());
    EXPECT_EQ(listeners[i]->tokens(),
              FakeStages::Alone(FakePipeline::Facts(), MakeRequest(i, 60), 60));
  }
}

TEST_F(GenerationEngineTest, QuiescesWhenStepsInFlightAreDone) {
  Begin(FakePipeline::Answers::kOnThread);
  std::vector<std::shared_ptr<Listener>> listeners;
  absl::Notification in_progress;
  for (int i = 0; i < 4; ++i) {
    listeners.push_back(std::make_shared<Listener>());
    if (i == 0) {
      listeners[0]->on_token = [&](size_t n) {
        if (n == 5) in_progress.Notify();
      };
    }
    ASSERT_TRUE(engine->Add(MakeRequest(i, 60), listeners.back()).ok());
  }
  in_progress.WaitForNotification();
  ASSERT_TRUE(engine->Quiesce(std::chrono::minutes(1), Wanted));
  const SchedulerStats stats = engine->Stats();
  EXPECT_EQ(stats.steps_in_flight, 0u);
  // A new request is accepted, but no step is formed for it.
  listeners.push_back(std::make_shared<Listener>());
  ASSERT_TRUE(engine->Add(MakeRequest(4, 60), listeners.back()).ok());
  EXPECT_EQ(engine->Stats().steps, stats.steps);
  engine->Detach();
  pipeline = std::make_unique<FakePipeline>(&*engine, FakePipeline::Answers::kInsideSubmit);
  const auto went_on = engine->Restart(pipeline.get());
  ASSERT_TRUE(went_on.ok()) << went_on.status();
  EXPECT_FALSE(*went_on) << "its caches are empty";
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(listeners[i]->Wait().ok());
    EXPECT_EQ(listeners[i]->tokens(),
              FakeStages::Alone(FakePipeline::Facts(), MakeRequest(i, 60), 60));
  }
}

TEST_F(GenerationEngineTest, DoesNotQuiesceWhereAStepDoesNotEnd) {
  Begin(FakePipeline::Answers::kNever);
  ASSERT_TRUE(engine->Add(MakeRequest(1, 10), std::make_shared<Listener>()).ok());
  EXPECT_FALSE(engine->Quiesce(std::chrono::milliseconds(30), Wanted));
  engine->Pause();
  EXPECT_FALSE(engine->Quiesce(std::chrono::minutes(10), Wanted));
}

TEST_F(GenerationEngineTest, QuiesceEndsWhenItIsNoLongerWanted) {
  Begin(FakePipeline::Answers::kNever);
  ASSERT_TRUE(engine->Add(MakeRequest(1, 10), std::make_shared<Listener>()).ok());
  int calls = 0;
  EXPECT_FALSE(engine->Quiesce(std::chrono::minutes(10), [&] { return ++calls < 3; }));
  EXPECT_EQ(calls, 3);
}

TEST_F(GenerationEngineTest, ResumesAfterQuiesce) {
  Begin(FakePipeline::Answers::kInsideSubmit);
  ASSERT_TRUE(engine->Quiesce(std::chrono::minutes(1), Wanted));
  const auto listener = std::make_shared<Listener>();
  ASSERT_TRUE(engine->Add(MakeRequest(1, 60), listener).ok());
  EXPECT_EQ(engine->Stats().steps, 0u);
  engine->Resume();
  EXPECT_TRUE(listener->Wait().ok());
  EXPECT_EQ(listener->tokens(), FakeStages::Alone(FakePipeline::Facts(), MakeRequest(1, 60), 60));
}

TEST_F(GenerationEngineTest, RequestsThatWaitForAPipelineMayBeCancelledAndFail) {
  Begin(FakePipeline::Answers::kNever);
  const auto cancelled = std::make_shared<Listener>(), failed = std::make_shared<Listener>();
  const auto id = engine->Add(MakeRequest(1, 10), cancelled);
  ASSERT_TRUE(id.ok());
  ASSERT_TRUE(engine->Add(MakeRequest(2, 10), failed).ok());
  engine->Pause();
  engine->Cancel(*id);
  EXPECT_TRUE(cancelled->Wait().ok());
  EXPECT_EQ(cancelled->reason(), FinishReason::kCancelled);
  engine->Fail(absl::ResourceExhaustedError("3 GiB are missing"));
  EXPECT_THAT(failed->Wait(), StatusIs(Code::kResourceExhausted, HasSubstr("3 GiB")));
  EXPECT_THAT(engine->Add(MakeRequest(3, 10), failed),
              StatusIs(Code::kResourceExhausted, HasSubstr("3 GiB")));

  // New requests are served again once there is room.
  pipeline = std::make_unique<FakePipeline>(&*engine, FakePipeline::Answers::kInsideSubmit);
  ASSERT_TRUE(engine->Restart(pipeline.get()).ok());
  const auto later = std::make_shared<Listener>();
  ASSERT_TRUE(engine->Add(MakeRequest(4, 10), later).ok());
  EXPECT_TRUE(later->Wait().ok());
  engine->Stop(absl::OkStatus());
  EXPECT_THAT(engine->Restart(pipeline.get()), StatusIs(Code::kUnavailable));
}

TEST_F(GenerationEngineTest, StopEndsRequestsAndCallsNoListenerAfterwards) {
  Begin(FakePipeline::Answers::kNever);
  const auto listener = std::make_shared<Listener>();
  ASSERT_TRUE(engine->Add(MakeRequest(1, 10), listener).ok());
  engine->Stop(absl::OkStatus());
  EXPECT_TRUE(listener->ended());
  EXPECT_EQ(listener->reason(), FinishReason::kCancelled);
  EXPECT_EQ(listener.use_count(), 1);
  EXPECT_THAT(engine->Add(MakeRequest(1, 1), listener), StatusIs(Code::kUnavailable));
}

TEST_F(GenerationEngineTest, DrainLetsRequestsFinishAndTakesNoOthers) {
  Begin(FakePipeline::Answers::kOnThread);
  const auto listener = std::make_shared<Listener>();
  ASSERT_TRUE(engine->Add(MakeRequest(1, 50), listener).ok());
  engine->Drain();
  EXPECT_THAT(engine->Add(MakeRequest(1, 1), listener), StatusIs(Code::kUnavailable));
  EXPECT_TRUE(listener->Wait().ok());
  EXPECT_EQ(listener->tokens().size(), 50);
}

TEST_F(GenerationEngineTest, TakesNoRequestsBeforeItHasStarted) {
  engine.emplace(GenerationEngineOptions{});
  const auto listener = std::make_shared<Listener>();
  EXPECT_THAT(engine->Add(MakeRequest(1, 1), listener), StatusIs(Code::kUnavailable));
  engine->Cancel(1);
  engine->OnWritable();
  engine->OnResult({});
  EXPECT_TRUE(engine->idle());
}

TEST_F(GenerationEngineTest, APipelineThatBrokeBeforeTheStartIsRefused) {
  engine.emplace(GenerationEngineOptions{});
  pipeline = std::make_unique<FakePipeline>(&*engine, FakePipeline::Answers::kNever);
  pipeline->Break(absl::UnavailableError("node-2 is gone"));
  EXPECT_THAT(engine->Start(pipeline.get()), StatusIs(Code::kUnavailable, HasSubstr("node-2")));
}

TEST_F(GenerationEngineTest, AFullQueueIsRefusedWithARetryHint) {
  engine.emplace(GenerationEngineOptions{.policy = {.queue_max = 4}});
  pipeline = std::make_unique<FakePipeline>(&*engine, FakePipeline::Answers::kNever);
  ASSERT_TRUE(engine->Start(pipeline.get()).ok());
  const auto listener = std::make_shared<Listener>();
  // Four have slots; three requests of one client may wait.
  for (int i = 0; i < 7; ++i) {
    ASSERT_TRUE(engine->Add(MakeRequest(i, 10), std::make_shared<Listener>()).ok());
  }
  const auto refused = engine->Add(MakeRequest(9, 10), listener);
  EXPECT_THAT(refused, StatusIs(Code::kResourceExhausted));
  EXPECT_TRUE(RetryAfterMs(refused.status()).has_value());
  EXPECT_EQ(engine->Stats().waiting, 3);
}

}  // namespace
}  // namespace strata
