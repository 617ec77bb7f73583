#include "transport/pairing/pairing.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "transport/base/printable_text.h"
#include "transport/security/hkdf.h"
#include "transport/security/openssl_bytes.h"
#include "transport/security/openssl_status.h"

namespace strata {
namespace {

constexpr absl::string_view kSalt = "strata pairing v1\n";
constexpr absl::string_view kCommitmentOf = "strata pairing v1 commitment\n";
constexpr absl::string_view kTranscriptOf = "strata pairing v1 transcript\n";
constexpr size_t kCodeBytes = 8;
constexpr uint64_t kCodes = 1'000'000;
constexpr size_t kIvBytes = 12;

struct FreeContext {
  void operator()(EVP_PKEY_CTX* context) const { EVP_PKEY_CTX_free(context); }
};

absl::StatusOr<std::string> Sha256(absl::string_view bytes) {
  std::string hash(kPairingHashBytes, '\0');
  if (EVP_Q_digest(nullptr, "SHA256", nullptr, bytes.data(), bytes.size(), OpensslBytes(&hash),
                   nullptr) != 1) {
    return OpensslError("SHA-256");
  }
  return hash;
}

absl::StatusOr<std::string> HashOf(const PairingTranscript& t) {
  CHECK_EQ(t.member_key.size(), kPairingKeyBytes);
  CHECK_EQ(t.guest_key.size(), kPairingKeyBytes);
  CHECK_EQ(t.member_nonce.size(), kPairingNonceBytes);
  CHECK_EQ(t.guest_nonce.size(), kPairingNonceBytes);
  CHECK_LE(t.member_name.size(), kPairingNameBytesMax);
  const std::string name_size(1, static_cast<char>(t.member_name.size()));
  return Sha256(absl::StrCat(kTranscriptOf, t.member_key, t.guest_key, t.member_nonce,
                             t.guest_nonce, name_size, t.member_name));
}

}  // namespace

void PairingKeyPair::Free::operator()(evp_pkey_st* key) const { EVP_PKEY_free(key); }

PairingKeyPair::PairingKeyPair(Key key, std::string public_key)
    : key_(std::move(key)), public_key_(std::move(public_key)) {}

absl::StatusOr<PairingKeyPair> PairingKeyPair::Of(Key key) {
  std::string public_key(kPairingKeyBytes, '\0');
  size_t size = public_key.size();
  if (key == nullptr ||
      EVP_PKEY_get_raw_public_key(key.get(), OpensslBytes(&public_key), &size) != 1 ||
      size != kPairingKeyBytes) {
    return OpensslError("a key of X25519");
  }
  return PairingKeyPair(std::move(key), std::move(public_key));
}

absl::StatusOr<PairingKeyPair> PairingKeyPair::New() {
  return Of(Key(EVP_PKEY_Q_keygen(nullptr, nullptr, "X25519")));
}

absl::StatusOr<PairingKeyPair> PairingKeyPair::Of(const SecretBytes& private_key) {
  return Of(Key(EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, nullptr, private_key->data(),
                                             private_key->size())));
}

absl::StatusOr<SecretBytes> PairingKeyPair::SharedWith(absl::string_view other) const {
  CHECK(key_ != nullptr);
  if (absl::Status status = CheckPairingBytes("public key", other, kPairingKeyBytes);
      !status.ok()) {
    return status;
  }
  const Key theirs(
      EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, nullptr, OpensslBytes(other), other.size()));
  const std::unique_ptr<EVP_PKEY_CTX, FreeContext> context(
      EVP_PKEY_CTX_new_from_pkey(nullptr, key_.get(), nullptr));
  if (theirs == nullptr || context == nullptr || EVP_PKEY_derive_init(context.get()) != 1 ||
      EVP_PKEY_derive_set_peer(context.get(), theirs.get()) != 1) {
    return OpensslError("X25519");
  }
  SecretBytes shared(new std::array<uint8_t, kSecretBytes>{});
  static_assert(kSecretBytes == kPairingKeyBytes);
  size_t size = shared->size();
  // OpenSSL refuses all-zero secrets; another library might not.
  const bool derived = EVP_PKEY_derive(context.get(), shared->data(), &size) == 1;
  constexpr std::array<uint8_t, kSecretBytes> kZeros{};
  if (!derived || size != kSecretBytes ||
      CRYPTO_memcmp(shared->data(), kZeros.data(), kSecretBytes) == 0) {
    ERR_clear_error();
    return absl::InvalidArgumentError("this public key is invalid: it gives no shared secret");
  }
  return shared;
}

