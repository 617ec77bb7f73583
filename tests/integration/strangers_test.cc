// Somebody who reaches a cluster's ports without its key can do nothing there: each method of each
// service is tried at each port of nodes and workers.
#include <sys/types.h>

#include <chrono>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/log/check.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/security/credentials.h"
#include "gtest/gtest.h"
#include "node/keys/key_file.h"
#include "proto/cluster.pb.h"
#include "proto/coordinator.pb.h"
#include "proto/doctor.pb.h"
#include "proto/key.pb.h"
#include "proto/node.pb.h"
#include "proto/pairing.pb.h"
#include "proto/probe.pb.h"
#include "proto/weights.pb.h"
#include "tests/integration/processes.h"
#include "tests/integration/two_nodes.h"
#include "tests/support/program.h"
#include "tests/support/test_key.h"
#include "transport/security/cluster_certificates.h"
#include "transport/security/cluster_key.h"
#include "transport/security/tls_credentials.h"

namespace strata {
namespace {

using ::strata::testing::TwoNodes;
using ::testing::SizeIs;
using Credentials = std::shared_ptr<grpc::ChannelCredentials>;

constexpr char kSomebody[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

// The methods' paths, by service.
std::vector<std::vector<std::string>> AllMethods() {
  std::vector<std::vector<std::string>> all = {{"/strata.wire.Link/Stream"}};
  const google::protobuf::Descriptor* const some[] = {
      wire::IdentifyRequest::descriptor(), wire::ListModelsRequest::descriptor(),
      wire::ExamineRequest::descriptor(),  wire::ChangeKeyRequest::descriptor(),
      wire::GetInfoRequest::descriptor(),  wire::PairingBeginRequest::descriptor(),
      wire::EchoFrame::descriptor(),       wire::BlocksRequest::descriptor()};
  for (const google::protobuf::Descriptor* one : some) {
    for (int i = 0; i < one->file()->service_count(); ++i) {
      const auto* const service = one->file()->service(i);
      std::vector<std::string>& paths = all.emplace_back();
      for (int j = 0; j < service->method_count(); ++j) {
        paths.push_back(absl::StrCat("/", service->full_name(), "/", service->method(j)->name()));
      }
    }
  }
  return all;
}

std::shared_ptr<grpc::Channel> NewChannel(const std::string& address, const Credentials& how) {
  grpc::ChannelArguments arguments;
  ExpectMember(&arguments);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
  return grpc::CreateCustomChannel(address, how, arguments);
}

// Calls with an empty request; returns the status code.
grpc::StatusCode Call(const std::shared_ptr<grpc::Channel>& channel, const std::string& method) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  const grpc::ByteBuffer request(nullptr, 0);
  grpc::ByteBuffer response;
  absl::Notification done;
  grpc::Status status;
  stub.UnaryCall(&context, method, grpc::StubOptions(), &request, &response,
                 [&](const grpc::Status& ended) {
                   status = ended;
                   done.Notify();
                 });
  done.WaitForNotification();
  return status.error_code();
}

// Ports of this machine at which one of `pids` listens.
std::set<int> PortsOf(const std::vector<pid_t>& pids) {
  const std::set<std::string> held = SocketsHeldBy(pids);
  std::set<int> ports;
  for (const char* const table : {"net/tcp", "net/tcp6"}) {
    std::istringstream lines(ReadProc(pids.front(), table));
    std::string line;
    std::getline(lines, line);  // the heading
    while (std::getline(lines, line)) {
      std::istringstream stream(line);
      const std::vector<std::string> fields{std::istream_iterator<std::string>(stream), {}};
      int port = 0;
      if (fields.size() > 9 && fields[3] == "0A" && held.contains(fields[9]) &&
          absl::SimpleHexAtoi(fields[1].substr(fields[1].rfind(':') + 1), &port)) {
        ports.insert(port);
      }
    }
  }
  return ports;
}

class Strangers : public TwoNodes {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(TwoNodes::SetUp());
    const Json loaded = LoadOnBoth(/*seqs=*/1, /*n_ctx=*/256);
    ASSERT_TRUE(loaded.is_object()) << loaded;
    model_ = loaded["model"];
    const auto key = ReadKeyFile(std::getenv("STRATA_KEY_FILE"));
    ASSERT_TRUE(key.ok()) << key.status();
    auto authority = ClusterAuthority::Of(*key);
    ASSERT_TRUE(authority.ok()) << authority.status();
    authority_pem_ = authority->certificate_pem();
    member_ = CredentialsFrom(*authority);
  }

  // UCX's ports speak no gRPC, so calls there would time out; transport/ucx/ucx_seal.h guards them.
  std::vector<std::string> NodeArgs() const override { return {"--no-ucx"}; }

  // Credentials that accept the nodes' certificates, with one of their own that `issuer` gave.
  Credentials CredentialsFrom(const ClusterAuthority& issuer) const {
    const auto certificate = issuer.Issue({.node_id = kSomebody});
    CHECK_OK(certificate.status());
    return ClusterCredentials::InMemory({authority_pem_, issuer.certificate_pem()}, *certificate)
        ->ForChannel();
  }

  // Addresses of nodes and workers that answer a member.
  std::vector<std::string> Doors() {
    std::vector<std::string> doors;
    for (const auto& node : nodes_) {
      const std::vector<pid_t> pids = WithDescendants((*node)->pid());
      for (const int port : PortsOf(pids)) {
        const std::string address = absl::StrCat("127.0.0.1:", port);
        const grpc::StatusCode answer =
            Call(NewChannel(address, member_), "/strata.wire.Cluster/Identify");
        if (answer == grpc::StatusCode::OK || answer == grpc::StatusCode::UNIMPLEMENTED) {
          doors.push_back(address);
        }
      }
    }
    return doors;
  }

  std::string model_, authority_pem_;
  Credentials member_;
};

// What users of others miss: unauthenticated control planes, exo #1833, llama.cpp #13061 #25542.
TEST_F(Strangers, CanCallNothingAnywhere) {
  const std::vector<std::string> doors = Doors();
  // Two nodes', two workers', and the coordinator's for the results of stages.
  ASSERT_THAT(doors, SizeIs(5));
  const auto other_key = ClusterKey::New();
  ASSERT_TRUE(other_key.ok()) << other_key.status();
  const auto other = ClusterAuthority::Of(*other_key);
  ASSERT_TRUE(other.ok()) << other.status();
  const std::pair<const char*, Credentials> strangers[] = {
      {"in plain text", grpc::InsecureChannelCredentials()},
      {"without a certificate", grpc::SslCredentials({.pem_root_certs = authority_pem_})},
      {"with another cluster's certificate", CredentialsFrom(*other)},
  };
  const std::vector<std::vector<std::string>> services = AllMethods();
  size_t n_methods = 0;
  for (const auto& methods : services) n_methods += methods.size();
  EXPECT_GE(n_methods, 41u);
  for (const std::string& door : doors) {
    for (const auto& [how, credentials] : strangers) {
      SCOPED_TRACE(absl::StrCat(how, " at ", door));
      for (const auto& methods : services) {
        const auto channel = NewChannel(door, credentials);
        for (const std::string& method : methods) {
          EXPECT_EQ(Call(channel, method), grpc::StatusCode::UNAVAILABLE) << method;
        }
      }
    }
  }
  // The cluster serves as if nobody had called.
  const Json run = Run(1, {"run", model_, "The old captain", "--max-tokens", "8", "--json"});
  ASSERT_TRUE(run.is_object()) << run;
  EXPECT_THAT(run["tokens"], SizeIs(8));
}

}  // namespace
}  // namespace strata
