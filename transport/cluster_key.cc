#include "transport/cluster_key.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <array>
#include <memory>

#include "absl/log/check.h"
#include "transport/openssl_status.h"

namespace strata {
namespace {

constexpr SecretKind kKind = {.name = "cluster key",
                              .prefix = kClusterKeyPrefix,
                              .example = "'strata key show' on another node prints it"};

constexpr absl::string_view kSalt = "strata cluster key v1\n";
constexpr absl::string_view kIdInfo = "cluster id";
constexpr size_t kIdBytes = 10;

struct Free {
  void operator()(EVP_KDF* kdf) const { EVP_KDF_free(kdf); }
  void operator()(EVP_KDF_CTX* context) const { EVP_KDF_CTX_free(context); }
};

OSSL_PARAM Octets(const char* name, const void* data, size_t size) {
  return OSSL_PARAM_construct_octet_string(name, const_cast<void*>(data), size);  // read only
}

}  // namespace

absl::StatusOr<ClusterKey> ClusterKey::Of(SecretBytes bytes) {
  ClusterKey key(std::move(bytes));
  std::array<uint8_t, kIdBytes> id;
  if (absl::Status status = key.Derive(kIdInfo, absl::MakeSpan(id)); !status.ok()) return status;
  key.id_ = Base32(id);
  return key;
}

absl::StatusOr<ClusterKey> ClusterKey::New() {
  absl::StatusOr<SecretBytes> bytes = NewSecretBytes();
  if (!bytes.ok()) return bytes.status();
  return Of(*std::move(bytes));
}

absl::StatusOr<ClusterKey> ClusterKey::FromText(absl::string_view text) {
  absl::StatusOr<SecretBytes> bytes = SecretFromText(kKind, text);
  if (!bytes.ok()) return bytes.status();
  return Of(*std::move(bytes));
}

Secret ClusterKey::ToText() const { return SecretToText(kKind, bytes_); }

absl::Status ClusterKey::Derive(absl::string_view info, absl::Span<uint8_t> out) const {
  CHECK(bytes_ != nullptr);
  const std::unique_ptr<EVP_KDF, Free> kdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr));
  if (kdf == nullptr) return OpensslError("no HKDF");
  const std::unique_ptr<EVP_KDF_CTX, Free> context(EVP_KDF_CTX_new(kdf.get()));
  if (context == nullptr) return OpensslError("no HKDF");
  char digest[] = "SHA256";
  const OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
      Octets(OSSL_KDF_PARAM_KEY, bytes_->data(), bytes_->size()),
      Octets(OSSL_KDF_PARAM_SALT, kSalt.data(), kSalt.size()),
      Octets(OSSL_KDF_PARAM_INFO, info.data(), info.size()), OSSL_PARAM_construct_end()};
  if (EVP_KDF_derive(context.get(), out.data(), out.size(), parameters) != 1) {
    return OpensslError("HKDF");
  }
  return absl::OkStatus();
}

}  // namespace strata
