// A stage that is the whole model: its results are sent while it begins the next step.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/shard/engine/stage_chain.h"
#include "tests/shard/serving/stage_server_fixture.h"

namespace strata {
namespace {

// A stage that is a whole model, on an asynchronous device: each token is followed by the next id,
// and BeginLookahead() calls `begin`, which may block.
class WholeStage final : public StageWithoutCaches {
 public:
  explicit WholeStage(std::unique_ptr<Stage> real, absl::AnyInvocable<void()> begin)
      : real_(std::move(real)), begin_(std::move(begin)), logits_(real_->facts().n_vocab) {}
  absl::Status Decode(const Batch& batch) override {
    used_lookahead_ = std::exchange(has_begun_, false);
    std::fill(logits_.begin(), logits_.end(), 0.0f);
    logits_[batch.tokens.back() + 1] = 1.0f;
    return absl::OkStatus();
  }
  bool BeginLookahead(const Batch&) override {
    begin_();
    has_begun_ = true;
    return true;
  }
  bool UsedLookahead() const override { return used_lookahead_; }
  Payload TakeActivations() override { return {}; }
  absl::Span<const float> Logits(size_t) override { return logits_; }
  absl::Status Apply(const wire::KvEdit&) override { return absl::OkStatus(); }
  const llama_vocab* vocab() const override { return real_->vocab(); }
  const Facts& facts() const override { return real_->facts(); }

 private:
  const std::unique_ptr<Stage> real_;  // gives the vocabulary
  absl::AnyInvocable<void()> begin_;
  std::vector<float> logits_;
  bool has_begun_ = false, used_lookahead_ = false;
};

class WholeStageServerTest : public StageServerTest {
 protected:
  static wire::StageSpec WholeSpec() {
    wire::StageSpec spec = Spec();
    spec.set_stage(0);
    spec.set_n_stages(1);
    spec.mutable_layers()->set_begin(0);
    return spec;
  }
  // `begin` is called on the compute thread.
  void StartWhole(absl::AnyInvocable<void()> begin, uint32_t credits = 64) {
    server_.reset();
    Start(WholeSpec(), [&begin] {
      StartEngine();
      auto model = ModelFile::Open(STRATA_DEMO_MODEL);
      EXPECT_TRUE(model.ok()) << model.status();
      return std::make_unique<WholeStage>(LoadStage(*model, {0, 6}, StageOptions()),
                                          std::move(begin));
    });
    ConnectOut(credits);
    wire::Hello before = Before();
    before.set_from_stage(1);
    before.set_to_stage(0);
    before.set_n_embd(0);
    ConnectIn(before);
  }
  // The sequence is of consecutive token ids, none of which ends it.
  static constexpr int32_t kFirstToken = 100;
  static Frame DecodeStep(int32_t position) {
    wire::Step step;
    step.set_model_id("model");
    *step.mutable_epoch() = Spec().epoch();
    step.set_step_id(static_cast<uint64_t>(position) + 1);
    step.add_tokens(kFirstToken + position);
    step.add_positions(position);
    step.add_slots(0);
    step.add_sample_rows(0);
    if (position == 0) {
      wire::SequenceOpen* open = step.add_opens();
      open->set_slot(0);
      open->add_prompt(kFirstToken);
    }
    return MakeFrame(FrameType::kStep, step);
  }
  void ExpectResult(int32_t position) {
    wire::Result result;
    const Frame frame = out_end_.Next();
    ASSERT_EQ(frame.type, FrameType::kResult);
    ASSERT_TRUE(ParseHeader(frame, &result).ok());
    EXPECT_EQ(result.step_id(), static_cast<uint64_t>(position) + 1);
    ASSERT_EQ(result.tokens_size(), 1) << result.DebugString();
    EXPECT_EQ(result.tokens(0).token(), kFirstToken + position + 1);
  }
};

TEST_F(WholeStageServerTest, SendsAResultWhileTheStageBeginsTheNextStep) {
  absl::Notification result_received;
  std::atomic<int> n_begun = 0;
  StartWhole([&] {
    ++n_begun;
    EXPECT_TRUE(result_received.WaitForNotificationWithTimeout(kStageServerPatience))
        << "the result waits for the device";
  });
  int32_t position = 0;
  const auto run_until_begun = [&](int wanted) {
    for (; n_begun < wanted && position < 3000; ++position) {
      ASSERT_TRUE(in_->Send(DecodeStep(position)).ok());
      ExpectResult(position);
      // It begins only where the next step has not come yet.
      absl::SleepFor(absl::Milliseconds(1));
    }
    EXPECT_GE(n_begun, wanted);
  };
  run_until_begun(1);
  result_received.Notify();
  run_until_begun(10);
}

TEST_F(WholeStageServerTest, UnloadsWhileAResultWaitsForRoom) {
  StartWhole([] {}, /*credits=*/4);
  for (int32_t position = 0; position < 4; ++position) {
    ASSERT_TRUE(in_->Send(DecodeStep(position)).ok());
    ExpectResult(position);
  }
  ASSERT_TRUE(in_->Send(DecodeStep(4)).ok());
  while (server_->work().rows < 5) absl::SleepFor(absl::Milliseconds(1));
  server_.reset();
}

}  // namespace
}  // namespace strata
