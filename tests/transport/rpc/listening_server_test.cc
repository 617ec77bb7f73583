#include "transport/rpc/listening_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "grpcpp/security/server_credentials.h"
#include "gtest/gtest.h"
#include "tests/support/fake_clock.h"
#include "tests/support/log_capture.h"
#include "tests/transport/security/tls_fixture.h"
#include "tests/transport/security/tls_forgery.h"

namespace strata {
namespace {

using absl_testing::StatusIs;
using testing::Ask;
using testing::Credentials;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Issue;
using testing::kAnna;
using testing::kBert;
using testing::Member;
using testing::NewAuthority;
using testing::Server;
using ::testing::SizeIs;
using ::testing::StartsWith;

sockaddr_in Address(const std::string& host, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  EXPECT_EQ(inet_pton(AF_INET, host.c_str(), &address.sin_addr), 1);
  return address;
}

// A connection of a peer that speaks neither TLS nor gRPC.
class Visitor {
 public:
  // From `source`, one of this machine's addresses.
  explicit Visitor(int port, const std::string& source = "127.0.0.1")
      : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    const sockaddr_in from = Address(source, 0);
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&from), sizeof from), 0);
    const sockaddr_in to = Address("127.0.0.1", port);
    EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  }
  ~Visitor() { close(fd_); }

  void Say(const std::string& bytes) {
    EXPECT_EQ(send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // The bytes received until the connection is closed.
  std::string Heard() {
    std::string heard;
    char bytes[4096];
    for (;;) {
      pollfd one{.fd = fd_, .events = POLLIN, .revents = 0};
      if (poll(&one, 1, 30'000) != 1) return "no end";
      const ssize_t n = recv(fd_, bytes, sizeof bytes, 0);
      if (n <= 0) return heard;
      heard.append(bytes, static_cast<size_t>(n));
    }
  }

 private:
  const int fd_;
};

class ListeningServerTest : public ::testing::Test {
 protected:
  ListeningServer::Options Tls(const std::string& address = "127.0.0.1:0") const {
    return {.address = address,
            .credentials = anna_->ForServer(),
            .handshake_max_ms = handshake_max_ms_,
            .clock = &clock_};
  }

  int handshake_max_ms_ = 30'000;
  const ClusterAuthority cluster_ = NewAuthority();
  const std::unique_ptr<ClusterCredentials> anna_ = Credentials(cluster_, kAnna);
  const std::unique_ptr<ClusterCredentials> bert_ = Credentials(cluster_, kBert);
  mutable FakeClock clock_;
};

bool GetsIn(const Server& server, const ClusterCredentials& client) {
  return Ask(server.address(), client.ForChannel(), Member()).status.ok();
}

TEST_F(ListeningServerTest, APortThatIsTakenIsNamed) {
  const Server server(Tls());
  grpc::ServerBuilder builder;
  EXPECT_THAT(ListeningServer::Start(Tls(server.address()), &builder).status(),
              StatusIs(absl::StatusCode::kUnavailable,
                       "cannot listen on " + server.address() + ": Address already in use"));
}

TEST_F(ListeningServerTest, InvalidAddressesAreRefused) {
  for (const char* address : {"", "7400", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:x"}) {
    grpc::ServerBuilder builder;
    EXPECT_THAT(ListeningServer::Start(Tls(address), &builder).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(address)));
  }
  grpc::ServerBuilder builder;
  EXPECT_THAT(ListeningServer::Start(Tls("192.0.2.1:0"), &builder).status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("192.0.2.1:0")));
}

TEST_F(ListeningServerTest, AllInterfacesAreIpv6AndIpv4) {
  for (const char* address : {"[::]:0", "0.0.0.0:0"}) {
    const Server server(Tls(address));
    EXPECT_TRUE(GetsIn(server, *bert_)) << address;
    const std::string ipv6 = absl::StrCat("[::1]:", server.port());
    EXPECT_TRUE(Ask(ipv6, bert_->ForChannel(), Member()).status.ok()) << address;
  }
}

TEST_F(ListeningServerTest, AHostMayBeAName) {
  const Server server(Tls("localhost:0"));
  EXPECT_TRUE(
      Ask(absl::StrCat("localhost:", server.port()), bert_->ForChannel(), Member()).status.ok());
}

TEST_F(ListeningServerTest, ThePeerIsTheConnectedAddress) {
  class Mirror final : public wire::Cluster::Service {
    grpc::Status Identify(grpc::ServerContext* context, const wire::IdentifyRequest*,
                          wire::IdentifyResponse* response) override {
      response->set_node_id(context->peer());
      return grpc::Status::OK;
    }
  } mirror;
  grpc::ServerBuilder builder;
  builder.RegisterService(&mirror);
  auto server = ListeningServer::Start(Tls("[::]:0"), &builder);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT(
      Ask(absl::StrCat("127.0.0.1:", (*server)->port()), bert_->ForChannel(), Member()).asker,
      StartsWith("ipv4:127.0.0.1:"));
}

TEST_F(ListeningServerTest, ConnectionsHaveTheAgeOfTheBuilders) {
  wire::Cluster::Service nothing;
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, 20);
  builder.RegisterService(&nothing);
  const auto server = ListeningServer::Start(Tls(), &builder);
  ASSERT_TRUE(server.ok()) << server.status();
  const auto channel = grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", (*server)->port()),
                                                 bert_->ForChannel(), Member());
  const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(30);
  ASSERT_TRUE(channel->WaitForConnected(deadline));
  EXPECT_TRUE(channel->WaitForStateChange(GRPC_CHANNEL_READY, deadline));
}

