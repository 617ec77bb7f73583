// Tests that frames go over verbs where UCX_TEST_HOST has an RDMA device; this program also runs
// the contract of every link, link_contract_test.cc.
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/recorder.h"
#include "tests/transport/link/link_child.h"
#include "tests/transport/link/step_frame.h"
#include "tests/transport/ucx/ucx_test_transports.h"
#include "transport/ucx/ucx_link.h"

namespace strata {
namespace {

using ::testing::HasSubstr;

TEST(UcxVerbs, FramesGoOverAReliableConnection) {
  auto acceptors = UcxLinks::Start(UcxTestOptions());
  auto diallers = UcxLinks::Start(UcxTestOptions());
  ASSERT_TRUE(acceptors.ok() && diallers.ok()) << acceptors.status() << diallers.status();
  Recorder acceptor_heard, dialler_heard;
  std::unique_ptr<Link> accepted;
  auto ticket = (*acceptors)->Offer({}, [&](const wire::Hello&) -> absl::StatusOr<AcceptedLink> {
    AcceptedLink link;
    link.hello.set_credits(4);
    link.receiver = &acceptor_heard;
    link.on_open = [&](std::unique_ptr<Link> opened) { accepted = std::move(opened); };
    return link;
  });
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  UcxDialOptions dial;
  dial.ticket = *std::move(ticket);
  dial.timeout_ms = 30'000;
  auto link = (*diallers)->Dial(std::move(dial), &dialler_heard);
  ASSERT_TRUE(link.ok()) << link.status();
  ASSERT_TRUE((*link)->Send(Step(1, Payload::Own(std::string(16 << 10, 'x')))).ok());
  ASSERT_TRUE(acceptor_heard.WaitForFrames(1));
  EXPECT_THAT((*link)->wire(), HasSubstr("rc_verbs"));
  link->reset();
  acceptor_heard.WaitForClosed().IgnoreError();
}

// Prints the time taken; in an emulated machine everything takes longer.
TEST(UcxVerbs, AKilledPeerIsNoticed) {
  auto diallers = UcxLinks::Start(UcxTestOptions());
  ASSERT_TRUE(diallers.ok()) << diallers.status();
  for (int i = 0; i < 5; ++i) {
    LinkChild child({"ucx-accept", kUcxTestTransports});
    Recorder heard;
    UcxDialOptions dial;
    dial.ticket = TicketOf(child.said());
    dial.timeout_ms = 30'000;
    auto link = (*diallers)->Dial(std::move(dial), &heard);
    ASSERT_TRUE(link.ok()) << link.status();
    ASSERT_TRUE((*link)->Send(Step(1)).ok());
    EXPECT_THAT((*link)->wire(), HasSubstr("rc_verbs"));
    const absl::Time killed = absl::Now();
    child.Kill();
    EXPECT_TRUE(absl::IsUnavailable(heard.WaitForClosed()));
    std::cout << "noticed after " << absl::ToDoubleMilliseconds(absl::Now() - killed) << " ms\n";
  }
}

}  // namespace
}  // namespace strata
