// A session's responses to a peer that breaks the protocol, one frame at a time: the test is the
// wire.
#include "transport/link/link_session.h"

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/recorder.h"
#include "tests/transport/link/step_frame.h"
#include "transport/base/version.h"
#include "transport/rpc/grpc_status.h"

namespace strata {
namespace {

class ScriptedWire : public LinkSession::Wire {
 public:
  void Read() override {
    EXPECT_FALSE(reading);
    reading = true;
  }
  bool Write(Frame frame) override {
    EXPECT_FALSE(writing);
    EXPECT_FALSE(ended);
    writing = !at_once;
    written.push_back(std::move(frame));
    return at_once;
  }
  void ExpectEnd() override { ++expect_ends; }
  void End(const absl::Status& why) override {
    EXPECT_FALSE(writing);
    EXPECT_FALSE(ended);
    ended = true;
    end_status = why;
  }
  void Cancel() override { cancelled = true; }
  bool CanWait() const override { return false; }
  std::string name() const override { return "script"; }

  bool at_once = false;  // writes are done when Write() returns
  bool reading = false;
  bool writing = false;
  bool ended = false;
  bool cancelled = false;
  int expect_ends = 0;
  absl::Status end_status;
  std::vector<Frame> written;
};

wire::Hello GoodHello(uint32_t credits = 2) {
  wire::Hello hello;
  *hello.mutable_versions() = LocalVersions();
  hello.set_credits(credits);
  return hello;
}

Frame Hello(uint32_t credits = 2) { return MakeFrame(FrameType::kHello, GoodHello(credits)); }

Frame Credit(uint32_t frames) {
  wire::Credit credit;
  credit.set_frames(frames);
  return MakeFrame(FrameType::kCredit, credit);
}

Frame CloseFrame(const absl::Status& status) {
  wire::Status words;
  ToWire(status, "", &words);
  return MakeFrame(FrameType::kClose, words);
}

class SessionTest : public testing::Test {
 protected:
  ~SessionTest() override {
    link_.reset();
    // A wire ends exactly once, whatever happened before.
    if (session_ != nullptr && !over_) End(absl::OkStatus());
    EXPECT_LE(heard_.n_closed(), 1u);
    EXPECT_EQ(heard_.n_wrong(), 0u);
  }

  void Accept(uint32_t credits = 2) {
    session_ = LinkSession::Acceptor(&wire_, {}, [this, credits](const wire::Hello&) {
      ++accept_calls_;
      AcceptedLink accepted;
      accepted.hello = GoodHello(credits);
      accepted.receiver = &heard_;
      accepted.on_open = [this](std::unique_ptr<Link> link) { link_ = std::move(link); };
      return absl::StatusOr<AcceptedLink>(std::move(accepted));
    });
    session_->Start();
  }
  void AcceptOpen(uint32_t credits = 2) {
    Accept(credits);
    Give(Hello());
    FinishWrites();
    ASSERT_NE(link_, nullptr);
  }
  void Dial() {
    session_ = LinkSession::Dialler(&wire_, wire::Hello(), {}, &heard_);
    session_->Start();
  }
  void DialOpen(uint32_t credits = 2) {
    Dial();
    FinishWrites();
    Give(Hello(credits));
    auto link = session_->AwaitOpen(0);
    ASSERT_TRUE(link.ok()) << link.status();
    link_ = *std::move(link);
  }

  // The peer's next frame, or the error of reading it.
  void Give(absl::StatusOr<Frame> frame) {
    ASSERT_TRUE(wire_.reading);
    wire_.reading = false;
    session_->OnRead(std::move(frame));
  }
  void FinishWrites() {
    while (wire_.writing) {
      wire_.writing = false;
      session_->OnWritten(true);
    }
  }
  void End(absl::Status status) {
    FinishWrites();
    if (!wire_.ended && wire_.reading) Give(absl::UnavailableError("over"));
    ASSERT_TRUE(wire_.ended);
    over_ = true;
    session_->OnEnded(std::move(status));
  }

  // The last frame written is a kClose with that code, and the wire ends with it.
  void ExpectClosedWith(absl::StatusCode code) {
    FinishWrites();
    ASSERT_FALSE(wire_.written.empty());
    EXPECT_EQ(wire_.written.back().type, FrameType::kClose);
    wire::Status words;
    ASSERT_TRUE(ParseHeader(wire_.written.back(), &words).ok());
    EXPECT_EQ(FromWire(words).code(), code) << FromWire(words);
    EXPECT_FALSE(words.message().empty());
    EXPECT_EQ(wire_.expect_ends, 1);
    EXPECT_TRUE(wire_.ended);
    EXPECT_EQ(wire_.end_status.code(), code);
    End(absl::OkStatus());
    if (link_ != nullptr) {
      EXPECT_EQ(heard_.n_closed(), 1u);
      EXPECT_EQ(heard_.WaitForClosed().code(), code);
    } else {
      EXPECT_EQ(heard_.n_closed(), 0u);
    }
  }