TEST_F(ListeningServerTest, AFloodFromOneAddressKeepsNobodyElseOut) {
  ListeningServer::Options options = Tls();
  options.limits.source_burst = 20;
  const Server server(options);
  testing::LogCapture log;
  std::vector<std::unique_ptr<Visitor>> flood;
  for (int i = 0; i < 200; ++i) {
    flood.push_back(std::make_unique<Visitor>(server.port(), "127.0.0.2"));
  }
  for (size_t i = 20; i < flood.size(); ++i) EXPECT_EQ(flood[i]->Heard(), "");
  EXPECT_TRUE(GetsIn(server, *bert_));  // from 127.0.0.1
  EXPECT_THAT(log.Lines("does not get in"),
              ElementsAre(absl::StrCat("127.0.0.2 does not get in at port ", server.port(),
                                       ": it opens too many connections")));
}

TEST_F(ListeningServerTest, AFloodFromManyAddressesKeepsOutWhoIsNotKnownYet) {
  ListeningServer::Options options = Tls();
  options.limits = {.source_burst = 20, .total_burst = 30};
  const Server server(options);
  ASSERT_TRUE(GetsIn(server, *bert_));
  testing::LogCapture log;
  std::vector<std::unique_ptr<Visitor>> flood;
  for (int i = 0; i < 60; ++i) {
    flood.push_back(std::make_unique<Visitor>(server.port(), absl::StrCat("127.0.1.", 1 + i)));
  }
  for (size_t i = 30; i < flood.size(); ++i) EXPECT_EQ(flood[i]->Heard(), "");
  EXPECT_TRUE(GetsIn(server, *bert_));
  EXPECT_THAT(log.Lines("does not get in"),
              ElementsAre(EndsWith(": such addresses together open too many connections")));
}

// The log message of a refusal, which is logged only once.
class Refusal : public ListeningServerTest {
 protected:
  // Expects `reason` once in the log after several attempts, each of which is refused.
  template <typename Attempt>
  void ExpectLogged(const std::string& reason, Attempt attempt) {
    testing::LogCapture log;
    auto server = std::make_unique<Server>(Tls());
    const int port = server->port();
    for (int i = 0; i < 3; ++i) attempt(*server);
    log.WaitFor("does not get in");
    server.reset();  // all that is to come has come
    EXPECT_THAT(
        log.Lines("does not get in"),
        ElementsAre(absl::StrCat("127.0.0.1 does not get in at port ", port, ": ", reason)));
  }
  void ExpectLoggedOf(const ClusterCredentials& client, const std::string& reason) {
    ExpectLogged(reason, [&](const Server& server) { EXPECT_FALSE(GetsIn(server, client)); });
  }
};

TEST_F(Refusal, OfAnotherCluster) {
  const ClusterAuthority other = NewAuthority();
  ExpectLoggedOf(
      *Credentials({cluster_.certificate_pem(), other.certificate_pem()}, Issue(other, kBert)),
      "its certificate is not of this cluster");
}

