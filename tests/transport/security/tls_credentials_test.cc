#include "transport/security/tls_credentials.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status_matchers.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "gtest/gtest.h"
#include "tests/transport/security/recording_proxy.h"
#include "tests/transport/security/tls_fixture.h"
#include "tests/transport/security/tls_forgery.h"

namespace strata {
namespace {

using absl_testing::StatusIs;
using testing::Answer;
using testing::Ask;
using testing::Credentials;
using testing::Issue;
using testing::kAnna;
using testing::kBert;
using testing::Member;
using testing::NewAuthority;
using testing::Node;
using testing::Server;

constexpr grpc::StatusCode kRefused = grpc::StatusCode::UNAVAILABLE;

class Tls : public ::testing::Test {
 protected:
  const ClusterAuthority cluster_ = NewAuthority();
  const std::unique_ptr<ClusterCredentials> anna_ = Credentials(cluster_, kAnna);
  const std::unique_ptr<ClusterCredentials> bert_ = Credentials(cluster_, kBert);
};

// Whether a client with the one gets an answer from a server with the other credentials.
bool Talk(const ClusterCredentials& client, const ClusterCredentials& server,
          const grpc::ChannelArguments& expected) {
  const Server answerer(server.ForServer());
  const Answer answer = Ask(answerer.address(), client.ForChannel(), expected);
  if (!answer.status.ok()) {
    EXPECT_EQ(answer.status.error_code(), kRefused) << answer.status.error_message();
  }
  return answer.status.ok();
}

TEST_F(Tls, NodesOfOneClusterTalkAndKnowEachOther) {
  const Server anna(anna_->ForServer());
  const Answer answer = Ask(anna.address(), bert_->ForChannel(), Member());
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.asker, kBert);
  EXPECT_EQ(answer.answerer, kAnna);
}

TEST_F(Tls, ManyChannelsAndServersShareOnesCredentials) {
  const Server one(anna_->ForServer());
  const Server other(anna_->ForServer());
  const auto channel = bert_->ForChannel();
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(Ask(one.address(), channel, Member()).status.ok());
    EXPECT_TRUE(Ask(other.address(), bert_->ForChannel(), Member()).status.ok());
    EXPECT_TRUE(Ask(one.address(), anna_->ForChannel(), Member()).status.ok());
  }
}

TEST_F(Tls, OneNodeCanBeExpected) {
  EXPECT_TRUE(Talk(*bert_, *anna_, Node(kAnna)));
  EXPECT_FALSE(Talk(*bert_, *anna_, Node(kBert)));
}

TEST_F(Tls, AChannelThatExpectsNoNameFails) {
  EXPECT_FALSE(Talk(*bert_, *anna_, grpc::ChannelArguments()));
}

TEST_F(Tls, ANodeOfAnotherClusterIsRefused) {
  const ClusterAuthority other = NewAuthority();
  const auto stranger = Credentials(other, kBert);
  // Each refuses: the client,
  EXPECT_FALSE(Talk(*stranger, *anna_, Member()));
  // and the server, when the client would trust it.
  const auto trusting =
      Credentials({cluster_.certificate_pem(), other.certificate_pem()}, Issue(other, kBert));
  EXPECT_FALSE(Talk(*trusting, *anna_, Member()));
  EXPECT_FALSE(Talk(*anna_, *trusting, Member()));
}

TEST_F(Tls, AnAuthorityOfTheSameNameIsRefused) {
  const testing::Forgery forgery = testing::Forge(cluster_, Issue(cluster_, kBert));
  const auto forged = Credentials({forgery.authority_pem}, forgery.node);
  EXPECT_TRUE(Talk(*forged, *forged, Member()));  // it is well made
  EXPECT_FALSE(Talk(*anna_, *forged, Member()));
  // A client that accepts the server; OpenSSL uses the first authority of a name.
  const auto trusting =
      Credentials({cluster_.certificate_pem(), forgery.authority_pem}, forgery.node);
  EXPECT_FALSE(Talk(*trusting, *anna_, Member()));
}

TEST_F(Tls, ACertificateThatHasEndedIsRefused) {
  const auto ended =
      Credentials({cluster_.certificate_pem()}, testing::IssueExpired(cluster_, kBert));
  EXPECT_FALSE(Talk(*ended, *anna_, Member()));
  EXPECT_FALSE(Talk(*anna_, *ended, Member()));
}

