// The contract of transport/link/link.h, over every transport. Linked into the test of each kind of
// link.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/cpu_seconds.h"
#include "tests/support/recorder.h"
#include "tests/transport/link/link_maker.h"
#include "tests/transport/link/step_frame.h"
#include "transport/base/version.h"

namespace strata {
namespace {

using ::testing::HasSubstr;

// The two ends of one link and the calls that their receivers got.
class Pair {
 public:
  explicit Pair(LinkMaker* maker, uint32_t credits = 4, LinkMaker::Options options = {}) {
    auto link = maker->Dial(
        std::move(options),
        [this, credits](const wire::Hello& hello) -> absl::StatusOr<AcceptedLink> {
          accepted_hello = hello;
          AcceptedLink accepted;
          accepted.hello.set_credits(credits);
          accepted.hello.set_to_stage(7);
          accepted.receiver = &acceptor_heard;
          accepted.on_open = [this](std::unique_ptr<Link> opened) {
            MutexLock lock(&mu_);
            accepted_ = std::move(opened);
            changed_.NotifyAll();
          };
          return accepted;
        },
        &dialler_heard);
    status = link.status();
    if (!link.ok()) return;
    dialler = *std::move(link);
    MutexLock lock(&mu_);
    while (accepted_ == nullptr) changed_.Wait(&mu_);
    acceptor = std::move(accepted_);
  }

  ~Pair() {
    dialler.reset();
    acceptor.reset();
    EXPECT_EQ(dialler_heard.n_wrong(), 0u);
    EXPECT_EQ(acceptor_heard.n_wrong(), 0u);
  }

  // Sends, and waits for credit without a limit.
  absl::Status SendAll(const std::vector<Frame>& frames) {
    for (const Frame& frame : frames) {
      while (true) {
        const size_t writable = dialler_heard.n_writable();
        absl::Status sent = dialler->Send(frame);
        if (sent.ok()) break;
        if (!absl::IsResourceExhausted(sent)) return sent;
        if (!dialler_heard.WaitForWritable(writable + 1)) return sent;
      }
    }
    return absl::OkStatus();
  }

  absl::Status status;
  wire::Hello accepted_hello;
  Recorder dialler_heard;
  Recorder acceptor_heard;
  std::unique_ptr<Link> dialler;
  std::unique_ptr<Link> acceptor;

