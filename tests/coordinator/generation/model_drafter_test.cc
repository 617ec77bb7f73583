// A draft model's drafts: real stages, whose draft model is right, wrong, slow to come or gone.
#include "coordinator/generation/model_drafter.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/generation/serving_support.h"
#include "transport/base/event_loop.h"

namespace strata {
namespace {

// A loop on a thread of its own.
class LoopThread {
 public:
  LoopThread() : loop_(EventLoop::Create()), thread_([this] { loop_->Run(); }) {}
  ~LoopThread() {
    loop_->Stop();
    thread_.join();
  }
  EventLoop* operator->() { return loop_.get(); }

 private:
  const std::unique_ptr<EventLoop> loop_;
  std::thread thread_;
};

// Its tokens hold up the engine, as a large model would: the draft model is ahead.
class SlowListener final : public GenerationListener {
 public:
  void OnToken(const wire::SampledToken& token) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(4));
    listener.OnToken(token);
  }
  void OnEnd(absl::Status status, FinishReason reason, const GenerationUsage& usage) override {
    listener.OnEnd(std::move(status), reason, usage);
  }

  Listener listener;
};

class ModelDrafterTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kTokens = 40;

  // Three stages whose draft model is `draft`'s; null: it is not loaded.
  GenerationEngineOptions WithDraft(const std::shared_ptr<GenerationEngine>& draft) {
    GenerationEngineOptions options;
    options.policy = {.chunk_tokens = 16, .speculation = wire::SPECULATION_DRAFT};
    options.model_drafter = [this, draft](std::function<void()> on_drafted) {
      return std::make_unique<ModelDrafter>(ModelDrafter::Options{
          .find =
              [this, draft] {
                ++finds_;
                return draft;
              },
          .post = [this](absl::AnyInvocable<void() &&> fn) { loop_->Post(std::move(fn)); },
          .on_drafted = std::move(on_drafted)});
    };
    return options;
  }
  static LocalPipelineOptions Cut(std::vector<uint32_t> cuts) {
    return {.model_path = ModelPath("llama"), .cuts = std::move(cuts), .n_slots = 4};
  }
  static std::vector<Output> Plain() {
    Serving plain("llama", {1, 2}, 4, {.chunk_tokens = 16, .speculation = wire::SPECULATION_OFF});
    std::vector<Output> outputs;
    for (int i = 0; i < 4; ++i) outputs.push_back(plain.Generate(MakeRequest(i, 30, kTokens)));
    return outputs;
  }
  static void ExpectEqual(const std::vector<Output>& got, const std::vector<Output>& plain) {
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_EQ(got[i].tokens, plain[i].tokens) << i;
      EXPECT_EQ(got[i].logprobs, plain[i].logprobs) << i;
    }
  }
  std::vector<Output> Generate(Serving* serving) {
    std::vector<Output> outputs;
    for (int i = 0; i < 4; ++i) {
      const auto slow = std::make_shared<SlowListener>();
      EXPECT_TRUE(serving->engine->Add(MakeRequest(i, 30, kTokens), slow).ok());
      EXPECT_TRUE(slow->listener.WaitForEnd().ok());
      outputs.push_back(slow->listener.output());
    }
    return outputs;
  }

  std::atomic<int> finds_ = 0;
  LoopThread loop_;
};

TEST_F(ModelDrafterTest, TheSameModelDraftsRightlyAlsoWhereItDraws) {
  Serving draft(Cut({}), {.chunk_tokens = 16});
  Serving serving(Cut({1, 2}), WithDraft(draft.engine));
  ExpectEqual(Generate(&serving), Plain());
  const SchedulerStats stats = serving.engine->Stats();
  EXPECT_GT(stats.draft_tokens(), 20u);
  EXPECT_EQ(stats.accepted_tokens(), stats.draft_tokens());
  EXPECT_EQ(stats.drafts[0][0].computed, 0u);  // all are the model's
  // Each continuation goes on from the cache of the one before.
  const SchedulerStats drafts = draft.engine->Stats();
  EXPECT_LT(drafts.prompt_tokens - drafts.cached_tokens, 2 * 4 * 30u);
  EXPECT_GT(drafts.requests, 20u);
}

TEST_F(ModelDrafterTest, AnotherModelChangesNothing) {
  Serving draft({.model_path = ModelPath("qwen3"), .cuts = {}, .n_slots = 4},
                GenerationEngineOptions{.policy = {.chunk_tokens = 16}});
  Serving serving(Cut({1, 2}), WithDraft(draft.engine));
  ExpectEqual(Generate(&serving), Plain());
  const SchedulerStats stats = serving.engine->Stats();
  EXPECT_GT(stats.draft_tokens(), stats.accepted_tokens());
}

TEST_F(ModelDrafterTest, ItsLossIsNoError) {
  Serving draft(Cut({}), {.chunk_tokens = 16});
  Serving serving(Cut({1, 2}), WithDraft(draft.engine));
  const auto listener = std::make_shared<Listener>();
  ASSERT_TRUE(serving.engine->Add(MakeRequest(0, 30, kTokens), listener).ok());
  listener->WaitForTokens(10);
  draft.engine->Stop(absl::UnavailableError("gone"));
  EXPECT_TRUE(listener->WaitForEnd().ok());
  EXPECT_EQ(listener->output().tokens, Plain()[0].tokens);
}

TEST_F(ModelDrafterTest, WhereItIsNotLoadedItIsLookedForNowAndThen) {
  Serving serving(Cut({1, 2}), WithDraft(nullptr));
  ExpectEqual(Generate(&serving), Plain());
  EXPECT_EQ(serving.engine->Stats().draft_tokens(), 0u);
  EXPECT_GE(finds_, 4);
  EXPECT_LE(finds_, 4 * 5);
}

TEST_F(ModelDrafterTest, ARequestMayForbidIt) {
  Serving draft(Cut({}), {.chunk_tokens = 16});
  Serving serving(Cut({1, 2}), WithDraft(draft.engine));
  GenerationRequest request = MakeRequest(0, 30, kTokens);
  request.speculation = wire::SPECULATION_NGRAM;
  EXPECT_EQ(serving.Generate(request).tokens, Plain()[0].tokens);
  EXPECT_EQ(finds_, 0);
}

}  // namespace
}  // namespace strata
