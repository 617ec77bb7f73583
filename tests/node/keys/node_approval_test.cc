#include "node/keys/node_approval.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/log/check.h"
#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "proto/cluster.grpc.pb.h"
#include "tests/transport/pairing/pairing_fixture.h"
#include "transport/pairing/pairing_service.h"
#include "transport/rpc/listening_server.h"
#include "transport/rpc/process_security.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr int64_t kCallMs = 10'000;

std::unique_ptr<ListeningServer> Serve(
    grpc::Service* service, const std::shared_ptr<grpc::ServerCredentials>& credentials) {
  grpc::ServerBuilder builder;
  builder.RegisterService(service);
  auto server =
      ListeningServer::Start({.address = "127.0.0.1:0", .credentials = credentials}, &builder);
  CHECK_OK(server.status());
  return *std::move(server);
}
std::string AddressOf(const ListeningServer& server) {
  return absl::StrCat("127.0.0.1:", server.port());
}

// A machine without a key.
struct Newcomer {
  testing::TestGuest guest;
  std::unique_ptr<grpc::Service> service = MakePairingService(&guest.guest);
  std::unique_ptr<ListeningServer> server = Serve(service.get(), grpc::InsecureServerCredentials());
  const std::string address = AddressOf(*server);
};

// A node that knows of one that waits at these addresses.
class Member final : public wire::Cluster::Service {
 public:
  explicit Member(std::vector<std::string> addresses) : addresses_(std::move(addresses)) {}
  grpc::Status GetCluster(grpc::ServerContext*, const wire::GetClusterRequest*,
                          wire::GetClusterResponse* response) override {
    response->set_cluster("home");
    response->set_asked(std::string(16, 'a'));
    wire::NodeRecord* const record = response->add_nodes()->mutable_record();
    record->set_node_id(std::string(16, 'a'));
    record->set_name("anna");
    wire::WaitingNode* const waiting = response->add_waiting();
    waiting->set_node_id(std::string(16, 'n'));
    waiting->set_name("newcomer");
    for (const std::string& address : addresses_) waiting->add_addresses(address);
    return grpc::Status::OK;
  }

  absl::Status Approve(const ConfirmCodeFn& confirm) {
    const auto server = Serve(this, ProcessServerCredentials());
    ClusterStub stub(AddressOf(*server), kCallMs);
    return ApproveNode(&stub, "newcomer", testing::KnownKey(), confirm);
  }

 private:
  const std::vector<std::string> addresses_;
};

// Another machine may have announced its address in the node's name.
TEST(ApproveNode, AnAnswerIsForTheMachineWhoseCodeWasShown) {
  Newcomer seen, other;
  Member member({seen.address, other.address});
  int asked = 0;
  EXPECT_THAT(member.Approve([&](const std::string&) {
    ++asked;
    seen.server.reset();
    return true;
  }),
              Not(IsOk()));
  EXPECT_EQ(asked, 1);
  EXPECT_THAT(other.guest.codes, IsEmpty());
  EXPECT_THAT(other.guest.admitted, IsEmpty());
}

TEST(ApproveNode, WhereNobodyAnswersTheNextAddressIsTried) {
  Newcomer gone, there;
  gone.server.reset();
  Member member({gone.address, there.address});
  std::vector<std::string> codes;
  EXPECT_THAT(member.Approve([&](const std::string& code) {
    codes.push_back(code);
    return true;
  }),
              IsOk());
  EXPECT_EQ(codes, there.guest.codes);
  EXPECT_THAT(there.guest.admitted, SizeIs(1));
}

}  // namespace
}  // namespace strata
