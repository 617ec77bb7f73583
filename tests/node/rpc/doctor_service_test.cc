// The doctor's calls to a node in this process.
#include "node/rpc/doctor_service.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "node/doctor/doctor_node.h"
#include "node/doctor/doctor_reach.h"
#include "tests/node/daemon/node_fixture.h"
#include "transport/base/peer_addresses.h"

namespace strata {
namespace {

class DoctorServiceTest : public ::testing::Test {
 protected:
  wire::ReachResult Reach(const std::string& address, bool identify) {
    grpc::ClientContext context;
    wire::CheckReachRequest request;
    *request.add_targets() = ReachTargetOf(address, identify);
    wire::CheckReachResponse response;
    const grpc::Status status = stub_->CheckReach(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.results_size() == 1 ? response.results(0) : wire::ReachResult();
  }

  testing::RunningNode node_{"unused"};
  std::unique_ptr<wire::Doctor::Stub> stub_ = wire::Doctor::NewStub(MakeChannel(node_.address()));
};

TEST_F(DoctorServiceTest, ConnectsToKnownNodesAndIdentifiesThem) {
  const wire::ReachResult result = Reach(node_.address(), /*identify=*/true);
  EXPECT_EQ(result.outcome(), wire::ReachResult::CONNECTED) << result.error();
  EXPECT_EQ(result.who().cluster(), testing::RunningNode::Cluster());
  EXPECT_EQ(result.who().node_id().size(), 16u);
}

TEST_F(DoctorServiceTest, ConnectsToKnownHostsOnly) {
  EXPECT_EQ(Reach("203.0.113.7:80", false).outcome(), wire::ReachResult::NOT_ALLOWED);
  EXPECT_EQ(Reach("example.invalid:80", false).outcome(), wire::ReachResult::NOT_ALLOWED);
  EXPECT_EQ(Reach("nonsense", false).outcome(), wire::ReachResult::NOT_ALLOWED);
}

TEST_F(DoctorServiceTest, ACallForAnotherNodeIsNotAnsweredHere) {
  const auto call = [this](const std::string& node, bool forwarded) {
    grpc::ClientContext context;
    if (forwarded) context.AddMetadata("strata-forwarded", "1");
    wire::ReadClockRequest request;
    request.set_node(node);
    wire::ReadClockResponse response;
    return stub_->ReadClock(&context, request, &response).error_code();
  };
  const std::string own = Reach(node_.address(), /*identify=*/true).who().node_id();
  EXPECT_EQ(call(own, false), grpc::StatusCode::OK);
  EXPECT_EQ(call(own, true), grpc::StatusCode::OK);
  EXPECT_EQ(call(std::string(16, 'x'), false), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(call(std::string(16, 'x'), true), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(call("short", false), grpc::StatusCode::NOT_FOUND);
}

TEST_F(DoctorServiceTest, RefusesTooManyAddresses) {
  grpc::ClientContext context;
  wire::CheckReachRequest request;
  for (int i = 0; i <= kReachTargetsMax; ++i) {
    *request.add_targets() = ReachTargetOf(node_.address(), false);
  }
  wire::CheckReachResponse response;
  EXPECT_EQ(stub_->CheckReach(&context, request, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(DoctorServiceTest, ADoorIsOpenUntilItIsReleased) {
  NodeFacts facts;
  std::unique_ptr<DoorHandle> door;
  QueryNode({node_.address()}, /*through=*/"", &facts, &door);
  ASSERT_TRUE(facts.status.ok()) << facts.status;
  EXPECT_EQ(facts.address, node_.address());
  ASSERT_NE(facts.door_port, 0u);
  const absl::StatusOr<HostPort> at = ParseHostPort(node_.address());
  const std::string address = JoinHostPort(at->host, static_cast<uint16_t>(facts.door_port));
  EXPECT_EQ(Reach(address, false).outcome(), wire::ReachResult::CONNECTED);
  door.reset();
  // The node sees it a moment later.
  const absl::Time until = absl::Now() + absl::Seconds(30);
  while (Reach(address, false).outcome() != wire::ReachResult::REFUSED) {
    ASSERT_LT(absl::Now(), until);
  }
  ASSERT_TRUE(facts.clock.has_value());
  EXPECT_LE(std::abs(facts.clock->offset_us), facts.clock->delay_us / 2 + 2) << "one clock";
  ASSERT_TRUE(facts.machine.has_value());
  EXPECT_GT(facts.machine->memory_free_bytes(), 0u);
  EXPECT_EQ(facts.machine->data_dir(), "") << "an ephemeral node keeps nothing";
}

TEST_F(DoctorServiceTest, CallsAboveTheBoundAreRefused) {
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<wire::Door>>> doors;
  int refused = 0;
  for (int i = 0; i < kDoctorCallsMax + 1; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    doors.push_back(stub_->OpenDoor(contexts.back().get(), wire::OpenDoorRequest()));
    wire::Door door;
    if (doors.back()->Read(&door)) continue;
    ++refused;
    EXPECT_EQ(doors.back()->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    doors.pop_back();
  }
  EXPECT_EQ(refused, 1);
  for (const auto& context : contexts) context->TryCancel();
  for (const auto& door : doors) static_cast<void>(door->Finish());
}

TEST(CheckReach, ReportsHowConnectionsFail) {
  const std::vector<wire::ReachResult> results =
      CheckReach({ReachTargetOf("no-such-host.invalid:80", true), ReachTargetOf("nonsense", true)},
                 {.connect_ms = 100, .identify_ms = 100, .cancelled = nullptr});
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0].outcome(), wire::ReachResult::NO_NAME);
  EXPECT_EQ(results[1].outcome(), wire::ReachResult::NO_NAME);
}

TEST(ResolveHost, ANumberIsItself) {
  EXPECT_THAT(*ResolveHost("127.0.0.1"), ::testing::ElementsAre("127.0.0.1"));
  EXPECT_TRUE(absl::IsNotFound(ResolveHost("no-such-host.invalid").status()));
}

}  // namespace
}  // namespace strata
