#include "transport/security/tls_look.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <ctime>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "transport/base/steady_time.h"
#include "transport/security/cluster_certificates.h"
#include "transport/security/openssl_free.h"
#include "transport/security/openssl_status.h"

namespace strata {
namespace {

constexpr absl::Duration kNap = absl::Milliseconds(5);
constexpr unsigned char kHttp2[] = {2, 'h', '2'};

// OpenSSL writes to sockets without MSG_NOSIGNAL: while this lives, writing to a closed connection
// is only an error on this thread, and no signal.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    was_pending_ = Pending();
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoSigpipe() {
    int ignored;
    if (!was_pending_ && Pending()) sigwait(&pipe_, &ignored);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  static bool Pending() {
    sigset_t pending;
    sigemptyset(&pending);
    sigpending(&pending);
    return sigismember(&pending, SIGPIPE) == 1;
  }
  sigset_t pipe_;
  sigset_t before_;
  bool was_pending_;
};

absl::Time TimeOf(const ASN1_TIME* time) {
  std::tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTM(parts, absl::UTCTimeZone());
}

ShownCertificate Read(const X509* certificate) {
  ShownCertificate shown;
  CertificateNames names = NamesOf(*certificate);
  shown.cluster_id = std::move(names.cluster_id);
  shown.node_id = std::move(names.node_id);
  shown.not_before = TimeOf(X509_get0_notBefore(certificate));
  shown.not_after = TimeOf(X509_get0_notAfter(certificate));
  return shown;
}

// Waits until `bio` is ready; false after `until`. BIO_wait() would use the wall clock.
bool Wait(BIO* bio, SteadyTime until) {
  const absl::Duration left = until - SteadyTime::Now();
  if (left <= absl::ZeroDuration()) return false;
  int fd = -1;
  if (BIO_get_fd(bio, &fd) < 0) {
    absl::SleepFor(std::min(left, kNap));
    return true;
  }
  pollfd wanted = {.fd = fd, .events = static_cast<short>(BIO_should_read(bio) ? POLLIN : POLLOUT)};
  poll(&wanted, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
  return true;
}

absl::Status NoAnswer(const std::string& address) {
  return absl::DeadlineExceededError(absl::StrCat(address, " does not answer"));
}

absl::Status Connect(BIO* bio, const std::string& address, absl::Duration timeout) {
  const SteadyTime until = SteadyTime::Now() + timeout;
  while (BIO_do_connect(bio) != 1) {
    if (!BIO_should_retry(bio)) {
      ERR_clear_error();
      return absl::UnavailableError(absl::StrCat("cannot connect to ", address));
    }
    if (!Wait(bio, until)) {
      ERR_clear_error();
      return NoAnswer(address);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ShownCertificate> LookAtCertificate(const std::string& address,
                                                   absl::Duration timeout) {
  const NoSigpipe no_sigpipe;
  ERR_clear_error();
  const std::unique_ptr<SSL_CTX, OpensslFree> context(SSL_CTX_new(TLS_client_method()));
  if (context == nullptr) return OpensslError("no TLS");
  SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_NONE, nullptr);  // only to read the certificate
  SSL_CTX_set_alpn_protos(context.get(), kHttp2, sizeof kHttp2);
  const std::unique_ptr<SSL, OpensslFree> ssl(SSL_new(context.get()));
  std::unique_ptr<BIO, OpensslFree> bio(BIO_new(BIO_s_connect()));
  if (ssl == nullptr || bio == nullptr || BIO_set_conn_hostname(bio.get(), address.c_str()) != 1) {
    ERR_clear_error();
    return absl::InvalidArgumentError(absl::StrCat(address, " is not an address"));
  }
  BIO_set_nbio(bio.get(), 1);
  if (absl::Status status = Connect(bio.get(), address, timeout); !status.ok()) return status;

  BIO* const connection = bio.get();
  SSL_set_bio(ssl.get(), connection, bio.release());
  const SteadyTime until = SteadyTime::Now() + timeout;
  for (;;) {
    const int result = SSL_connect(ssl.get());
    if (result == 1) break;
    const int error = SSL_get_error(ssl.get(), result);
    ERR_clear_error();
    // The peer may have shown its certificate before the handshake failed.
    if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) break;
    if (!Wait(connection, until)) {
      ERR_clear_error();
      return NoAnswer(address);
    }
  }
  const std::unique_ptr<X509, OpensslFree> certificate(SSL_get1_peer_certificate(ssl.get()));
  ERR_clear_error();
  if (certificate == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("the program at ", address,
                     " does not speak TLS 1.3: it is a node without a key, or another program"));
  }
  return Read(certificate.get());
}

std::string WhyRefused(const ShownCertificate& shown, absl::string_view cluster_id,
                       absl::Time now) {
  const auto when = [](absl::Time time) {
    return absl::FormatTime("%Y-%m-%d %H:%M UTC", time, absl::UTCTimeZone());
  };
  if (shown.cluster_id.empty()) {
    return "its certificate is not a node's: another program is listening there";
  }
  if (shown.cluster_id != cluster_id) {
    return absl::StrCat("it has another key: it is of cluster ", shown.cluster_id,
                        ", this node of ", cluster_id);
  }
  if (now < shown.not_before) {
    return absl::StrCat("its certificate is valid from ", when(shown.not_before),
                        " on, and here it is ", when(now), ": set the clocks of both machines");
  }
  if (now >= shown.not_after) {
    return absl::StrCat("its certificate expired ", when(shown.not_after), ", and here it is ",
                        when(now), ": set the clocks of both machines, then start that node again");
  }
  return "";
}

bool SaysWrongCertificate(absl::string_view error) {
  return absl::StrContains(error, "certificate verify failed");
}

}  // namespace strata
