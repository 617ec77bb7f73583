// Nodes of clusters that talk over loopback with TLS, for tests: each answers wire.Cluster.Identify
// with the caller's id, from its certificate.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/server_builder.h"
#include "proto/cluster.grpc.pb.h"
#include "tests/support/temp_folder.h"
#include "transport/rpc/listening_server.h"
#include "transport/security/cluster_certificates.h"
#include "transport/security/cluster_key.h"
#include "transport/security/tls_credentials.h"

namespace strata::testing {

inline constexpr char kAnna[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
inline constexpr char kBert[] = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

inline ClusterAuthority NewAuthority() {
  absl::StatusOr<ClusterKey> key = ClusterKey::New();
  CHECK_OK(key.status());
  absl::StatusOr<ClusterAuthority> authority = ClusterAuthority::Of(*key);
  CHECK_OK(authority.status());
  return *std::move(authority);
}

inline NodeCertificate Issue(const ClusterAuthority& authority,
                             const ClusterAuthority::NodeOptions& options) {
  absl::StatusOr<NodeCertificate> node = authority.Issue(options);
  CHECK_OK(node.status());
  return *std::move(node);
}
inline NodeCertificate Issue(const ClusterAuthority& authority, const std::string& node_id) {
  return Issue(authority, ClusterAuthority::NodeOptions{.node_id = node_id});
}
// A certificate with an expiry, which no node makes.
inline NodeCertificate IssueExpired(const ClusterAuthority& authority, const std::string& node_id) {
  return Issue(authority, {.node_id = node_id, .not_after = absl::Now() - absl::Hours(24)});
}

inline std::unique_ptr<ClusterCredentials> Credentials(
    const std::vector<std::string>& authority_pems, const NodeCertificate& node) {
  auto made =
      ClusterCredentials::Create({.folder = MakeTestFolder() + "/tls"}, authority_pems, node);
  CHECK_OK(made.status());
  return *std::move(made);
}
inline std::unique_ptr<ClusterCredentials> Credentials(const ClusterAuthority& authority,
                                                       const std::string& node_id) {
  return Credentials({authority.certificate_pem()}, Issue(authority, node_id));
}

class Server final : public wire::Cluster::Service {
 public:
  // Accepts as many connections as a test makes.
  explicit Server(const std::shared_ptr<grpc::ServerCredentials>& credentials)
      : Server({.address = "127.0.0.1:0",
                .credentials = credentials,
                .limits = {.source_burst = 1'000'000, .total_burst = 1'000'000}}) {}
  explicit Server(const ListeningServer::Options& options) {
    grpc::ServerBuilder builder;
    builder.RegisterService(this);
    auto started = ListeningServer::Start(options, &builder);
    CHECK_OK(started.status());
    server_ = *std::move(started);
  }
  ~Server() override { server_.reset(); }

  int port() const { return server_->port(); }
  std::string address() const { return absl::StrCat("127.0.0.1:", port()); }

  grpc::Status Identify(grpc::ServerContext* context, const wire::IdentifyRequest*,
                        wire::IdentifyResponse* response) override {
    const absl::StatusOr<std::string> peer = PeerNodeId(*context->auth_context());
    response->set_node_id(peer.ok() ? *peer : peer.status().ToString());
    ++calls_;
    return grpc::Status::OK;
  }
  int calls() const { return calls_; }

 private:
  std::atomic<int> calls_{0};
  std::unique_ptr<ListeningServer> server_;
};

struct Answer {
  grpc::Status status;
  std::string asker;     // the id that the server saw
  std::string answerer;  // the id that the client saw
};

// Over a connection of its own.
inline Answer Ask(const std::string& address,
                  const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                  grpc::ChannelArguments arguments) {
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const auto stub =
      wire::Cluster::NewStub(grpc::CreateCustomChannel(address, credentials, arguments));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  wire::IdentifyResponse response;
  Answer answer;
  answer.status = stub->Identify(&context, wire::IdentifyRequest(), &response);
  answer.asker = response.node_id();
  if (answer.status.ok()) {
    answer.answerer = PeerNodeId(*context.auth_context()).value_or("nobody");
  }
  return answer;
}

inline grpc::ChannelArguments Member() {
  grpc::ChannelArguments arguments;
  ExpectMember(&arguments);
  return arguments;
}

inline grpc::ChannelArguments Node(const std::string& node_id) {
  grpc::ChannelArguments arguments;
  ExpectNode(node_id, &arguments);
  return arguments;
}

}  // namespace strata::testing
