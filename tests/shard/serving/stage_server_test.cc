#include "shard/serving/stage_server.h"

#include <utility>

#include "absl/status/status_matchers.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/shard/serving/stage_server_fixture.h"
#include "tests/support/log_capture.h"
#include "transport/rpc/grpc_status.h"

namespace strata {
namespace {

using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(StageServerTest, SendsActivationsToTheNextStage) {
  ConnectOut();
  ConnectIn();
  ASSERT_TRUE(in_->Send(StepFrame(1)).ok());
  const Frame frame = out_end_.Next();
  EXPECT_EQ(frame.type, FrameType::kStep);
  EXPECT_THAT(frame.payload.floats(), ElementsAre(2.5f, -1.0f));
  wire::Step step;
  ASSERT_TRUE(ParseHeader(frame, &step).ok());
  EXPECT_EQ(step.step_id(), 1);
  EXPECT_THAT(step.tokens(), ElementsAre(1));
  ASSERT_EQ(step.timings_size(), 1);
  EXPECT_EQ(step.timings(0).stage(), 1);
}

TEST_F(StageServerTest, SendsByItsRuleAndReadsByTheStepsType) {
  ConnectOut();
  ConnectIn();
  wire::ActivationRule rule;
  rule.set_type(wire::F16);
  rule.set_f32_rows_max(1);
  ASSERT_TRUE(server_->SetActivations(rule).ok());
  EXPECT_EQ(server_->activations().type(), wire::F16);
  ASSERT_TRUE(in_->Send(StepFrame(1)).ok());
  Frame frame = out_end_.Next();
  wire::Step step;
  ASSERT_TRUE(ParseHeader(frame, &step).ok());
  EXPECT_EQ(step.activation_type(), wire::F32);
  EXPECT_THAT(frame.payload.floats(), ElementsAre(2.5f, -1.0f));
  // Two rows, that come as bf16: 1.5, -2, 3, 0.
  ASSERT_TRUE(ParseHeader(StepFrame(2), &step).ok());
  step.add_tokens(1);
  step.add_positions(1);
  step.add_slots(0);
  step.set_activation_type(wire::BF16);
  const std::string bytes("\xc0\x3f\x00\xc0\x40\x40\x00\x00", 8);
  ASSERT_TRUE(in_->Send(MakeFrame(FrameType::kStep, step, Payload::Own(bytes))).ok());
  frame = out_end_.Next();
  ASSERT_TRUE(ParseHeader(frame, &step).ok());
  EXPECT_EQ(step.activation_type(), wire::F16);
  // 2.5, -1, 4, 1
  EXPECT_EQ(frame.payload.bytes(), absl::string_view("\x00\x41\x00\xbc\x00\x44\x00\x3c", 8));
}

TEST_F(StageServerTest, RefusesARuleThatDoesNotFitItsRows) {
  wire::ActivationRule rule;
  rule.set_type(wire::Q8_0);
  EXPECT_THAT(server_->SetActivations(rule),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rows of 2 values")));
  rule.set_type(static_cast<wire::ActivationType>(9));
  EXPECT_THAT(server_->SetActivations(rule), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(server_->activations().type(), wire::F32);
}

TEST_F(StageServerTest, CountsWhatItDoes) {
  ConnectOut();
  ConnectIn();
  const Frame in = StepFrame(1);
  ASSERT_TRUE(in_->Send(in).ok());
  const Frame out = out_end_.Next();
  wire::Step step;
  ASSERT_TRUE(ParseHeader(out, &step).ok());
  EXPECT_EQ(step.timings(0).bytes_in(), FrameBytes(in));
  ASSERT_TRUE(in_->Send(StepFrame(2)).ok());
  out_end_.Next();
  // The last frame is counted a moment after it is sent.
  StageServer::Work work = server_->work();
  EXPECT_EQ(work.rows, 2);
  EXPECT_EQ(work.bytes_in, 2 * FrameBytes(in));
  EXPECT_GE(work.bytes_out, FrameBytes(out));
  EXPECT_GE(work.busy_us, 0);
  server_.reset();
  Start(&gate_);
  ConnectOut();
  in_.reset();
  ConnectIn();
  // A running step counts, too, and its time only grows.
  ASSERT_TRUE(in_->Send(StepFrame(1)).ok());
  int64_t busy_us = 0;
  for (int i = 0; i < 1000 || busy_us == 0; ++i) {
    const int64_t now_us = server_->work().busy_us;
    ASSERT_GE(now_us, busy_us);
    busy_us = now_us;
  }
  gate_.Notify();
  out_end_.Next();
  EXPECT_GE(server_->work().busy_us, busy_us);
}

TEST_F(StageServerTest, KeepsStepsInOrder) {
  ConnectOut();
  ConnectIn();
  for (uint64_t id = 1; id <= kInboxStepsMax; ++id) ASSERT_TRUE(in_->Send(StepFrame(id)).ok());
  for (uint64_t id = 1; id <= kInboxStepsMax; ++id) {
    wire::Step step;
    ASSERT_TRUE(ParseHeader(out_end_.Next(), &step).ok());
    EXPECT_EQ(step.step_id(), id);
  }
}

TEST_F(StageServerTest, ForwardsAFailedStepAndServesTheNext) {
  ConnectOut();
  ConnectIn();
  ASSERT_TRUE(in_->Send(StepFrame(1, 66)).ok());
  ASSERT_TRUE(in_->Send(StepFrame(2)).ok());
  const Frame failed = out_end_.Next();
  ASSERT_EQ(failed.type, FrameType::kError);
  wire::StepError error;
  ASSERT_TRUE(ParseHeader(failed, &error).ok());
  EXPECT_EQ(error.step_id(), 1);
  EXPECT_THAT(FromWire(error.status()),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("stage 1 (layers 2-3)")));
  EXPECT_EQ(out_end_.Next().type, FrameType::kStep);
}

TEST_F(StageServerTest, ForwardsAnEarlierStagesFailure) {
  ConnectOut();
  ConnectIn();
  wire::StepError error;
  error.set_step_id(9);
  ASSERT_TRUE(in_->Send(MakeFrame(FrameType::kError, error)).ok());
  EXPECT_EQ(out_end_.Next().type, FrameType::kError);
}

TEST_F(StageServerTest, ReportsAnUnsupportedEdit) {
  ConnectOut();
  ConnectIn();
  wire::Step step;
  ASSERT_TRUE(ParseHeader(StepFrame(1), &step).ok());
  step.clear_tokens();
  step.clear_positions();
  step.clear_slots();
  step.add_edits()->set_kind(wire::KvEdit::SHIFT);
  ASSERT_TRUE(in_->Send(MakeFrame(FrameType::kStep, step)).ok());
  EXPECT_EQ(out_end_.Next().type, FrameType::kError);
}

TEST_F(StageServerTest, FullInboxPushesBackOnTheSender) {
  server_.reset();
  Start(&gate_);
  ConnectOut();
  ConnectIn();
  // One step is being computed; the inbox holds the rest that was granted.
  uint64_t taken = 0;
  absl::Status last;
  for (uint64_t id = 1; id <= 4 * kInboxStepsMax && last.ok(); ++id) {
    last = in_->Send(StepFrame(id));
    if (last.ok()) ++taken;
  }
  EXPECT_THAT(last, StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_GE(taken, kInboxStepsMax);
  EXPECT_LE(taken, kInboxStepsMax + 1);
  gate_.Notify();
  for (uint64_t i = 0; i < taken; ++i) out_end_.Next();
}

TEST_F(StageServerTest, WaitsForTheNextStageToHaveRoom) {
  ConnectOut(/*credits=*/1);
  ConnectIn();
  for (uint64_t id = 1; id <= 4; ++id) ASSERT_TRUE(in_->Send(StepFrame(id)).ok());
  for (uint64_t id = 1; id <= 4; ++id) {
    wire::Step step;
    ASSERT_TRUE(ParseHeader(out_end_.Next(), &step).ok());
    EXPECT_EQ(step.step_id(), id);
    out_->Release(1);
  }
}

// Otherwise its node would take it for hung.
TEST_F(StageServerTest, WaitingForRoomAtTheNextStageIsNoLongStep) {
  ConnectOut(1);
  ConnectIn();
  ASSERT_TRUE(in_->Send(StepFrame(1)).ok());
  ASSERT_TRUE(in_->Send(StepFrame(2)).ok());
  const absl::Time until = absl::Now() + kStageServerPatience;
  while (server_->work().rows < 2 && absl::Now() < until) absl::SleepFor(absl::Milliseconds(1));
  ASSERT_EQ(server_->work().rows, 2u);
  absl::SleepFor(absl::Seconds(1));
  while (server_->busy_ms() > 500 && absl::Now() < until) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_LE(server_->busy_ms(), 500u);
  EXPECT_EQ(server_->steps_done(), 1u);
  out_end_.Next();
  out_->Release(1);
  out_end_.Next();
}

TEST_F(StageServerTest, IsIdleAfterForwardingAFailureThatWaited) {
  ConnectOut(1);
  ConnectIn();
  ASSERT_TRUE(in_->Send(StepFrame(1)).ok());
  wire::StepError error;
  error.set_step_id(2);
  ASSERT_TRUE(in_->Send(MakeFrame(FrameType::kError, error)).ok());
  out_end_.Next();
  absl::SleepFor(absl::Milliseconds(100));
  out_->Release(1);
  EXPECT_EQ(out_end_.Next().type, FrameType::kError);
  absl::SleepFor(absl::Milliseconds(100));
  EXPECT_EQ(server_->busy_ms(), 0u);
}

TEST_F(StageServerTest, AStepOfAnOldEpochClosesTheLinksAsAborted) {
  ConnectOut();
  ConnectIn();
  wire::Step step;
  const Frame good = StepFrame(1);
  ASSERT_TRUE(ParseHeader(good, &step).ok());
  step.mutable_epoch()->set_counter(2);
  ASSERT_TRUE(in_->Send(MakeFrame(FrameType::kStep, step, good.payload)).ok());
  EXPECT_THAT(in_end_.Closed(), StatusIs(absl::StatusCode::kAborted, HasSubstr("epoch")));
  EXPECT_THAT(out_end_.Closed(), StatusIs(absl::StatusCode::kAborted));
}

// A hostile member: frames after the breach are not run, the breach is logged once, and the next
// peer is served.
TEST_F(StageServerTest, AHostileStageBeforeIsCutOffAndLoggedOnce) {
  const auto old_epoch = [](uint64_t id) {
    wire::Step step;
    EXPECT_TRUE(ParseHeader(StepFrame(id), &step).ok());
    step.mutable_epoch()->set_counter(2);
    return MakeFrame(FrameType::kStep, step, Payload::Own(std::vector<float>{1.5f, -2.0f}));
  };
  const auto wrong_shape = [](uint64_t id) {
    Frame frame = StepFrame(id);
    frame.payload = Payload::Own(std::vector<float>(7));
    return frame;
  };
  struct Breach {
    Frame frame;
    std::string why;
  };
  const Breach breaches[] = {{old_epoch(1), "epoch"},
                             {wrong_shape(1'000), "bytes"},
                             {{.type = FrameType::kResult}, "unexpected frame"}};
  uint64_t id = 0;
  for (const Breach& breach : breaches) {
    SCOPED_TRACE(breach.why);
    testing::LogCapture log;
    AwaitNoLinks();
    ConnectOut();
    const uint64_t steps = server_->steps_done();
    {
      Collector end;
      const std::unique_ptr<Link> hostile = DialIn(&end);
      ASSERT_TRUE(hostile->Send(breach.frame).ok());
      // Within the credits granted; frames on a closed link are not taken.
      for (int i = 0; i < 6; ++i) static_cast<void>(hostile->Send(StepFrame(++id)));
      EXPECT_THAT(end.Closed().message(), HasSubstr(breach.why));
    }
    const std::vector<std::string> reported = log.WaitFor("the link before stage 1");
    EXPECT_THAT(reported, ElementsAre(HasSubstr(breach.why)));
    EXPECT_EQ(server_->steps_done(), steps) << "a frame after the breach was run";

    AwaitNoLinks();
    ConnectOut();
    Collector end;
    const std::unique_ptr<Link> next = DialIn(&end);
    ASSERT_TRUE(next->Send(StepFrame(++id)).ok());
    EXPECT_EQ(out_end_.Next().type, FrameType::kStep);
  }
}

TEST_F(StageServerTest, WrongShapesCloseTheLinksWithBothFigures) {
  ConnectOut();
  ConnectIn();
  Frame frame = StepFrame(1);
  frame.payload = Payload::Own(std::vector<float>(3));
  ASSERT_TRUE(in_->Send(std::move(frame)).ok());
  EXPECT_THAT(in_end_.Closed(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("payload of 12 bytes")));
}

TEST_F(StageServerTest, ReportsABrokenNextStageToTheStageBefore) {
  ConnectOut();
  ConnectIn();
  out_wire_->Break();
  EXPECT_THAT(in_end_.Closed(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("the link after it ended")));
}

TEST_F(StageServerTest, ReportsABrokenStageBeforeToTheNextAndAcceptsAnother) {
  ConnectOut();
  ConnectIn();
  in_wire_->Break();
  EXPECT_THAT(out_end_.Closed(), StatusIs(absl::StatusCode::kUnavailable));
  in_.reset();
  // Both links have gone; new ones serve.
  Collector again;
  absl::StatusOr<DialledMemoryLink> dialled = absl::UnavailableError("");
  while (absl::IsUnavailable(dialled.status())) dialled = Dial(Before(), &again);
  ASSERT_TRUE(dialled.ok()) << dialled.status();
}

TEST_F(StageServerTest, RefusesLinksThatDoNotFit) {
  Collector end;
  wire::Hello hello = Before();
  hello.mutable_epoch()->set_counter(2);
  EXPECT_THAT(Dial(hello, &end), StatusIs(absl::StatusCode::kAborted));
  hello = Before();
  hello.set_model_id("other");
  EXPECT_THAT(Dial(hello, &end),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("another model")));
  hello = Before();
  hello.set_from_stage(2);
  EXPECT_THAT(Dial(hello, &end), StatusIs(absl::StatusCode::kFailedPrecondition));
  hello = Before();
  hello.set_n_embd(3);
  EXPECT_THAT(Dial(hello, &end),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("rows of 2 floats")));
  ConnectIn();
  EXPECT_THAT(Dial(Before(), &end),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("has a link already")));
}

TEST_F(StageServerTest, RunsTasksBetweenStepsAndBoundsThem) {
  server_.reset();
  Start(&gate_);
  ConnectOut();
  ConnectIn();
  absl::Notification ran;
  ASSERT_TRUE(server_
                  ->Post([&](Stage* stage) {
                    EXPECT_NE(stage, nullptr);
                    ran.Notify();
                  })
                  .ok());
  ran.WaitForNotification();
  ASSERT_TRUE(in_->Send(StepFrame(1)).ok());
  // While the step waits at its gate, tasks pile up to their bound.
  absl::Status last;
  int posted = 0, unloaded = 0;
  while (last.ok() && posted < 1000) {
    last = server_->Post([&](Stage* stage) { unloaded += stage == nullptr; });
    if (last.ok()) ++posted;
  }
  EXPECT_THAT(last, StatusIs(absl::StatusCode::kResourceExhausted));
  gate_.Notify();
  server_.reset();
}

TEST_F(StageServerTest, AFailedLoadIsReportedAndServesNothing) {
  absl::Notification reported;
  auto server = StageServer::Start(
      Spec(), Clock::Real(),
      []() -> absl::StatusOr<std::unique_ptr<Stage>> {
        return absl::ResourceExhaustedError("needs 9 GiB, 1 GiB are free");
      },
      [&](const absl::StatusOr<Stage::Facts>& facts) {
        EXPECT_THAT(facts, StatusIs(absl::StatusCode::kResourceExhausted));
        reported.Notify();
      });
  reported.WaitForNotification();
  EXPECT_TRUE(server->load_failed());
  EXPECT_THAT(server->Accept(Before()), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(server->Post([](Stage*) {}), StatusIs(absl::StatusCode::kFailedPrecondition));
}

}  // namespace
}  // namespace strata
