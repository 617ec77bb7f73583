#include "node/http/http_tls.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "node/http/http_server.h"
#include "tests/support/http_client.h"
#include "tests/support/log_capture.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::absl_testing::StatusIs;
using ::strata::testing::HttpClient;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A key and a certificate for localhost that it has signed itself, as files.
struct Pair {
  std::string certificate, key;
};
Pair MakePair(const std::string& folder, const std::string& name, int64_t days) {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = X509_new();
  X509_set_version(certificate, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -2 * 86400);
  X509_gmtime_adj(X509_getm_notAfter(certificate), static_cast<long>(days * 86400));
  X509_set_pubkey(certificate, key);
  X509_NAME* subject = X509_NAME_new();
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
  X509_set_subject_name(certificate, subject);
  X509_set_issuer_name(certificate, subject);
  X509_NAME_free(subject);
  X509V3_CTX context;
  X509V3_set_ctx(&context, certificate, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* names =
      X509V3_EXT_conf_nid(nullptr, &context, NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1");
  X509_add_ext(certificate, names, -1);
  X509_EXTENSION_free(names);
  X509_sign(certificate, key, EVP_sha256());

  Pair pair = {.certificate = folder + "/" + name + ".crt", .key = folder + "/" + name + ".key"};
  FILE* file = fopen(pair.certificate.c_str(), "w");
  PEM_write_X509(file, certificate);
  fclose(file);
  file = fopen(pair.key.c_str(), "w");
  chmod(pair.key.c_str(), 0600);
  PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr);
  fclose(file);
  X509_free(certificate);
  EVP_PKEY_free(key);
  return pair;
}

class HttpTlsTest : public ::testing::Test {
 protected:
  HttpTlsTest() { signal(SIGPIPE, SIG_IGN); }
  ~HttpTlsTest() override { std::filesystem::remove_all(folder_); }

  static absl::Status Load(const std::string& certificate, const std::string& key) {
    return HttpTls::Load({.certificate = certificate, .key = key}, absl::Now()).status();
  }
  std::string File(const std::string& name, const std::string& bytes) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    chmod(path.c_str(), 0600);
    return path;
  }

  void Start(HttpServer::Options options = {}) {
    auto tls = HttpTls::Load({.certificate = pair_.certificate, .key = pair_.key}, absl::Now());
    ASSERT_TRUE(tls.ok()) << tls.status();
    options.tls = *std::move(tls);
    options.handler = [](const HttpRequest& request,
                         const std::shared_ptr<HttpResponder>& responder) {
      if (request.path == "/stream") {
        responder->Begin({.content_type = "text/plain", .body = ""});
        for (int i = 0; i < 100; ++i) responder->Write(std::string(5'000, 'x'));
        responder->End();
        return;
      }
      responder->Answer(
          {.content_type = "text/plain",
           .body = absl::StrCat(request.secure ? "secure " : "plain ", request.body)});
    };
    options.error = [](int status, const std::string& words) {
      return HttpResponse{.status = status, .content_type = "text/plain", .body = words};
    };
    auto server = HttpServer::Start(std::move(options));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  const std::string folder_ = ::strata::testing::MakeTestFolder();
  const Pair pair_ = MakePair(folder_, "good", 30);
  std::unique_ptr<HttpServer> server_;
};

// A client by OpenSSL that trusts `authority`.
class TlsClient {
 public:
  struct Options {
    std::string authority;
    int version_max = TLS1_3_VERSION;
  };
  TlsClient(uint16_t port, const Options& options) : context_(SSL_CTX_new(TLS_client_method())) {
    SSL_CTX_load_verify_file(context_, options.authority.c_str());
    SSL_CTX_set_verify(context_, SSL_VERIFY_PEER, nullptr);
    SSL_CTX_set_max_proto_version(context_, options.version_max);
    SSL_CTX_set_min_proto_version(context_, TLS1_VERSION);
    SSL_CTX_set_cipher_list(context_, "ALL:@SECLEVEL=0");
    bio_ = BIO_new_ssl_connect(context_);
    BIO_set_conn_hostname(bio_, absl::StrCat("127.0.0.1:", port).c_str());
    SSL* session = nullptr;
    BIO_get_ssl(bio_, &session);
    SSL_set1_host(session, "localhost");
    connected_ = BIO_do_connect(bio_) == 1 && BIO_do_handshake(bio_) == 1;
    version_ = SSL_version(session);
  }
  ~TlsClient() {
    BIO_free_all(bio_);
    SSL_CTX_free(context_);
  }
  bool connected() const { return connected_; }
  int version() const { return version_; }
  void Send(const std::string& bytes) {
    for (size_t at = 0; at < bytes.size();) {
      const int n = BIO_write(bio_, bytes.data() + at, static_cast<int>(bytes.size() - at));
      ASSERT_GT(n, 0);
      at += static_cast<size_t>(n);
    }
  }
  std::string ReadToEnd() {
    std::string all;
    char bytes[16384];
    for (int n; (n = BIO_read(bio_, bytes, sizeof(bytes))) > 0;) {
      all.append(bytes, static_cast<size_t>(n));
    }
    return all;
  }

 private:
  SSL_CTX* const context_;
  BIO* bio_ = nullptr;
  bool connected_ = false;
  int version_ = 0;
};

std::string Post(const std::string& body, const std::string& more) {
  return absl::StrCat("POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: ", body.size(),
                      "\r\n", more, "\r\n", body);
}

TEST_F(HttpTlsTest, AClientThatTrustsTheCertificateIsAnswered) {
  Start();
  for (const int version : {TLS1_3_VERSION, TLS1_2_VERSION}) {
    TlsClient client(server_->port(), {.authority = pair_.certificate, .version_max = version});
    ASSERT_TRUE(client.connected());
    EXPECT_EQ(client.version(), version);
    client.Send(Post("one", ""));
    client.Send(Post("two", "Connection: close\r\n"));
    const std::string answers = client.ReadToEnd();
    EXPECT_THAT(answers, StartsWith("HTTP/1.1 200 OK"));
    EXPECT_THAT(answers, HasSubstr("secure one"));
    EXPECT_THAT(answers, HasSubstr("secure two"));
  }
}

TEST_F(HttpTlsTest, LargeBodiesAndStreamsPassWhole) {
  Start();
  TlsClient client(server_->port(), {.authority = pair_.certificate});
  ASSERT_TRUE(client.connected());
  const std::string large(3'000'000, 'y');
  client.Send(Post(large, "Connection: close\r\n"));
  EXPECT_THAT(client.ReadToEnd(), HasSubstr("secure " + large));
  TlsClient reader(server_->port(), {.authority = pair_.certificate});
  reader.Send("GET /stream HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  const std::string stream = reader.ReadToEnd();
  EXPECT_EQ(std::count(stream.begin(), stream.end(), 'x'), 500'000 + 2);  // "text", "x-request-id"
}

TEST_F(HttpTlsTest, VersionsBeforeTls12AreRefused) {
  Start();
  TlsClient client(server_->port(),
                   {.authority = pair_.certificate, .version_max = TLS1_1_VERSION});
  EXPECT_FALSE(client.connected());
}

TEST_F(HttpTlsTest, AClientWithPlainHttpGetsAnError) {
  Start();
  HttpClient client(server_->port());
  ASSERT_TRUE(client.Get("/"));
  const auto reply = client.Read();
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.body, "this port speaks HTTPS: use https://\n");
  EXPECT_EQ(client.ReadToEnd(), "");
}

TEST_F(HttpTlsTest, AMalformedHandshakeIsClosed) {
  Start();
  HttpClient client(server_->port());
  ASSERT_TRUE(client.Send("SSH-2.0-OpenSSH_9.9\r\n"));
  EXPECT_THAT(client.ReadToEnd(), ::testing::Not(HasSubstr("HTTP")));
}

TEST_F(HttpTlsTest, ASilentClientIsClosedInTimeAndOthersAreServed) {
  HttpServer::Options options;
  options.handshake_ms = 3'000;  // which a good one needs a part of
  Start(options);
  HttpClient silent(server_->port());
  HttpClient half(server_->port());
  half.Send(std::string("\x16\x03\x01\x02\x00\x01", 6));  // the start of a hello
  TlsClient client(server_->port(), {.authority = pair_.certificate});
  client.Send(Post("x", "Connection: close\r\n"));
  EXPECT_THAT(client.ReadToEnd(), HasSubstr("secure x"));
  EXPECT_EQ(silent.ReadToEnd(), "");
  EXPECT_EQ(half.ReadToEnd(), "");
  EXPECT_GE(server_->stats().dropped, 2);
}

TEST_F(HttpTlsTest, HandshakesInASecondAreBounded) {
  HttpServer::Options options;
  options.tls_connections = {.source_per_s = 0, .source_burst = 3};
  Start(options);
  testing::LogCapture log;
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(TlsClient(server_->port(), {.authority = pair_.certificate}).connected());
  }
  for (int i = 0; i < 5; ++i) {
    EXPECT_FALSE(TlsClient(server_->port(), {.authority = pair_.certificate}).connected());
  }
  EXPECT_EQ(server_->stats().refused, 5u);
  EXPECT_THAT(log.Lines("does not get in"), ::testing::SizeIs(1));
}

TEST_F(HttpTlsTest, RequestsHaveTheSameBoundsAsWithoutTls) {
  HttpServer::Options options;
  options.header_ms = 200;
  Start(options);
  TlsClient slow(server_->port(), {.authority = pair_.certificate});
  slow.Send("GET / HTTP/1.1\r\nHost: ");
  EXPECT_THAT(slow.ReadToEnd(), StartsWith("HTTP/1.1 408"));
  TlsClient large(server_->port(), {.authority = pair_.certificate});
  large.Send(absl::StrCat("GET /", std::string(kHttpHeaderBytesMax, 'a'), " HTTP/1.1\r\n\r\n"));
  EXPECT_THAT(large.ReadToEnd(), StartsWith("HTTP/1.1 431"));
}

TEST_F(HttpTlsTest, WrongFilesAreNamed) {
  const Pair other = MakePair(folder_, "other", 30);
  EXPECT_THAT(Load(pair_.certificate, ""),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--tls-key")));
  EXPECT_THAT(Load("", pair_.key),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--tls-cert")));
  EXPECT_THAT(Load(pair_.certificate, other.key),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is not the key of")));
  EXPECT_THAT(Load(folder_ + "/none", pair_.key),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("/none: cannot be read")));
  EXPECT_THAT(Load(pair_.key, pair_.key),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no certificate")));
  EXPECT_THAT(Load(pair_.certificate, pair_.certificate).message(), HasSubstr("--tls-key"));
  EXPECT_THAT(Load(pair_.certificate, File("empty", "")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no private key")));
  EXPECT_THAT(Load(File("text", "no PEM"), pair_.key),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no certificate")));
}

TEST_F(HttpTlsTest, AKeyThatOthersMayReadIsRefused) {
  chmod(pair_.key.c_str(), 0644);
  EXPECT_THAT(Load(pair_.certificate, pair_.key),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("--tls-key")));
}

TEST_F(HttpTlsTest, AnExpiredCertificateIsAWarning) {
  const Pair expired = MakePair(folder_, "expired", -1);
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(Load(expired.certificate, expired.key).ok());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("expired on"));
}

}  // namespace
}  // namespace strata
