#include "tests/support/faulty_link.h"

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/support/memory_link.h"
#include "tests/support/recorder.h"
#include "tests/transport/link/step_frame.h"

namespace strata {
namespace {

// A memory link whose dialler's end is faulty.
class Faulty {
 public:
  explicit Faulty(FaultyLink::Faults faults)
      : dialler(std::make_unique<FaultyLink>(std::move(faults), &dialler_heard)) {
    auto dialled = DialMemoryLink(
        {},
        [this](const wire::Hello&) -> absl::StatusOr<AcceptedLink> {
          AcceptedLink accepted;
          accepted.hello.set_credits(8);
          accepted.receiver = &acceptor_heard;
          accepted.on_open = [this](std::unique_ptr<Link> link) { acceptor = std::move(link); };
          return accepted;
        },
        dialler->inner_receiver());
    EXPECT_TRUE(dialled.ok()) << dialled.status();
    dialler->SetInner(std::move(dialled->link));
  }

  Recorder dialler_heard;
  Recorder acceptor_heard;
  std::unique_ptr<Link> acceptor;
  std::unique_ptr<FaultyLink> dialler;
};

TEST(FaultyLink, BreaksAfterTheGivenNumberOfFrames) {
  FaultyLink::Faults faults;
  faults.break_after_frames = 3;
  Faulty link(std::move(faults));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(link.dialler->Send(Step(i)).ok());
  EXPECT_TRUE(absl::IsUnavailable(link.dialler->Send(Step(3))));
  EXPECT_TRUE(absl::IsUnavailable(link.acceptor_heard.WaitForClosed()));
  EXPECT_TRUE(absl::IsUnavailable(link.dialler_heard.WaitForClosed()));
  EXPECT_EQ(link.acceptor_heard.n_frames(), 3u);
}

TEST(FaultyLink, HeldFramesArriveInOrderWhenReleased) {
  Faulty link({});
  link.dialler->Hold();
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(link.dialler->Send(Step(i)).ok());
  EXPECT_EQ(link.acceptor_heard.n_frames(), 0u);
  link.dialler->LetGo();
  ASSERT_TRUE(link.acceptor_heard.WaitForFrames(5));
  for (uint64_t i = 0; i < 5; ++i) EXPECT_EQ(StepId(link.acceptor_heard.frames()[i]), i);
}

TEST(FaultyLink, TampersWithFramesInTransit) {
  FaultyLink::Faults faults;
  faults.tamper = [](Frame* frame) { *frame = Step(StepId(*frame) + 100); };
  Faulty link(std::move(faults));
  ASSERT_TRUE(link.dialler->Send(Step(1)).ok());
  ASSERT_TRUE(link.acceptor_heard.WaitForFrames(1));
  EXPECT_EQ(StepId(link.acceptor_heard.frames()[0]), 101u);
}

TEST(FaultyLink, MayLieAboutHowItClosed) {
  FaultyLink::Faults faults;
  faults.closed_status = absl::DataLossError("a lie");
  Faulty link(std::move(faults));
  link.acceptor->Close(absl::OkStatus());
  EXPECT_EQ(link.dialler_heard.WaitForClosed(), absl::DataLossError("a lie"));
}

}  // namespace
}  // namespace strata