TEST_F(Tls, ACertificateThatIsNotValidYetIsRefused) {
  const auto ahead =
      Credentials({cluster_.certificate_pem()},
                  Issue(cluster_, {.node_id = kBert, .not_before = absl::Now() + absl::Hours(24)}));
  EXPECT_FALSE(Talk(*ahead, *anna_, Member()));
  EXPECT_FALSE(Talk(*anna_, *ahead, Member()));
}

TEST_F(Tls, ThePrivateKeyMustBeTheCertificates) {
  NodeCertificate mixed = Issue(cluster_, kBert);
  mixed.private_key_pem = std::move(Issue(cluster_, kBert).private_key_pem);
  const auto thief = Credentials({cluster_.certificate_pem()}, mixed);
  EXPECT_FALSE(Talk(*thief, *anna_, Member()));
  EXPECT_FALSE(Talk(*anna_, *thief, Member()));
}

TEST_F(Tls, InvalidCertificatesNeverMeanPlainText) {
  NodeCertificate broken = Issue(cluster_, kBert);
  broken.certificate_pem = "nonsense";
  const auto credentials = Credentials({cluster_.certificate_pem()}, broken);
  const Server server(credentials->ForServer());
  EXPECT_FALSE(Ask(server.address(), anna_->ForChannel(), Member()).status.ok());
  EXPECT_FALSE(Ask(server.address(), grpc::InsecureChannelCredentials(), {}).status.ok());
  const Server plain(grpc::InsecureServerCredentials());
  EXPECT_FALSE(Ask(plain.address(), credentials->ForChannel(), Member()).status.ok());
}

TEST_F(Tls, PlainTextIsRefusedOnBothSides) {
  const Server anna(anna_->ForServer());
  EXPECT_EQ(Ask(anna.address(), grpc::InsecureChannelCredentials(), {}).status.error_code(),
            kRefused);
  const Server plain(grpc::InsecureServerCredentials());
  EXPECT_EQ(Ask(plain.address(), bert_->ForChannel(), Member()).status.error_code(), kRefused);
}

TEST_F(Tls, AClientWithoutACertificateIsRefused) {
  const Server anna(anna_->ForServer());
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = cluster_.certificate_pem();
  EXPECT_EQ(Ask(anna.address(), grpc::SslCredentials(options), Member()).status.error_code(),
            kRefused);
  // With a certificate it would be accepted.
  const NodeCertificate node = Issue(cluster_, kBert);
  options.pem_cert_chain = node.certificate_pem;
  options.pem_private_key = node.private_key_pem.Reveal();
  EXPECT_TRUE(Ask(anna.address(), grpc::SslCredentials(options), Member()).status.ok());
}

TEST_F(Tls, AHandshakeThatIsRepeatedIsRefused) {
  const Server anna(anna_->ForServer());
  std::string said;
  {
    testing::RecordingProxy proxy(anna.port());
    ASSERT_TRUE(Ask(proxy.address(), bert_->ForChannel(), Member()).status.ok());
    said = proxy.Said();
  }
  ASSERT_EQ(anna.calls(), 1);
  // All bytes of the client: its hello, which is valid again, the rest of its handshake, and its
  // call. A record's length is its fourth and fifth byte (RFC 8446, 5.1).
  ASSERT_GT(said.size(), 5u);
  const size_t hello = 5 + static_cast<uint8_t>(said[3]) * 256u + static_cast<uint8_t>(said[4]);
  ASSERT_GT(said.size(), hello);
  const int fd = testing::ConnectTo(anna.port());
  char bytes[4096];
  ASSERT_EQ(send(fd, said.data(), hello, MSG_NOSIGNAL), static_cast<ssize_t>(hello));
  EXPECT_GT(read(fd, bytes, sizeof bytes), 0);
  const size_t rest = said.size() - hello;
  ASSERT_EQ(send(fd, said.data() + hello, rest, MSG_NOSIGNAL), static_cast<ssize_t>(rest));
  ssize_t n = 0;
  while ((n = read(fd, bytes, sizeof bytes)) > 0) {
  }
  EXPECT_TRUE(n == 0 || errno == ECONNRESET) << "the connection stands";
  close(fd);
  EXPECT_EQ(anna.calls(), 1);
}

TEST_F(Tls, APeerWithoutTlsIsNobody) {
  const Server plain(grpc::InsecureServerCredentials());
  const Answer answer = Ask(plain.address(), grpc::InsecureChannelCredentials(), {});
  ASSERT_TRUE(answer.status.ok());
  EXPECT_THAT(answer.asker, ::testing::HasSubstr("UNAUTHENTICATED"));
  EXPECT_EQ(answer.answerer, "nobody");
}