absl::StatusOr<std::string> NewPairingBytes(size_t size) {
  std::string bytes(size, '\0');
  if (RAND_bytes(OpensslBytes(&bytes), static_cast<int>(size)) != 1) {
    ERR_clear_error();
    return absl::UnavailableError("the system gives no random bytes");
  }
  return bytes;
}

absl::StatusOr<std::string> PairingCommitment(const PairingTranscript& transcript) {
  CHECK_EQ(transcript.member_key.size(), kPairingKeyBytes);
  CHECK_EQ(transcript.guest_key.size(), kPairingKeyBytes);
  CHECK_EQ(transcript.guest_nonce.size(), kPairingNonceBytes);
  return Sha256(absl::StrCat(kCommitmentOf, transcript.member_key, transcript.guest_key,
                             transcript.guest_nonce));
}

absl::StatusOr<std::string> PairingCode(const PairingTranscript& transcript) {
  const absl::StatusOr<std::string> hash = HashOf(transcript);
  if (!hash.ok()) return hash.status();
  std::array<uint8_t, kCodeBytes> bytes;
  if (absl::Status status = HkdfSha256({.secret = absl::MakeSpan(OpensslBytes(*hash), hash->size()),
                                        .salt = kSalt,
                                        .info = "code"},
                                       absl::MakeSpan(bytes));
      !status.ok()) {
    return status;
  }
  uint64_t number = 0;
  for (const uint8_t byte : bytes) number = number << 8 | byte;
  number %= kCodes;
  return absl::StrFormat("%03d %03d", number / 1000, number % 1000);
}

absl::StatusOr<PairingKeys> DerivePairingKeys(const SecretBytes& shared,
                                              const PairingTranscript& transcript) {
  CHECK(shared != nullptr);
  const absl::StatusOr<std::string> hash = HashOf(transcript);
  if (!hash.ok()) return hash.status();
  PairingKeys keys = {.admit_key = SecretBytes(new std::array<uint8_t, kSecretBytes>{}),
                      .admit_iv = std::string(kIvBytes, '\0'),
                      .proof = std::string(kPairingHashBytes, '\0')};
  const auto derive = [&](absl::string_view what, absl::Span<uint8_t> out) {
    const std::string info = absl::StrCat(what, *hash);
    return HkdfSha256({.secret = *shared, .salt = kSalt, .info = info}, out);
  };
  absl::Status status = derive("admit key", absl::MakeSpan(*keys.admit_key));
  if (status.ok())
    status = derive("admit iv", absl::MakeSpan(OpensslBytes(&keys.admit_iv), keys.admit_iv.size()));
  if (status.ok())
    status = derive("admitted", absl::MakeSpan(OpensslBytes(&keys.proof), keys.proof.size()));
  if (!status.ok()) return status;
  return keys;
}

bool SamePairingBytes(absl::string_view a, absl::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

absl::Status CheckPairingBytes(absl::string_view what, absl::string_view bytes, size_t size) {
  if (bytes.size() == size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": it must have ", size, " bytes, but has ", bytes.size()));
}

absl::Status CheckPairingName(absl::string_view what, absl::string_view name) {
  if (!name.empty() && name.size() <= kPairingNameBytesMax && IsPrintable(name)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": it must be 1 to ", kPairingNameBytesMax, " bytes of printable text"));
}

}  // namespace strata
