#include "transport/security/tls_look.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "grpcpp/security/server_credentials.h"
#include "gtest/gtest.h"
#include "tests/transport/security/tls_fixture.h"

namespace strata {
namespace {

using absl_testing::IsOk;
using absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::AnyOf;
using testing::Credentials;
using ::testing::HasSubstr;
using testing::Issue;
using testing::kAnna;
using testing::NewAuthority;
using testing::Server;

constexpr absl::Duration kLong = absl::Seconds(30);

// Listens on the loopback; accepts connections only when the test says so.
class Listener {
 public:
  Listener() : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    CHECK_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    CHECK_EQ(listen(fd_, 1), 0);
    CHECK_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
  }
  ~Listener() { close(fd_); }
  int fd() const { return fd_; }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  int fd_;
  int port_ = 0;
};

TEST(LookAtCertificate, ReturnsItsNames) {
  const ClusterAuthority cluster = NewAuthority();
  const NodeCertificate node = Issue(cluster, kAnna);
  const auto credentials = Credentials({cluster.certificate_pem()}, node);
  const Server server(credentials->ForServer());
  const absl::StatusOr<ShownCertificate> shown = LookAtCertificate(server.address(), kLong);
  ASSERT_THAT(shown, IsOk());
  EXPECT_EQ(shown->cluster_id, cluster.cluster_id());
  EXPECT_EQ(shown->node_id, kAnna);
  EXPECT_EQ(shown->not_before, absl::UnixEpoch());
  EXPECT_GT(shown->not_after, absl::Now() + absl::Hours(24 * 365 * 1000));
  EXPECT_EQ(WhyRefused(*shown, cluster.cluster_id(), absl::Now()), "");
}

TEST(LookAtCertificate, PlainTextIsNoTls) {
  const Server server(grpc::InsecureServerCredentials());
  EXPECT_THAT(LookAtCertificate(server.address(), kLong),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr(server.address()), HasSubstr("without a key"))));
}

TEST(LookAtCertificate, AClosedPortIsUnavailable) {
  const std::string address = Listener().address();
  EXPECT_THAT(LookAtCertificate(address, kLong), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(LookAtCertificate("nowhere.invalid:1", kLong).status(),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_FALSE(LookAtCertificate("", kLong).ok());
  EXPECT_FALSE(LookAtCertificate("127.0.0.1", kLong).ok());
}

TEST(LookAtCertificate, SilenceEnds) {
  const Listener silent;
  EXPECT_THAT(LookAtCertificate(silent.address(), absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST(LookAtCertificate, APeerThatDisconnectsDoesNotEndTheProgram) {
  for (int i = 0; i < 20; ++i) {
    const Listener rude;
    std::thread thread([&] {
      const int fd = accept(rude.fd(), nullptr, nullptr);
      const linger at_once{.l_onoff = 1, .l_linger = 0};
      setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
      close(fd);
    });
    // The peer may have disconnected before the connection is noticed.
    EXPECT_THAT(LookAtCertificate(rude.address(), kLong).status().code(),
                AnyOf(absl::StatusCode::kFailedPrecondition, absl::StatusCode::kUnavailable));
    thread.join();
  }
}

TEST(SaysWrongCertificate, OfAFailedHandshakeOnly) {
  EXPECT_TRUE(SaysWrongCertificate(
      "failed to connect to all addresses; last error: UNKNOWN: Tls handshake failed: "
      "SSL_ERROR_SSL: error:0A000086:SSL routines::certificate verify failed"));
  EXPECT_FALSE(SaysWrongCertificate("failed to connect to all addresses; Socket closed"));
}

TEST(WhyRefused, NamesTheDifferenceAndTheRemedy) {
  const absl::Time now = absl::FromUnixSeconds(1'800'000'000);
  const ShownCertificate good = {.cluster_id = "ours",
                                 .node_id = kAnna,
                                 .not_before = now - absl::Hours(1),
                                 .not_after = now + absl::Hours(1)};
  EXPECT_EQ(WhyRefused(good, "ours", now), "");
  EXPECT_THAT(WhyRefused(good, "other", now),
              AllOf(HasSubstr("another key"), HasSubstr("ours"), HasSubstr("other")));
  EXPECT_THAT(WhyRefused(good, "ours", now - absl::Hours(2)),
              AllOf(HasSubstr("valid from 2027-01-15 07:00 UTC on"), HasSubstr("clocks")));
  EXPECT_THAT(WhyRefused(good, "ours", now + absl::Hours(1)),
              AllOf(HasSubstr("expired 2027-01-15 09:00 UTC"), HasSubstr("clocks")));
  EXPECT_THAT(WhyRefused({}, "ours", now), HasSubstr("another program"));
}

}  // namespace
}  // namespace strata
