// Features of links in memory only: they break on command, and run on a fake loop.
#include "tests/support/memory_link.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_event_loop.h"
#include "tests/support/recorder.h"
#include "transport/link/link_session.h"

namespace strata {
namespace {

Frame Step(uint64_t id) {
  wire::Step step;
  step.set_step_id(id);
  return MakeFrame(FrameType::kStep, step, Payload::Own(std::vector<float>{1, 2}));
}

class Ends {
 public:
  explicit Ends(MemoryDialOptions options = {}) {
    auto dialled = DialMemoryLink(
        std::move(options),
        [this](const wire::Hello&) -> absl::StatusOr<AcceptedLink> {
          AcceptedLink accepted;
          accepted.hello.set_credits(8);
          accepted.receiver = &acceptor_heard;
          accepted.on_open = [this](std::unique_ptr<Link> link) { acceptor = std::move(link); };
          return accepted;
        },
        &dialler_heard);
    EXPECT_TRUE(dialled.ok()) << dialled.status();
    dialler = std::move(dialled->link);
    wire = std::move(dialled->wire);
  }

  Recorder dialler_heard;
  Recorder acceptor_heard;
  std::unique_ptr<Link> acceptor;
  std::unique_ptr<Link> dialler;
  std::shared_ptr<MemoryWire> wire;
};

TEST(MemoryLink, ABrokenWireIsUnavailableAtBothEnds) {
  Ends ends;
  ends.wire->Break();
  EXPECT_TRUE(absl::IsUnavailable(ends.dialler_heard.WaitForClosed()));
  EXPECT_TRUE(absl::IsUnavailable(ends.acceptor_heard.WaitForClosed()));
  EXPECT_TRUE(absl::IsUnavailable(ends.dialler->Send(Step(0))));
}

TEST(MemoryLink, AFlippedBitIsNoticed) {
  for (size_t bit = 0; bit < 24 * 8; bit += 17) {
    Ends ends;
    ends.wire->FlipBitToAcceptor(bit);
    ASSERT_TRUE(ends.dialler->Send(Step(0)).ok());
    EXPECT_TRUE(absl::IsInvalidArgument(ends.dialler_heard.WaitForClosed())) << bit;
    EXPECT_TRUE(absl::IsInvalidArgument(ends.acceptor_heard.WaitForClosed())) << bit;
    EXPECT_EQ(ends.acceptor_heard.n_frames(), 0u);
  }
}

TEST(MemoryLink, APeerThatHangsDelaysDestructionForABoundedTime) {
  Ends ends;
  ends.wire->Stall();
  ASSERT_TRUE(ends.dialler->Send(Step(0)).ok());
  ends.dialler.reset();  // the test's own time-out is the bound
  EXPECT_EQ(ends.dialler_heard.n_closed(), 1u);
  ends.acceptor.reset();
  EXPECT_EQ(ends.acceptor_heard.n_closed(), 1u);
  EXPECT_EQ(ends.acceptor_heard.n_frames(), 0u);
}

TEST(MemoryLink, ResumeDeliversStalledFrames) {
  Ends ends;
  ends.wire->Stall();
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(ends.dialler->Send(Step(i)).ok());
  EXPECT_EQ(ends.acceptor_heard.n_frames(), 0u);
  ends.wire->Resume();
  EXPECT_TRUE(ends.acceptor_heard.WaitForFrames(5));
}

class MemoryLinkOnLoop : public testing::Test {
 protected:
  MemoryDialOptions Options(int64_t delay_ms) {
    MemoryDialOptions options;
    options.loop = &loop_;
    options.clock = &clock_;
    options.delay_ms = delay_ms;
    return options;
  }
  FakeClock clock_;
  FakeEventLoop loop_{&clock_};
};

TEST_F(MemoryLinkOnLoop, FramesArriveByTheClock) {
  Ends ends(Options(10));
  ASSERT_TRUE(ends.dialler->Send(Step(0)).ok());
  clock_.AdvanceMs(9);
  EXPECT_EQ(ends.acceptor_heard.n_frames(), 0u);
  ASSERT_TRUE(ends.dialler->Send(Step(1)).ok());
  clock_.AdvanceMs(1);
  EXPECT_EQ(ends.acceptor_heard.n_frames(), 1u);
  clock_.AdvanceMs(9);
  EXPECT_EQ(ends.acceptor_heard.n_frames(), 2u);
}

TEST_F(MemoryLinkOnLoop, NothingIsCalledFromInsideSendOrClose) {
  Ends ends(Options(0));
  ASSERT_TRUE(ends.dialler->Send(Step(0)).ok());
  EXPECT_EQ(ends.acceptor_heard.n_frames(), 0u);
  clock_.RunDue();
  EXPECT_EQ(ends.acceptor_heard.n_frames(), 1u);
  ends.dialler->Close(absl::OkStatus());
  EXPECT_EQ(ends.dialler_heard.n_closed(), 0u);
  clock_.RunDue();
  EXPECT_EQ(ends.dialler_heard.n_closed(), 1u);
  EXPECT_EQ(ends.acceptor_heard.n_closed(), 1u);
}

TEST_F(MemoryLinkOnLoop, DestroyingNeedsNoMoreTurnsOfTheLoop) {
  Ends ends(Options(5));
  ASSERT_TRUE(ends.dialler->Send(Step(0)).ok());
  ends.dialler.reset();
  EXPECT_EQ(ends.dialler_heard.n_closed(), 1u);
  clock_.AdvanceMs(20);
  EXPECT_EQ(ends.acceptor_heard.n_frames(), 1u);
  EXPECT_TRUE(ends.acceptor_heard.WaitForClosed().ok());
}

TEST_F(MemoryLinkOnLoop, APeerThatHangsIsGivenUpAfterTheCloseTime) {
  Ends ends(Options(0));
  ends.wire->Stall();
  ends.dialler->Close(absl::AbortedError("plan"));
  clock_.AdvanceMs(kLinkCloseMs - 1);
  EXPECT_EQ(ends.dialler_heard.n_closed(), 0u);
  clock_.AdvanceMs(1);
  EXPECT_TRUE(absl::IsAborted(ends.dialler_heard.WaitForClosed()));
  EXPECT_TRUE(absl::IsUnavailable(ends.acceptor_heard.WaitForClosed()));
}

}  // namespace
}  // namespace strata
