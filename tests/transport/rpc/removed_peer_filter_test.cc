#include "transport/rpc/removed_peer_filter.h"

#include <memory>

#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "gtest/gtest.h"
#include "tests/support/log_capture.h"
#include "tests/transport/security/tls_fixture.h"

namespace strata {
namespace {

using ::testing::HasSubstr;

TEST(RemovedPeerFilter, RefusesARemovedNodeOverOldConnections) {
  const ClusterAuthority cluster = testing::NewAuthority(), next = testing::NewAuthority();
  const auto anna = testing::Credentials({cluster.certificate_pem(), next.certificate_pem()},
                                         testing::Issue(cluster, testing::kAnna));
  const auto gate = std::make_shared<RemovedPeerFilter>();  // shared with the server
  const std::shared_ptr<grpc::ServerCredentials> credentials = anna->ForServer();
  credentials->SetAuthMetadataProcessor(gate);
  const testing::Server server(credentials);

  const auto bert = testing::Credentials(cluster, testing::kBert);
  const auto stub = wire::Cluster::NewStub(
      grpc::CreateCustomChannel(server.address(), bert->ForChannel(), testing::Member()));
  const auto ask = [&] {
    grpc::ClientContext context;
    wire::IdentifyResponse response;
    return stub->Identify(&context, wire::IdentifyRequest(), &response);
  };
  ASSERT_TRUE(ask().ok());
  gate->Refuse(testing::kBert, cluster.cluster_id());
  testing::LogCapture log;
  for (int i = 0; i < 3; ++i) {
    const grpc::Status status = ask();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
    EXPECT_THAT(status.error_message(), HasSubstr("was removed"));
  }
  EXPECT_THAT(log.Lines(testing::kBert), ::testing::SizeIs(1));
  // Others are not disturbed,
  const auto carl = testing::Credentials(cluster, "cccccccccccccccccccccccccccccccc");
  EXPECT_TRUE(testing::Ask(server.address(), carl->ForChannel(), testing::Member()).status.ok());
  // nor is the same node with the new key.
  const auto again = testing::Credentials({cluster.certificate_pem(), next.certificate_pem()},
                                          testing::Issue(next, testing::kBert));
  EXPECT_TRUE(testing::Ask(server.address(), again->ForChannel(), testing::Member()).status.ok());
}

}  // namespace
}  // namespace strata