 private:
  Mutex mu_;
  CondVar changed_;
  std::unique_ptr<Link> accepted_ ABSL_GUARDED_BY(mu_);
};

class LinkContract : public ::testing::Test {
 protected:
  LinkContract() : maker_(MakeLinkMaker()) {}
  const std::unique_ptr<LinkMaker> maker_;
};

TEST_F(LinkContract, OpeningGivesEachSideTheOthersHello) {
  LinkMaker::Options options;
  options.hello.set_from_stage(3);
  options.hello.set_model_id("model");
  Pair pair(maker_.get(), 4, options);
  ASSERT_TRUE(pair.status.ok()) << pair.status;
  EXPECT_EQ(pair.dialler->peer().to_stage(), 7u);
  EXPECT_EQ(pair.dialler->peer().credits(), 4u);
  EXPECT_EQ(pair.dialler->peer().versions().llama(), LocalVersions().llama());
  EXPECT_EQ(pair.acceptor->peer().from_stage(), 3u);
  EXPECT_EQ(pair.acceptor->peer().model_id(), "model");
  EXPECT_EQ(pair.accepted_hello.from_stage(), 3u);
}

TEST_F(LinkContract, FramesArriveCompleteAndInOrder) {
  Pair pair(maker_.get(), 100);
  ASSERT_TRUE(pair.status.ok()) << pair.status;
  for (uint64_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(pair.dialler->Send(Step(i, Payload::Own(std::vector<float>(i, i + 0.5f)))).ok());
  }
  ASSERT_TRUE(pair.acceptor_heard.WaitForFrames(100));
  const std::vector<Frame> frames = pair.acceptor_heard.frames();
  for (uint64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(frames[i].type, FrameType::kStep);
    EXPECT_EQ(StepId(frames[i]), i);
    ASSERT_EQ(frames[i].payload.floats().size(), i);
    for (float f : frames[i].payload.floats()) EXPECT_EQ(f, i + 0.5f);
  }
}

TEST_F(LinkContract, ResultsAndErrorsArriveToo) {
  Pair pair(maker_.get());
  ASSERT_TRUE(pair.status.ok()) << pair.status;
  wire::Result result;
  result.set_step_id(5);
  wire::StepError error;
  error.set_step_id(6);
  ASSERT_TRUE(pair.dialler->Send(MakeFrame(FrameType::kResult, result)).ok());
  ASSERT_TRUE(pair.dialler->Send(MakeFrame(FrameType::kError, error)).ok());
  ASSERT_TRUE(pair.acceptor_heard.WaitForFrames(2));
  EXPECT_EQ(pair.acceptor_heard.frames()[0].type, FrameType::kResult);
  EXPECT_EQ(pair.acceptor_heard.frames()[1].type, FrameType::kError);
}

TEST_F(LinkContract, SendWithoutCreditIsRefusedUntilReleased) {
  Pair pair(maker_.get(), 2);
  ASSERT_TRUE(pair.status.ok()) << pair.status;
  ASSERT_TRUE(pair.dialler->Send(Step(0)).ok());
  ASSERT_TRUE(pair.dialler->Send(Step(1)).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(pair.dialler->Send(Step(2))));
  ASSERT_TRUE(pair.acceptor_heard.WaitForFrames(2));
  EXPECT_TRUE(absl::IsResourceExhausted(pair.dialler->Send(Step(2))));
  EXPECT_EQ(pair.dialler_heard.n_writable(), 0u);
  pair.acceptor->Release(1);
  ASSERT_TRUE(pair.dialler_heard.WaitForWritable(1));
  EXPECT_TRUE(pair.dialler->Send(Step(2)).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(pair.dialler->Send(Step(3))));
  ASSERT_TRUE(pair.acceptor_heard.WaitForFrames(3));
  EXPECT_EQ(StepId(pair.acceptor_heard.frames()[2]), 2u);
}

TEST_F(LinkContract, OnWritableComesOnlyAfterARefusal) {
  Pair pair(maker_.get(), 1);
  ASSERT_TRUE(pair.status.ok()) << pair.status;
  ASSERT_TRUE(pair.dialler->Send(Step(0)).ok());
  ASSERT_TRUE(pair.acceptor_heard.WaitForFrames(1));
  pair.acceptor->Release(1);
  // Credit has arrived once a second frame may go; no Send() was refused, so OnWritable() is not
  // called, except for the polling here.
  absl::Status sent;
  do {
    sent = pair.dialler->Send(Step(1));
  } while (absl::IsResourceExhausted(sent));
  EXPECT_TRUE(sent.ok());
  EXPECT_LE(pair.dialler_heard.n_writable(), 1u);
}

TEST_F(LinkContract, ManyFramesPassThroughLittleCredit) {
  Pair pair(maker_.get(), 3);
  ASSERT_TRUE(pair.status.ok()) << pair.status;
  constexpr uint64_t kFrames = 500;
  std::thread consumer([&] {
    for (size_t n = 1; n <= kFrames; ++n) {
      ASSERT_TRUE(pair.acceptor_heard.WaitForFrames(n));
      pair.acceptor->Release(1);
    }
  });
  std::vector<Frame> frames;
  for (uint64_t i = 0; i < kFrames; ++i) frames.push_back(Step(i));
  EXPECT_TRUE(pair.SendAll(frames).ok());
  consumer.join();
  for (uint64_t i = 0; i < kFrames; ++i) EXPECT_EQ(StepId(pair.acceptor_heard.frames()[i]), i);
}

TEST_F(LinkContract, ManySendersEachKeepTheirOrder) {
  Pair pair(maker_.get(), 400);
  ASSERT_TRUE(pair.status.ok()) << pair.status;
  std::vector<std::thread> senders;
  for (uint64_t s = 0; s < 4; ++s) {
    senders.emplace_back([&, s] {
      for (uint64_t i = 0; i < 100; ++i) {
        ASSERT_TRUE(pair.dialler->Send(Step(s * 1000 + i)).ok());
      }
    });
  }
  for (std::thread& sender : senders) sender.join();
  ASSERT_TRUE(pair.acceptor_heard.WaitForFrames(400));
  uint64_t next[4] = {0, 0, 0, 0};
  for (const Frame& frame : pair.acceptor_heard.frames()) {
    const uint64_t id = StepId(frame);
    EXPECT_EQ(id % 1000, next[id / 1000]++);
  }
}

// Both ends are in this process: a thread that spins at either uses all the time that passes.
TEST_F(LinkContract, AnIdleLinkDoesNotSpin) {
  Pair pair(maker_.get());
  ASSERT_TRUE(pair.status.ok()) << pair.status;
  ASSERT_TRUE(pair.dialler->Send(Step(0)).ok());
  ASSERT_TRUE(pair.acceptor_heard.WaitForFrames(1));
  pair.acceptor->Release(1);
  const auto began = std::chrono::steady_clock::now();
  const double cpu_s = testing::CpuSeconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const double used_s = testing::CpuSeconds() - cpu_s;
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - began;
  EXPECT_LT(used_s, passed.count() / 2);
  // It sleeps, and wakes when it is needed.
  EXPECT_TRUE(pair.dialler->Send(Step(1)).ok());
  EXPECT_TRUE(pair.acceptor_heard.WaitForFrames(2));
}

void ExpectToArriveWhole(LinkMaker* maker, size_t n_floats) {
  Pair pair(maker);
  ASSERT_TRUE(pair.status.ok()) << pair.status;
  std::vector<float> values(n_floats);
  std::iota(values.begin(), values.end(), 0.0F);
  ASSERT_TRUE(pair.dialler->Send(Step(1, Payload::Own(values))).ok());
  ASSERT_TRUE(pair.acceptor_heard.WaitForFrames(1));
  const auto got = pair.acceptor_heard.frames()[0].payload.floats();
  ASSERT_EQ(got.size(), values.size());
  EXPECT_TRUE(std::equal(got.begin(), got.end(), values.begin()));
}

TEST_F(LinkContract, A256KiBPayloadArrivesWhole) { ExpectToArriveWhole(maker_.get(), 64 << 10); }

TEST_F(LinkContract, A1MiBPayloadArrivesWhole) { ExpectToArriveWhole(maker_.get(), 256 << 10); }

TEST_F(LinkContract, APayloadOfSomePiecesAndAFloatArrivesWhole) {
  ExpectToArriveWhole(maker_.get(), (768 << 10) + 1);
}

TEST_F(LinkContract, A32MiBPayloadArrivesWhole) { ExpectToArriveWhole(maker_.get(), 8 << 20); }

TEST_F(LinkContract, FramesTakenBeforeCloseArriveBeforeIt) {
  Pair pair(maker_.get(), 50);
  ASSERT_TRUE(pair.status.ok()) << pair.status;
  for (uint64_t i = 0; i < 50; ++i) ASSERT_TRUE(pair.dialler->Send(Step(i)).ok());
  pair.dialler.reset();
  EXPECT_TRUE(pair.acceptor_heard.WaitForClosed().ok());
  EXPECT_EQ(pair.acceptor_heard.n_frames(), 50u);
}

TEST_F(LinkContract, TheDiallersCloseReachesBothReceivers) {
  Pair pair(maker_.get());
  ASSERT_TRUE(pair.status.ok()) << pair.status;
  pair.dialler->Close(absl::AbortedError("a new plan"));
  EXPECT_EQ(pair.acceptor_heard.WaitForClosed(), absl::AbortedError("a new plan"));
  EXPECT_EQ(pair.dialler_heard.WaitForClosed(), absl::AbortedError("a new plan"));
}

TEST_F(LinkContract, TheAcceptorsCloseReachesBothReceivers) {
  Pair pair(maker_.get());
  ASSERT_TRUE(pair.status.ok()) << pair.status;
  pair.acceptor->Close(absl::InvalidArgumentError("wrong shape"));
  EXPECT_EQ(pair.dialler_heard.WaitForClosed(), absl::InvalidArgumentError("wrong shape"));
  EXPECT_EQ(pair.acceptor_heard.WaitForClosed(), absl::InvalidArgumentError("wrong shape"));
}

TEST_F(LinkContract, ClosingWithOkIsOkForBoth) {
  Pair pair(maker_.get());
  ASSERT_TRUE(pair.status.ok()) << pair.status;
  pair.acceptor->Close(absl::OkStatus());
  EXPECT_TRUE(pair.dialler_heard.WaitForClosed().ok());
  EXPECT_TRUE(pair.acceptor_heard.WaitForClosed().ok());
}

TEST_F(LinkContract, TheFirstCloseCounts) {
  Pair pair(maker_.get());
  ASSERT_TRUE(pair.status.ok()) << pair.status;
  pair.dialler->Close(absl::AbortedError("first"));
  pair.dialler->Close(absl::InternalError("second"));
  EXPECT_EQ(pair.dialler_heard.WaitForClosed(), absl::AbortedError("first"));
  EXPECT_EQ(pair.acceptor_heard.WaitForClosed(), absl::AbortedError("first"));
  pair.dialler->Close(absl::InternalError("third"));
}

TEST_F(LinkContract, SendAfterCloseSaysHowItClosed) {
  {
    Pair pair(maker_.get());
    ASSERT_TRUE(pair.status.ok()) << pair.status;
    pair.dialler->Close(absl::AbortedError("a new plan"));
    EXPECT_EQ(pair.dialler->Send(Step(0)), absl::AbortedError("a new plan"));
  }
  Pair pair(maker_.get());
  ASSERT_TRUE(pair.status.ok()) << pair.status;
  pair.acceptor->Close(absl::OkStatus());
  EXPECT_TRUE(pair.dialler_heard.WaitForClosed().ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(pair.dialler->Send(Step(0))));
}

TEST_F(LinkContract, BothClosingAtOnceCloseEachOnce) {
  for (int i = 0; i < 100; ++i) {
    Pair pair(maker_.get());
    ASSERT_TRUE(pair.status.ok()) << pair.status;
    ASSERT_TRUE(pair.dialler->Send(Step(0)).ok());
    std::thread other([&] { pair.acceptor->Close(absl::AbortedError("acceptor")); });
    pair.dialler->Close(absl::AbortedError("dialler"));
    other.join();
    EXPECT_TRUE(absl::IsAborted(pair.dialler_heard.WaitForClosed()));
    EXPECT_TRUE(absl::IsAborted(pair.acceptor_heard.WaitForClosed()));
    pair.dialler.reset();
    pair.acceptor.reset();
    EXPECT_EQ(pair.dialler_heard.n_closed(), 1u);
    EXPECT_EQ(pair.acceptor_heard.n_closed(), 1u);
  }
}

TEST_F(LinkContract, BothDestroyedAtOnceCloseEachOnce) {
  for (int i = 0; i < 100; ++i) {
    Pair pair(maker_.get());
    ASSERT_TRUE(pair.status.ok()) << pair.status;
    ASSERT_TRUE(pair.dialler->Send(Step(0)).ok());
    std::thread other([&] { pair.acceptor.reset(); });
    pair.dialler.reset();
    other.join();
    EXPECT_EQ(pair.dialler_heard.n_closed(), 1u);
    EXPECT_EQ(pair.acceptor_heard.n_closed(), 1u);
  }
}

TEST_F(LinkContract, ClosingWhileOthersSendLosesNoCall) {
  for (int i = 0; i < 50; ++i) {
    Pair pair(maker_.get(), 100);
    ASSERT_TRUE(pair.status.ok()) << pair.status;
    std::thread sender([&] {
      for (uint64_t n = 0; n < 100; ++n) {
        if (!pair.dialler->Send(Step(n, Payload::Own(std::vector<float>(1000)))).ok()) break;
      }
    });
    pair.acceptor->Close(absl::AbortedError("enough"));
    sender.join();
    EXPECT_TRUE(absl::IsAborted(pair.dialler_heard.WaitForClosed()));
    EXPECT_TRUE(absl::IsAborted(pair.acceptor_heard.WaitForClosed()));
  }
}

TEST_F(LinkContract, ReleaseAfterCloseIsHarmless) {
  Pair pair(maker_.get());
  ASSERT_TRUE(pair.status.ok()) << pair.status;
  ASSERT_TRUE(pair.dialler->Send(Step(0)).ok());
  ASSERT_TRUE(pair.acceptor_heard.WaitForFrames(1));
  pair.dialler->Close(absl::OkStatus());
  EXPECT_TRUE(pair.acceptor_heard.WaitForClosed().ok());
  pair.acceptor->Release(1);
}

TEST_F(LinkContract, DestroyingAnOpenLinkCallsItsReceiverFirst) {
  Pair pair(maker_.get());
  ASSERT_TRUE(pair.status.ok()) << pair.status;
  pair.dialler.reset();
  EXPECT_EQ(pair.dialler_heard.n_closed(), 1u);
  EXPECT_TRUE(pair.dialler_heard.WaitForClosed().ok());
}

TEST_F(LinkContract, OwnFrameTypesAreNotForSending) {
  Pair pair(maker_.get());
  ASSERT_TRUE(pair.status.ok()) << pair.status;
  EXPECT_TRUE(
      absl::IsInvalidArgument(pair.dialler->Send(MakeFrame(FrameType::kHello, wire::Hello()))));
  EXPECT_TRUE(
      absl::IsInvalidArgument(pair.dialler->Send(MakeFrame(FrameType::kCredit, wire::Credit()))));
  EXPECT_TRUE(
      absl::IsInvalidArgument(pair.dialler->Send(MakeFrame(FrameType::kClose, wire::Status()))));
}

TEST_F(LinkContract, AFrameThatIsTooLargeIsRefused) {
  Pair pair(maker_.get());
  ASSERT_TRUE(pair.status.ok()) << pair.status;
  Frame frame = Step(0);
  frame.header.resize(kFrameHeaderBytesMax + 1);
  EXPECT_TRUE(absl::IsInvalidArgument(pair.dialler->Send(frame)));
  const char byte = 0;
  frame = Step(0, Payload::Share(nullptr, &byte, kFramePayloadBytesMax + 1));
  EXPECT_TRUE(absl::IsInvalidArgument(pair.dialler->Send(frame)));
}

TEST_F(LinkContract, TheAcceptorDoesNotSend) {
  Pair pair(maker_.get());
  ASSERT_TRUE(pair.status.ok()) << pair.status;
  EXPECT_TRUE(absl::IsFailedPrecondition(pair.acceptor->Send(Step(0))));
}

TEST_F(LinkContract, TheAcceptorsRefusalIsTheDiallersError) {
  Recorder heard;
  auto link = maker_->Dial(
      {},
      [](const wire::Hello&) -> absl::StatusOr<AcceptedLink> {
        return absl::AbortedError("epoch 3 is old");
      },
      &heard);
  EXPECT_TRUE(absl::IsAborted(link.status()));
  EXPECT_THAT(std::string(link.status().message()), HasSubstr("epoch 3 is old"));
  EXPECT_EQ(heard.n_closed(), 0u);
}

TEST_F(LinkContract, AnAcceptorMayDropTheLinkWhenItOpens) {
  Recorder dialler_heard, acceptor_heard;
  auto link = maker_->Dial(
      {},
      [&](const wire::Hello&) -> absl::StatusOr<AcceptedLink> {
        AcceptedLink accepted;
        accepted.hello.set_credits(1);
        accepted.receiver = &acceptor_heard;
        accepted.on_open = [](std::unique_ptr<Link> opened) { opened.reset(); };
        return accepted;
      },
      &dialler_heard);
  ASSERT_TRUE(link.ok()) << link.status();
  EXPECT_TRUE(dialler_heard.WaitForClosed().ok());
  EXPECT_EQ(acceptor_heard.n_closed(), 1u);
}

TEST_F(LinkContract, OtherLibraryVersionsAreRefusedByTheAcceptor) {
  LinkMaker::Options options;
  *options.hello.mutable_versions() = LocalVersions();
  options.hello.mutable_versions()->set_llama("0.0.1");
  options.dialler_allows_mixed = true;
  Pair pair(maker_.get(), 4, options);
  EXPECT_TRUE(absl::IsFailedPrecondition(pair.status)) << pair.status;
  EXPECT_THAT(std::string(pair.status.message()), HasSubstr("llama 0.0.1"));
  EXPECT_THAT(std::string(pair.status.message()), HasSubstr(LocalVersions().llama()));
}

TEST_F(LinkContract, OtherLibraryVersionsAreRefusedByTheDialler) {
  LinkMaker::Options options;
  *options.hello.mutable_versions() = LocalVersions();
  options.hello.mutable_versions()->set_ggml("0.0.1");
  options.acceptor_allows_mixed = true;
  Pair pair(maker_.get(), 4, options);
  EXPECT_TRUE(absl::IsFailedPrecondition(pair.status)) << pair.status;
  EXPECT_THAT(std::string(pair.status.message()), HasSubstr("ggml 0.0.1"));
}

TEST_F(LinkContract, MixedVersionsCanBeAllowed) {
  LinkMaker::Options options;
  *options.hello.mutable_versions() = LocalVersions();
  options.hello.mutable_versions()->set_llama("0.0.1");
  options.dialler_allows_mixed = true;
  options.acceptor_allows_mixed = true;
  Pair pair(maker_.get(), 4, options);
  ASSERT_TRUE(pair.status.ok()) << pair.status;
  EXPECT_EQ(pair.acceptor->peer().versions().llama(), "0.0.1");
}

TEST_F(LinkContract, AnotherProtocolIsRefusedEvenWhenMixedIsAllowed) {
  LinkMaker::Options options;
  *options.hello.mutable_versions() = LocalVersions();
  options.hello.mutable_versions()->set_protocol(kProtocolVersion + 1);
  options.dialler_allows_mixed = true;
  options.acceptor_allows_mixed = true;
  Pair pair(maker_.get(), 4, options);
  EXPECT_TRUE(absl::IsFailedPrecondition(pair.status)) << pair.status;
}

}  // namespace
}  // namespace strata
