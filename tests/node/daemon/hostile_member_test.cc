// A hostile member: it has the key, makes any calls as often as it can, and must neither crash a
// node nor keep it from serving the others.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "coordinator/membership/membership.h"
#include "coordinator/membership/membership_wire.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "node/daemon/node.h"
#include "proto/cluster.grpc.pb.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/weights.grpc.pb.h"
#include "tests/node/daemon/node_fixture.h"
#include "transport/base/version.h"

namespace strata {
namespace {

class HostileMember : public ::testing::Test {
 protected:
  void ExpectServes() {
    EXPECT_EQ(node_.GetInfo().name(), "node-2");
    grpc::ClientContext context;
    wire::IdentifyResponse who;
    EXPECT_TRUE(
        wire::Cluster::NewStub(MakeChannel(node_.address()))->Identify(&context, {}, &who).ok());
  }

  testing::RunningNode node_{"unused"};
};

TEST_F(HostileMember, ARequestThatIsTooLargeIsRefused) {
  grpc::ClientContext context;
  wire::TokenizeRequest request;
  request.set_text(std::string(kRequestBytesMax + 1, 'x'));
  wire::TokenizeResponse response;
  const grpc::Status status = node_.stub()->Tokenize(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_NE(status.error_message(), "");
  ExpectServes();
}

TEST_F(HostileMember, MadeUpNodesAreKnownUpToABound) {
  const auto cluster = wire::Cluster::NewStub(MakeChannel(node_.address()));
  const int64_t now_us = absl::GetCurrentTimeNanos() / 1'000;
  for (uint64_t i = 1; i <= 1'200; ++i) {
    NodeRecord record = {.id = {.high = 7, .low = i}, .boot = 1, .name = "made up"};
    record.cluster = PrintableText::From(testing::RunningNode::Cluster());
    record.protocol = kProtocolVersion;
    Membership made_up({}, record, now_us);
    grpc::ClientContext context;
    wire::Heartbeat answer;
    const grpc::Status status = cluster->Exchange(&context, ToWire(made_up.Probe(now_us)), &answer);
    if (status.ok()) continue;
    ASSERT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
    ASSERT_NE(status.error_message(), "");
    ASSERT_GE(i, MembershipOptions().nodes_max);
  }
  grpc::ClientContext context;
  wire::GetClusterResponse known;
  ASSERT_TRUE(cluster->GetCluster(&context, {}, &known).ok());
  EXPECT_GT(known.nodes_size(), 1);
  EXPECT_LE(known.nodes_size(), static_cast<int>(MembershipOptions().nodes_max));
  ExpectServes();
}

size_t Threads() {
  std::error_code error;
  const std::filesystem::directory_iterator tasks("/proc/self/task", error);
  return error ? 0 : static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
}

TEST_F(HostileMember, ThousandsOfCallsAtOnceAreAnsweredWithABoundedNumberOfThreads) {
  struct Call {
    grpc::ClientContext context;
    wire::GetReportRequest report;
    wire::ClusterSnapshot answer;
    grpc::Status status;
    absl::Notification done;
  };
  const auto stub = wire::Coordinator::NewStub(MakeChannel(node_.address()));
  const size_t before = Threads();
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 3'000; ++i) {
    calls.push_back(std::make_unique<Call>());
    Call* const call = calls.back().get();
    call->context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    stub->async()->GetReport(&call->context, &call->report, &call->answer,
                             [call](const grpc::Status& status) {
                               call->status = status;
                               call->done.Notify();
                             });
  }
  size_t most = 0;
  for (const auto& call : calls) {
    while (!call->done.WaitForNotificationWithTimeout(absl::Milliseconds(2))) {
      most = std::max(most, Threads());
    }
    if (call->status.ok()) continue;
    // A slow machine may close a connection that it cannot keep up with, and its calls fail.
    ASSERT_TRUE(call->status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED ||
                call->status.error_code() == grpc::StatusCode::UNAVAILABLE)
        << call->status.error_message();
    ASSERT_NE(call->status.error_message(), "");
  }
  RecordProperty("most_threads", static_cast<int>(most));
  // The other threads serve the calls that this process then makes to itself.
  EXPECT_LE(most, before + kCallThreadsMax + 256) << "at first " << before;
  ExpectServes();
}

}  // namespace
}  // namespace strata