  ScriptedWire wire_;
  Recorder heard_;
  std::unique_ptr<Link> link_;
  std::shared_ptr<LinkSession> session_;
  int accept_calls_ = 0;
  bool over_ = false;
};

TEST_F(SessionTest, FramesLeaveOneByOneOverAWireThatWritesAtOnce) {
  wire_.at_once = true;
  DialOpen(8);
  for (uint64_t i = 0; i < 8; ++i) ASSERT_TRUE(link_->Send(Step(i)).ok());
  ASSERT_EQ(wire_.written.size(), 9u);  // and the Hello
  link_->Close(absl::AbortedError("plan"));
  EXPECT_EQ(wire_.written.back().type, FrameType::kClose);
  EXPECT_TRUE(wire_.ended);
  EXPECT_EQ(wire_.expect_ends, 1);
}

TEST_F(SessionTest, AStepBeforeHelloIsRefused) {
  Accept();
  Give(Step());
  ExpectClosedWith(absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(accept_calls_, 0);
}

TEST_F(SessionTest, ACreditBeforeHelloIsRefused) {
  Dial();
  FinishWrites();
  Give(Credit(1));
  ExpectClosedWith(absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::IsInvalidArgument(session_->AwaitOpen(0).status()));
}

TEST_F(SessionTest, ASecondHelloClosesTheLink) {
  AcceptOpen();
  Give(Hello());
  ExpectClosedWith(absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(accept_calls_, 1);
}

TEST_F(SessionTest, ASecondHelloOfTheAcceptorClosesTheLink) {
  DialOpen();
  Give(Hello());
  ExpectClosedWith(absl::StatusCode::kInvalidArgument);
}

TEST_F(SessionTest, AHelloThatIsNoMessageIsRefused) {
  Accept();
  Frame hello = Hello();
  hello.header = "\xff\xff";
  Give(hello);
  ExpectClosedWith(absl::StatusCode::kInvalidArgument);
}

TEST_F(SessionTest, AnEmptyHelloHasTheWrongVersions) {
  Accept();
  Give(MakeFrame(FrameType::kHello, wire::Hello()));
  ExpectClosedWith(absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(accept_calls_, 0);
}

TEST_F(SessionTest, VersionsOfAnyLengthMakeAShortError) {
  Accept();
  wire::Hello hello = GoodHello();
  hello.mutable_versions()->set_llama(std::string(kHelloBytesMax / 2, 'x'));
  Give(MakeFrame(FrameType::kHello, hello));
  FinishWrites();
  EXPECT_LT(wire_.written.back().header.size(), 1000u);
  ExpectClosedWith(absl::StatusCode::kFailedPrecondition);
}

TEST_F(SessionTest, AnOversizedHelloIsRefused) {
  Accept();
  wire::Hello hello = GoodHello();
  hello.set_model_id(std::string(kHelloBytesMax, 'x'));
  Give(MakeFrame(FrameType::kHello, hello));
  ExpectClosedWith(absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(accept_calls_, 0);
}

TEST_F(SessionTest, AHelloWithAPayloadIsRefused) {
  Accept();
  Frame hello = Hello();
  hello.payload = Payload::Own(std::string("x"));
  Give(hello);
  ExpectClosedWith(absl::StatusCode::kInvalidArgument);
}

TEST_F(SessionTest, AGrantOfNothingOrTooMuchIsRefused) {
  for (uint32_t credits : {0u, kLinkCreditsMax + 1, UINT32_MAX}) {
    ScriptedWire wire;
    Recorder heard;
    auto session = LinkSession::Dialler(&wire, wire::Hello(), {}, &heard);
    session->Start();
    wire.writing = false;
    session->OnWritten(true);
    wire.reading = false;
    session->OnRead(Hello(credits));
    EXPECT_TRUE(absl::IsInvalidArgument(session->AwaitOpen(0).status())) << credits;
    wire.writing = false;
    session->OnWritten(true);
    EXPECT_TRUE(wire.ended);
    session->OnEnded(absl::OkStatus());
  }
}

TEST_F(SessionTest, MoreFramesThanGrantedCloseTheLink) {
  AcceptOpen(2);
  Give(Step(0));
  Give(Step(1));
  Give(Step(2));
  ExpectClosedWith(absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(heard_.n_frames(), 2u);
}

TEST_F(SessionTest, ReleasedFramesMayBeSentAgain) {
  AcceptOpen(2);
  for (uint64_t i = 0; i < 10; ++i) {
    Give(Step(i));
    link_->Release(1);
    FinishWrites();
  }
  EXPECT_EQ(heard_.n_frames(), 10u);
  EXPECT_EQ(heard_.n_closed(), 0u);
}

TEST_F(SessionTest, CreditWaitingForTheWireBecomesOneFrame) {
  AcceptOpen(4);
  for (int i = 0; i < 4; ++i) Give(Step(i));
  link_->Release(1);  // being written
  link_->Release(1);
  link_->Release(2);
  FinishWrites();
  ASSERT_EQ(wire_.written.size(), 3u);  // Hello, Credit, Credit
  wire::Credit credit;
  ASSERT_TRUE(ParseHeader(wire_.written[2], &credit).ok());
  EXPECT_EQ(credit.frames(), 3u);
}

TEST_F(SessionTest, ACreditOfTheDiallerClosesTheLink) {
  AcceptOpen();
  Give(Credit(1));
  ExpectClosedWith(absl::StatusCode::kInvalidArgument);
}

TEST_F(SessionTest, CreditForFramesNeverSentClosesTheLink) {
  DialOpen(2);
  ASSERT_TRUE(link_->Send(Step()).ok());
  FinishWrites();
  Give(Credit(2));
  ExpectClosedWith(absl::StatusCode::kInvalidArgument);
}

TEST_F(SessionTest, CreditNearOverflowClosesTheLink) {
  DialOpen(2);
  Give(Credit(UINT32_MAX));
  ExpectClosedWith(absl::StatusCode::kInvalidArgument);
}

TEST_F(SessionTest, AStepOfTheAcceptorClosesTheLink) {
  DialOpen();
  Give(Step());
  ExpectClosedWith(absl::StatusCode::kInvalidArgument);
}

TEST_F(SessionTest, GarbageClosesTheLink) {
  AcceptOpen();
  Give(absl::InvalidArgumentError("not a frame"));
  ExpectClosedWith(absl::StatusCode::kInvalidArgument);
}

TEST_F(SessionTest, GarbageInsteadOfHelloIsRefused) {
  Accept();
  Give(absl::InvalidArgumentError("not a frame"));
  ExpectClosedWith(absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(accept_calls_, 0);
}

TEST_F(SessionTest, ACloseThatIsNoMessageIsInvalid) {
  AcceptOpen();
  Frame close = CloseFrame(absl::OkStatus());
  close.header = "\xff\xff";
  Give(close);
  ExpectClosedWith(absl::StatusCode::kInvalidArgument);
}

TEST_F(SessionTest, ACloseWithAnUnknownCodeIsUnknown) {
  AcceptOpen();
  wire::Status words;
  words.set_code(4711);
  words.set_message("?");
  Give(MakeFrame(FrameType::kClose, words));
  End(absl::OkStatus());
  EXPECT_TRUE(absl::IsUnknown(heard_.WaitForClosed()));
}

TEST_F(SessionTest, AWireThatEndsWithoutACloseIsUnavailable) {
  AcceptOpen();
  Give(absl::UnavailableError("over"));
  EXPECT_TRUE(wire_.ended);
  End(absl::OkStatus());
  EXPECT_TRUE(absl::IsUnavailable(heard_.WaitForClosed()));
}

TEST_F(SessionTest, ABrokenWireReportsItsError) {
  DialOpen();
  Give(absl::UnavailableError("over"));
  EXPECT_TRUE(absl::IsUnavailable(link_->Send(Step())));
  End(absl::UnavailableError("socket closed"));
  EXPECT_EQ(heard_.WaitForClosed(), absl::UnavailableError("socket closed"));
  EXPECT_EQ(link_->Send(Step()), absl::UnavailableError("socket closed"));
}

TEST_F(SessionTest, AFailedWriteBreaksTheLinkOnlyAfterTheWireIsQuiet) {
  DialOpen();
  ASSERT_TRUE(link_->Send(Step()).ok());
  EXPECT_TRUE(wire_.writing);
  Give(absl::UnavailableError("over"));
  EXPECT_FALSE(wire_.ended);  // a write is in flight
  wire_.writing = false;
  session_->OnWritten(false);
  EXPECT_TRUE(wire_.ended);
  End(absl::UnavailableError("socket closed"));
}

TEST_F(SessionTest, OneWriteIsInFlightAtATime) {
  DialOpen(10);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(link_->Send(Step(i)).ok());
  EXPECT_EQ(wire_.written.size(), 2u);  // Hello and one step
  FinishWrites();
  EXPECT_EQ(wire_.written.size(), 11u);
}

TEST_F(SessionTest, CloseWaitsForFramesSentBefore) {
  DialOpen(10);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(link_->Send(Step(i)).ok());
  link_->Close(absl::AbortedError("plan"));
  FinishWrites();
  ASSERT_EQ(wire_.written.size(), 7u);
  EXPECT_EQ(wire_.written[5].type, FrameType::kStep);
  ExpectClosedWith(absl::StatusCode::kAborted);
}

TEST_F(SessionTest, FramesAfterOwnCloseAreDropped) {
  AcceptOpen();
  link_->Close(absl::AbortedError("plan"));
  Give(Step());
  Give(Hello());
  EXPECT_EQ(heard_.n_frames(), 0u);
  ExpectClosedWith(absl::StatusCode::kAborted);
}

TEST_F(SessionTest, ThePeersCloseNeedsNoAnswer) {
  AcceptOpen();
  Give(CloseFrame(absl::AbortedError("plan")));
  EXPECT_TRUE(wire_.ended);
  EXPECT_EQ(wire_.written.size(), 1u);
  End(absl::OkStatus());
  EXPECT_EQ(heard_.WaitForClosed(), absl::AbortedError("plan"));
}

TEST_F(SessionTest, ADiallerThatGivesUpBeforeHelloIsClosedQuietly) {
  Accept();
  Give(CloseFrame(absl::OkStatus()));
  EXPECT_TRUE(wire_.ended);
  EXPECT_TRUE(wire_.written.empty());
  EXPECT_EQ(accept_calls_, 0);
}

TEST_F(SessionTest, ASilentPeerIsClosedUnlessOpen) {
  Accept();
  session_->CloseUnlessOpen(absl::DeadlineExceededError("silence"));
  ExpectClosedWith(absl::StatusCode::kDeadlineExceeded);
}

TEST_F(SessionTest, AnOpenLinkIsNotClosedAsSilent) {
  AcceptOpen();
  session_->CloseUnlessOpen(absl::DeadlineExceededError("silence"));
  EXPECT_FALSE(wire_.writing);
  EXPECT_EQ(wire_.expect_ends, 0);
}

TEST_F(SessionTest, AHelloAfterTheDialTimedOutOpensNothing) {
  Dial();
  FinishWrites();
  EXPECT_TRUE(absl::IsDeadlineExceeded(session_->AwaitOpen(0).status()));
  EXPECT_TRUE(wire_.cancelled);
  Give(Hello());
  End(absl::UnavailableError("cancelled"));
  EXPECT_EQ(heard_.n_closed(), 0u);
}

TEST_F(SessionTest, ALinkClosedRightAfterItOpenedIsStillReturned) {
  Dial();
  FinishWrites();
  Give(Hello());
  Give(CloseFrame(absl::AbortedError("plan")));
  auto link = session_->AwaitOpen(0);
  ASSERT_TRUE(link.ok());
  link_ = *std::move(link);
  EXPECT_TRUE(absl::IsAborted(link_->Send(Step())));
  End(absl::OkStatus());
  EXPECT_EQ(heard_.n_closed(), 1u);
}

TEST_F(SessionTest, ADestroyedLinkGetsNoMoreCalls) {
  AcceptOpen();
  link_.reset();
  EXPECT_EQ(heard_.n_closed(), 1u);
  Give(Step());
  FinishWrites();
  End(absl::UnavailableError("late"));
  EXPECT_EQ(heard_.n_frames(), 0u);
  EXPECT_EQ(heard_.n_closed(), 1u);
}

class SelfDestroyer : public Link::Receiver {
 public:
  void OnFrame(Frame) override { link.reset(); }
  void OnClosed(absl::Status) override {}
  std::unique_ptr<Link> link;
};

TEST(SessionDeathTest, DestroyingALinkFromItsReceiverIsABug) {
  EXPECT_DEATH(
      {
        ScriptedWire wire;
        SelfDestroyer destroyer;
        auto session = LinkSession::Acceptor(&wire, {}, [&](const wire::Hello&) {
          AcceptedLink accepted;
          accepted.hello = GoodHello();
          accepted.receiver = &destroyer;
          accepted.on_open = [&](std::unique_ptr<Link> link) { destroyer.link = std::move(link); };
          return absl::StatusOr<AcceptedLink>(std::move(accepted));
        });
        session->Start();
        wire.reading = false;
        session->OnRead(Hello());
        wire.reading = false;
        session->OnRead(Step());
      },
      "must not be destroyed by a call of its receiver");
}

}  // namespace
}  // namespace strata
