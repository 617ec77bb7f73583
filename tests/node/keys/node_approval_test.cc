#include "node/keys/node_approval.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "proto/cluster.grpc.pb.h"
#include "tests/transport/pairing/pairing_fixture.h"
#include "transport/pairing/pairing_service.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_deadline.h"
#include "transport/rpc/process_security.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class Server {
 public:
  Server(grpc::Service* service, const std::shared_ptr<grpc::ServerCredentials>& credentials) {
    grpc::ServerBuilder builder;
    ConfigureServer(&builder);
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", credentials, &port);
    builder.RegisterService(service);
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
  }
  ~Server() { Stop(); }
  const std::string& address() const { return address_; }
  void Stop() { server_->Shutdown(DeadlineIn(absl::ZeroDuration())); }

 private:
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

// A machine without a key.
struct Newcomer {
  testing::TestGuest guest;
  std::unique_ptr<grpc::Service> service = MakePairingService(&guest.guest);
  Server server{service.get(), grpc::InsecureServerCredentials()};
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
    Server server(this, ProcessServerCredentials());
    ClusterStub stub(server.address(), 10'000);
    return ApproveNode(&stub, "newcomer", testing::KnownKey(), confirm);
  }

 private:
  const std::vector<std::string> addresses_;
};

// Whoever answers at another address may have announced it in the node's name.
TEST(ApproveNode, AnAnswerIsForTheMachineWhoseCodeWasShown) {
  Newcomer seen, other;
  Member member({seen.server.address(), other.server.address()});
  int asked = 0;
  EXPECT_THAT(member.Approve([&](const std::string&) {
    ++asked;
    seen.server.Stop();
    return true;
  }),
              Not(IsOk()));
  EXPECT_EQ(asked, 1);
  EXPECT_THAT(other.guest.codes, IsEmpty());
  EXPECT_THAT(other.guest.admitted, IsEmpty());
}

TEST(ApproveNode, WhereNobodyAnswersTheNextAddressIsTried) {
  Newcomer gone, there;
  gone.server.Stop();
  Member member({gone.server.address(), there.server.address()});
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