// Calls again and again, each time over a new connection, until the result is as expected.
bool Becomes(bool ok, const Server& server, const ClusterCredentials& client,
             const grpc::ChannelArguments& expected) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (std::chrono::steady_clock::now() < deadline) {
    if (Ask(server.address(), client.ForChannel(), expected).status.ok() == ok) return true;
  }
  return false;
}

TEST_F(Tls, ACertificateIsRenewedWhileTheServerRuns) {
  const auto renewed =
      Credentials({cluster_.certificate_pem()}, testing::IssueExpired(cluster_, kAnna));
  const Server server(renewed->ForServer());
  EXPECT_FALSE(Ask(server.address(), bert_->ForChannel(), Member()).status.ok());
  ASSERT_TRUE(renewed->Replace({cluster_.certificate_pem()}, Issue(cluster_, kAnna)).ok());
  EXPECT_TRUE(Becomes(true, server, *bert_, Member()));
}

TEST_F(Tls, AChannelThatConnectsAgainShowsTheRenewedCertificate) {
  const auto renewed =
      Credentials({cluster_.certificate_pem()}, testing::IssueExpired(cluster_, kBert));
  const Server anna(anna_->ForServer());
  grpc::ChannelArguments arguments = Member();
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);
  const auto stub = wire::Cluster::NewStub(
      grpc::CreateCustomChannel(anna.address(), renewed->ForChannel(), arguments));
  const auto ask = [&](bool wait) {
    grpc::ClientContext context;
    context.set_wait_for_ready(wait);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    wire::IdentifyResponse response;
    return stub->Identify(&context, wire::IdentifyRequest(), &response);
  };
  EXPECT_EQ(ask(false).error_code(), kRefused);
  ASSERT_TRUE(renewed->Replace({cluster_.certificate_pem()}, Issue(cluster_, kBert)).ok());
  EXPECT_TRUE(ask(true).ok());
}

TEST_F(Tls, AClusterChangesItsKeyWhileTheServerRuns) {
  const ClusterAuthority next = NewAuthority();
  const auto other = Credentials(next, kBert);
  const auto changing = Credentials(cluster_, kAnna);
  const Server server(changing->ForServer());
  // First it trusts the next authority beside the old one.
  ASSERT_TRUE(
      changing->Replace({cluster_.certificate_pem(), next.certificate_pem()}, Issue(next, kAnna))
          .ok());
  EXPECT_TRUE(Becomes(true, server, *other, Member()));
  const auto old =
      Credentials({cluster_.certificate_pem(), next.certificate_pem()}, Issue(cluster_, kBert));
  EXPECT_TRUE(Ask(server.address(), old->ForChannel(), Member()).status.ok());
  // Then the next one alone.
  ASSERT_TRUE(changing->Replace({next.certificate_pem()}, Issue(next, kAnna)).ok());
  EXPECT_TRUE(Becomes(false, server, *old, Member()));
  EXPECT_TRUE(Ask(server.address(), other->ForChannel(), Member()).status.ok());
}

TEST_F(Tls, FilesAreTheOwnersAndGoWithTheirObject) {
  const std::string folder = testing::MakeTestFolder() + "/tls";
  const auto make = [&] {
    return ClusterCredentials::Create({.folder = folder}, {cluster_.certificate_pem()},
                                      Issue(cluster_, kAnna));
  };
  {
    const auto made = make();
    ASSERT_TRUE(made.ok()) << made.status();
    struct stat about{};
    ASSERT_EQ(stat(folder.c_str(), &about), 0);
    EXPECT_EQ(about.st_mode & 07777, 0700u);
    for (const auto& file : std::filesystem::directory_iterator(folder)) {
      ASSERT_EQ(stat(file.path().c_str(), &about), 0);
      EXPECT_EQ(about.st_mode & 07777, 0600u) << file.path();
    }
    EXPECT_TRUE(make().ok());  // where somebody died and left files
  }
  EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST_F(Tls, ErrorsNameTheFolder) {
  const std::string folder = testing::MakeTestFolder() + "/none/tls";
  EXPECT_THAT(ClusterCredentials::Create({.folder = folder}, {cluster_.certificate_pem()},
                                         Issue(cluster_, kAnna))
                  .status(),
              StatusIs(absl::StatusCode::kNotFound, ::testing::HasSubstr(folder)));
  EXPECT_THAT(
      ClusterCredentials::Create({.folder = testing::MakeTestFolder()}, {}, Issue(cluster_, kAnna))
          .status(),
      StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace strata
