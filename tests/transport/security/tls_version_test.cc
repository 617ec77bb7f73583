// The TLS versions that a cluster's credentials accept, seen from OpenSSL at the other end: TLS 1.3
// and nothing older, and no bytes from peers without TLS.
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <memory>
#include <string>
#include <thread>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/transport/security/tls_fixture.h"
#include "tests/transport/security/tls_forgery.h"

namespace strata {
namespace {

using testing::Ask;
using testing::Credentials;
using testing::Issue;
using testing::kAnna;
using testing::kBert;
using testing::Member;
using testing::NewAuthority;
using testing::ParseCertificate;
using testing::ParsePrivateKey;
using testing::Server;

struct Free {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* ssl) const { SSL_free(ssl); }
  void operator()(BIO* bio) const { BIO_free_all(bio); }
};

// With a node's certificate, for one version of TLS alone.
std::unique_ptr<SSL_CTX, Free> Context(const ClusterAuthority& cluster, int version) {
  std::unique_ptr<SSL_CTX, Free> context(SSL_CTX_new(TLS_method()));
  SSL_CTX* const c = context.get();
  const NodeCertificate node = Issue(cluster, kBert);
  CHECK_EQ(SSL_CTX_set_min_proto_version(c, version), 1);
  CHECK_EQ(SSL_CTX_set_max_proto_version(c, version), 1);
  CHECK_EQ(SSL_CTX_use_certificate(c, ParseCertificate(node.certificate_pem).get()), 1);
  CHECK_EQ(SSL_CTX_use_PrivateKey(c, ParsePrivateKey(node.private_key_pem.Reveal()).get()), 1);
  CHECK_EQ(X509_STORE_add_cert(SSL_CTX_get_cert_store(c),
                               ParseCertificate(cluster.certificate_pem()).get()),
           1);
  SSL_CTX_set_verify(c, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return context;
}

constexpr unsigned char kHttp2[] = {2, 'h', '2'};

// Reads and writes end at last, so that a test fails instead of hanging.
void LimitWaiting(BIO* bio) {
  const timeval limit{.tv_sec = 30};
  int fd = -1;
  BIO_get_fd(bio, &fd);
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
}

struct Connection {
  bool open = false;    // the server said something of HTTP/2, after the handshake
  std::string why_not;  // OpenSSL's words
  std::string version;
};

Connection Connect(const std::string& address, SSL_CTX* context) {
  const std::unique_ptr<SSL, Free> ssl(SSL_new(context));
  BIO* const bio = BIO_new_connect(address.c_str());
  Connection connection;
  if (BIO_do_connect(bio) != 1) return connection;
  LimitWaiting(bio);
  SSL_set_bio(ssl.get(), bio, bio);
  SSL_set_alpn_protos(ssl.get(), kHttp2, sizeof kHttp2);
  ERR_clear_error();
  char byte;
  connection.open = SSL_connect(ssl.get()) == 1 && SSL_read(ssl.get(), &byte, 1) == 1;
  connection.version = SSL_get_version(ssl.get());
  if (!connection.open) {
    const char* words = ERR_reason_error_string(ERR_peek_error());
    connection.why_not = words == nullptr ? "" : words;
  }
  return connection;
}

TEST(TlsVersion, AServerTakesOneThreeAndNothingOlder) {
  const ClusterAuthority cluster = NewAuthority();
  const auto credentials = Credentials(cluster, kAnna);
  const Server server(credentials->ForServer());
  const auto newest = Context(cluster, TLS1_3_VERSION);
  const Connection connection = Connect(server.address(), newest.get());
  EXPECT_TRUE(connection.open) << connection.why_not;
  EXPECT_EQ(connection.version, "TLSv1.3");

  const auto older = Context(cluster, TLS1_2_VERSION);
  EXPECT_FALSE(Connect(server.address(), older.get()).open);
  ASSERT_EQ(SSL_CTX_set_cipher_list(older.get(), "ALL:eNULL:@SECLEVEL=0"), 1);
  EXPECT_FALSE(Connect(server.address(), older.get()).open);
  // The configured suite of pre-shared keys, with a client that has such a key.
  ASSERT_EQ(SSL_CTX_set_cipher_list(older.get(), "PSK-AES256-GCM-SHA384"), 1);
  SSL_CTX_set_psk_client_callback(
      older.get(),
      [](SSL*, const char*, char* name, unsigned, unsigned char* key, unsigned) -> unsigned {
        name[0] = '\0';
        key[0] = 1;
        return 1;
      });
  EXPECT_FALSE(Connect(server.address(), older.get()).open);
}

// A server of one version: whether a channel's handshake with it succeeded.
bool ChannelConnectsTo(const ClusterAuthority& cluster, int version) {
  const auto context = Context(cluster, version);
  const auto credentials = Credentials(cluster, kAnna);
  SSL_CTX_set_alpn_select_cb(
      context.get(),
      [](SSL*, const unsigned char** out, unsigned char* size, const unsigned char*, unsigned,
         void*) {
        *out = kHttp2 + 1;
        *size = 2;
        return SSL_TLSEXT_ERR_OK;
      },
      nullptr);
  const std::unique_ptr<BIO, Free> listener(BIO_new_accept("127.0.0.1:0"));
  CHECK_EQ(BIO_do_accept(listener.get()), 1);
  LimitWaiting(listener.get());
  const std::string address = absl::StrCat("127.0.0.1:", BIO_get_accept_port(listener.get()));
  bool accepted = false;
  std::thread server([&] {
    if (BIO_do_accept(listener.get()) != 1) return;
    BIO* const bio = BIO_pop(listener.get());
    LimitWaiting(bio);
    const std::unique_ptr<SSL, Free> ssl(SSL_new(context.get()));
    SSL_set_bio(ssl.get(), bio, bio);
    accepted = SSL_accept(ssl.get()) == 1;  // both certificates verified
  });
  // The server has no HTTP/2, so the call fails in either case.
  EXPECT_FALSE(Ask(address, credentials->ForChannel(), Member()).status.ok());
  server.join();
  return accepted;
}

TEST(TlsVersion, AChannelTakesOneThreeAndNothingOlder) {
  const ClusterAuthority cluster = NewAuthority();
  EXPECT_TRUE(ChannelConnectsTo(cluster, TLS1_3_VERSION));
  EXPECT_FALSE(ChannelConnectsTo(cluster, TLS1_2_VERSION));
}

TEST(TlsVersion, AServerSurvivesUntrustedBytes) {
  const ClusterAuthority cluster = NewAuthority();
  const auto credentials = Credentials(cluster, kAnna);
  const Server server(credentials->ForServer());
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        std::string(100'000, '\xff'), std::string("\x16\x03\x01\xff\xff"), std::string()}) {
    const std::unique_ptr<BIO, Free> bio(BIO_new_connect(server.address().c_str()));
    ASSERT_EQ(BIO_do_connect(bio.get()), 1);
    BIO_write(bio.get(), bytes.data(), static_cast<int>(bytes.size()));
  }
  const auto bert = Credentials(cluster, kBert);
  EXPECT_TRUE(Ask(server.address(), bert->ForChannel(), Member()).status.ok());
}

}  // namespace
}  // namespace strata