TEST_F(Refusal, OfAPeerThatTrustsAnotherClusterOnly) {
  ExpectLoggedOf(*Credentials(NewAuthority(), kBert),
                 "it leaves in the middle of its handshake: is it of another cluster?");
}

TEST_F(Refusal, OfAForgery) {
  const testing::Forgery forgery = testing::Forge(cluster_, Issue(cluster_, kBert));
  ExpectLoggedOf(*Credentials({cluster_.certificate_pem(), forgery.authority_pem}, forgery.node),
                 "its certificate is not of this cluster");
}

TEST_F(Refusal, OfAnExpiredCertificate) {
  ExpectLoggedOf(*Credentials({cluster_.certificate_pem()}, testing::IssueExpired(cluster_, kBert)),
                 "its certificate has expired");
}

TEST_F(Refusal, OfACertificateThatIsNotValidYet) {
  ExpectLoggedOf(*Credentials({cluster_.certificate_pem()},
                              Issue(cluster_, {.node_id = kBert,
                                               .not_before = absl::Now() + absl::Hours(24)})),
                 "its certificate is not valid yet: do the clocks differ?");
}

TEST_F(Refusal, OfNoCertificate) {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = cluster_.certificate_pem();
  ExpectLogged("it shows no certificate", [&](const Server& server) {
    EXPECT_FALSE(Ask(server.address(), grpc::SslCredentials(options), Member()).status.ok());
  });
}

TEST_F(Refusal, OfPlainText) {
  const std::string reason = "it does not speak TLS: plain text, or another protocol";
  ExpectLogged(reason, [](const Server& server) {
    EXPECT_FALSE(Ask(server.address(), grpc::InsecureChannelCredentials(), {}).status.ok());
  });
  ExpectLogged(reason, [](const Server& server) {
    Visitor visitor(server.port());
    visitor.Say("GET / HTTP/1.1\r\n\r\n");
    visitor.Heard();
  });
}

TEST_F(Refusal, OfOlderTls) {
  ExpectLogged("it does not speak TLS 1.3, or has no suite of it in common",
               [&](const Server& server) {
                 SSL_CTX* const context = SSL_CTX_new(TLS_client_method());
                 SSL_CTX_set_max_proto_version(context, TLS1_2_VERSION);
                 BIO* const wire = BIO_new_ssl_connect(context);
                 BIO_set_conn_hostname(wire, server.address().c_str());
                 EXPECT_LE(BIO_do_connect(wire), 0);
                 BIO_free_all(wire);
                 SSL_CTX_free(context);
               });
}

TEST_F(Refusal, OfAHandshakeThatDoesNotEnd) {
  handshake_max_ms_ = 50;
  const std::string reason = "it does not end its handshake in time";
  ExpectLogged(reason, [](const Server& server) {
    Visitor visitor(server.port());
    EXPECT_EQ(visitor.Heard(), "");
  });
  ExpectLogged(reason, [](const Server& server) {
    Visitor visitor(server.port());
    visitor.Say(std::string("\x16\x03\x01\x02", 4));  // of a record of TLS
    EXPECT_EQ(visitor.Heard(), "");
  });
}

TEST_F(Refusal, IsNotWhatAProbeOfThePortGets) {
  testing::LogCapture log;
  auto server = std::make_unique<Server>(Tls());
  for (int i = 0; i < 3; ++i) Visitor(server->port());
  EXPECT_TRUE(GetsIn(*server, *bert_));
  server.reset();
  EXPECT_THAT(log.Lines("does not get in"), IsEmpty());
}

TEST_F(ListeningServerTest, ShuttingDownEndsItUnderAFlood) {
  auto server = std::make_unique<Server>(Tls());
  std::atomic<bool> stopped = false;
  std::thread flood([&, port = server->port()] {
    while (!stopped) {
      const int fd = socket(AF_INET, SOCK_STREAM, 0);
      const sockaddr_in to = Address("127.0.0.1", port);
      [[maybe_unused]] const int got_in =
          connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to);
      close(fd);
    }
  });
  EXPECT_THAT(testing::LogCapture().WaitFor("too many"), SizeIs(1));
  server.reset();
  stopped = true;
  flood.join();
}

}  // namespace
}  // namespace strata
