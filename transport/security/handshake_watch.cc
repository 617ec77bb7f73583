#include "transport/security/handshake_watch.h"

#include <openssl/crypto.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "transport/base/clock.h"

namespace strata {
namespace {

// The extra data of one SSL: used by one thread at a time, and deleted with the SSL.
struct Handshake {
  std::string source;
  std::shared_ptr<HandshakeObserver> observer;
  int64_t began_us = Clock::Real()->NowUs();
  bool begun = false;
  bool ended = false;
};

// Set by HandshakeSource, on its thread.
thread_local const Handshake* beginning = nullptr;

int handshake_index = -1;

void Fail(Handshake* handshake, absl::string_view reason) {
  handshake->ended = true;
  handshake->observer->OnHandshakeFailed(handshake->source, reason);
}

// RFC 8446, 6.
constexpr uint8_t kCertificateRequired = 116;

std::string WhyWeRefuse(const SSL* ssl, uint8_t alert) {
  switch (const long result = SSL_get_verify_result(ssl)) {
    case X509_V_OK:
      break;
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return "its certificate has expired";
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return "its certificate is not valid yet: do the clocks differ?";
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_CERT_UNTRUSTED:
      return "its certificate is not of this cluster";
    default:
      return absl::StrCat("its certificate: ", X509_verify_cert_error_string(result));
  }
  if (alert == kCertificateRequired) return "it shows no certificate";
  // There are no suites of TLS 1.2 (tls_credentials.h).
  if (alert == SSL_AD_PROTOCOL_VERSION || alert == SSL_AD_HANDSHAKE_FAILURE) {
    return "it does not speak TLS 1.3, or has no suite of it in common";
  }
  return absl::StrCat("its handshake fails: ", SSL_alert_desc_string_long(alert));
}

void OnMessage(int write_p, int /*version*/, int type, const void* bytes, size_t size, SSL* ssl,
               void* /*arg*/) {
  auto* const handshake = static_cast<Handshake*>(SSL_get_ex_data(ssl, handshake_index));
  if (handshake == nullptr || handshake->ended) return;
  const auto* const message = static_cast<const uint8_t*>(bytes);
  if (SSL_is_init_finished(ssl) == 1) {
    handshake->ended = true;
    handshake->observer->OnHandshake(handshake->source);
  } else if (type == SSL3_RT_HEADER && write_p == 0 && !handshake->begun) {
    handshake->begun = true;
    // OpenSSL sends no alert for this.
    if (size > 0 && message[0] != SSL3_RT_HANDSHAKE && message[0] != SSL3_RT_ALERT) {
      Fail(handshake, "it does not speak TLS: plain text, or another protocol");
    }
  } else if (type == SSL3_RT_ALERT && size == 2 && message[0] == SSL3_AL_FATAL) {
    Fail(handshake, write_p == 1 ? WhyWeRefuse(ssl, message[1])
                                 : absl::StrCat("it refuses this node: ",
                                                SSL_alert_desc_string_long(message[1])));
  }
}

void NewContext(void* context, void*, CRYPTO_EX_DATA*, int, long, void*) {
  SSL_CTX_set_msg_callback(static_cast<SSL_CTX*>(context), OnMessage);
}

void NewConnection(void*, void*, CRYPTO_EX_DATA* data, int index, long, void*) {
  if (beginning == nullptr) return;
  auto* const handshake = new Handshake(*beginning);  // EndConnection() deletes it
  if (CRYPTO_set_ex_data(data, index, handshake) != 1) delete handshake;
}

void EndConnection(void*, void* data, CRYPTO_EX_DATA*, int, long, void*) {
  const std::unique_ptr<const Handshake> handshake(static_cast<const Handshake*>(data));
  if (handshake == nullptr || handshake->ended) return;
  handshake->observer->OnHandshakeAbandoned(handshake->source, handshake->begun,
                                            (Clock::Real()->NowUs() - handshake->began_us) / 1000);
}

}  // namespace

void WatchHandshakes() {
  [[maybe_unused]] static const bool watched = [] {
    handshake_index = CRYPTO_get_ex_new_index(CRYPTO_EX_INDEX_SSL, 0, nullptr, NewConnection,
                                              nullptr, EndConnection);
    CHECK_GE(handshake_index, 0);
    CHECK_GE(
        CRYPTO_get_ex_new_index(CRYPTO_EX_INDEX_SSL_CTX, 0, nullptr, NewContext, nullptr, nullptr),
        0);
    return true;
  }();
}

HandshakeSource::HandshakeSource(std::string source, std::shared_ptr<HandshakeObserver> observer) {
  CHECK(beginning == nullptr);
  beginning = new Handshake{.source = std::move(source), .observer = std::move(observer)};
}

HandshakeSource::~HandshakeSource() { delete std::exchange(beginning, nullptr); }

}  // namespace strata
