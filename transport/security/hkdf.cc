#include "transport/security/hkdf.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <memory>

#include "transport/security/openssl_free.h"
#include "transport/security/openssl_status.h"

namespace strata {
namespace {

OSSL_PARAM Octets(const char* name, const void* data, size_t size) {
  // OpenSSL takes no null, which an empty view may have; it only reads.
  const void* const there = data == nullptr ? "" : data;
  return OSSL_PARAM_construct_octet_string(name, const_cast<void*>(there), size);
}

}  // namespace

absl::Status HkdfSha256(const HkdfInput& input, absl::Span<uint8_t> out) {
  const std::unique_ptr<EVP_KDF, OpensslFree> kdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr));
  if (kdf == nullptr) return OpensslError("no HKDF");
  const std::unique_ptr<EVP_KDF_CTX, OpensslFree> context(EVP_KDF_CTX_new(kdf.get()));
  if (context == nullptr) return OpensslError("no HKDF");
  char digest[] = "SHA256";
  const OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
      Octets(OSSL_KDF_PARAM_KEY, input.secret.data(), input.secret.size()),
      Octets(OSSL_KDF_PARAM_SALT, input.salt.data(), input.salt.size()),
      Octets(OSSL_KDF_PARAM_INFO, input.info.data(), input.info.size()),
      OSSL_PARAM_construct_end()};
  if (EVP_KDF_derive(context.get(), out.data(), out.size(), parameters) != 1) {
    return OpensslError("HKDF");
  }
  return absl::OkStatus();
}

}  // namespace strata
