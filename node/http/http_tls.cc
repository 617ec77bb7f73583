#include "node/http/http_tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/log/log.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "transport/security/private_file.h"
#include "transport/security/secret.h"

namespace strata {
namespace {

constexpr size_t kCertificateBytesMax = 1 << 20;
constexpr size_t kChainMax = 16;
constexpr char kSuites12[] = "ECDHE+AESGCM:ECDHE+CHACHA20";

template <auto Fn>
struct FreeWith {
  template <typename T>
  void operator()(T* object) const {
    Fn(object);
  }
};
using Bio = std::unique_ptr<BIO, FreeWith<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, FreeWith<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, FreeWith<EVP_PKEY_free>>;

absl::Status Bad(absl::string_view option, const std::string& path, absl::string_view what) {
  ERR_clear_error();
  return absl::InvalidArgumentError(absl::StrCat(option, " ", path, ": ", what));
}

Bio Reading(const std::string& bytes) {
  return Bio(BIO_new_mem_buf(bytes.data(), static_cast<int>(bytes.size())));
}

absl::Time TimeOf(const ASN1_TIME* time) {
  tm broken = {};
  if (ASN1_TIME_to_tm(time, &broken) != 1) return absl::InfinitePast();
  return absl::FromTM(broken, absl::UTCTimeZone());
}

void WarnOfDates(const X509* certificate, const std::string& path, absl::Time now) {
  const absl::Time from = TimeOf(X509_get0_notBefore(certificate));
  const absl::Time to = TimeOf(X509_get0_notAfter(certificate));
  const auto day = [](absl::Time time) {
    return absl::FormatTime("%Y-%m-%d", time, absl::UTCTimeZone());
  };
  if (now > to) {
    LOG(WARNING) << "--tls-cert " << path << " expired on " << day(to)
                 << "; clients that check it will not connect";
  } else if (now < from) {
    LOG(WARNING) << "--tls-cert " << path << " is not valid before " << day(from)
                 << "; clients that check it will not connect";
  }
}

absl::Status UseCertificates(SSL_CTX* context, const std::string& path, absl::Time now) {
  constexpr char kOption[] = "--tls-cert";
  std::ifstream file(path, std::ios::binary);
  std::string pem(kCertificateBytesMax + 1, '\0');
  file.read(pem.data(), static_cast<std::streamsize>(pem.size()));
  pem.resize(static_cast<size_t>(file.gcount()));
  if (pem.empty()) return Bad(kOption, path, "cannot be read, or is empty");
  if (pem.size() > kCertificateBytesMax) return Bad(kOption, path, "is too large for certificates");
  const Bio bio = Reading(pem);
  const Certificate first(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
  if (first == nullptr) return Bad(kOption, path, "has no certificate as PEM");
  if (SSL_CTX_use_certificate(context, first.get()) != 1) {
    return Bad(kOption, path, "its certificate is too weak, or of a kind that TLS has no use for");
  }
  WarnOfDates(first.get(), path, now);
  for (size_t i = 0; i < kChainMax; ++i) {
    const Certificate next(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
    if (next == nullptr) break;
    if (SSL_CTX_add1_chain_cert(context, next.get()) != 1) {
      return Bad(kOption, path, "a further certificate of it cannot be used");
    }
  }
  // The loop must have ended at the end of the file, not at a broken certificate.
  const unsigned long error = ERR_peek_last_error();
  if (error != 0 && ERR_GET_REASON(error) != PEM_R_NO_START_LINE) {
    return Bad(kOption, path, "a further certificate of it is broken");
  }
  ERR_clear_error();
  return absl::OkStatus();
}

absl::Status UseKey(SSL_CTX* context, const HttpTls::Files& files) {
  constexpr char kOption[] = "--tls-key";
  const absl::StatusOr<Secret> pem = ReadPrivateFile(files.key);
  if (!pem.ok()) {
    return absl::Status(pem.status().code(), absl::StrCat(kOption, ": ", pem.status().message()));
  }
  bool locked = false;
  const auto no_passphrase = [](char*, int, int, void* locked_out) {
    *static_cast<bool*>(locked_out) = true;
    return -1;
  };
  const Key key(
      PEM_read_bio_PrivateKey(Reading(pem->Reveal()).get(), nullptr, no_passphrase, &locked));
  if (locked)
    return Bad(kOption, files.key, "is locked with a passphrase; openssl pkey unlocks it");
  if (key == nullptr) return Bad(kOption, files.key, "has no private key as PEM");
  if (SSL_CTX_use_PrivateKey(context, key.get()) != 1 || SSL_CTX_check_private_key(context) != 1) {
    return Bad(kOption, files.key, absl::StrCat("is not the key of ", files.certificate));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const HttpTls>> HttpTls::Load(const Files& files, absl::Time now) {
  if (files.key.empty()) {
    return absl::InvalidArgumentError("--tls-cert: needs its private key as well (--tls-key FILE)");
  }
  if (files.certificate.empty()) {
    return absl::InvalidArgumentError("--tls-key: needs its certificate as well (--tls-cert FILE)");
  }
  SSL_CTX* context = SSL_CTX_new(TLS_server_method());
  if (context == nullptr) return absl::InternalError("OpenSSL has no TLS");
  ERR_clear_error();
  std::shared_ptr<const HttpTls> tls(new HttpTls(context));  // shared by server and connections
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_cipher_list(context, kSuites12);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  if (auto status = UseCertificates(context, files.certificate, now); !status.ok()) return status;
  if (auto status = UseKey(context, files); !status.ok()) return status;
  return tls;
}

HttpTls::~HttpTls() { SSL_CTX_free(context_); }

ssl_st* HttpTls::NewSession() const { return SSL_new(context_); }

}  // namespace strata
