#include "transport/ucx/ucx_seal.h"

#include <blake3.h>
#include <openssl/evp.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>

#include "absl/log/check.h"

namespace strata {
namespace {

constexpr size_t kEntropyBytesMax = 256;  // the limit of one getentropy() call

constexpr size_t kCipherKeyBytes = 16;
constexpr size_t kNonceBytes = 12;

constexpr char kFromDialler[] = "strata 2026-11 link over ucx, from its dialler";
constexpr char kFromAcceptor[] = "strata 2026-11 link over ucx, from its acceptor";

}  // namespace

absl::StatusOr<std::string> UcxSecret(size_t bytes) {
  CHECK_LE(bytes, kEntropyBytesMax);
  std::string secret(bytes, '\0');
  if (getentropy(secret.data(), secret.size()) != 0) {
    return absl::UnavailableError("the system gives no random bytes");
  }
  return secret;
}

bool UcxSecretsEqual(absl::string_view a, absl::string_view b) {
  if (a.size() != b.size()) return false;
  volatile unsigned char differ = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    differ = static_cast<unsigned char>(
        differ | (static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i])));
  }
  return differ == 0;
}

void UcxSeal::Free::operator()(evp_cipher_ctx_st* context) const { EVP_CIPHER_CTX_free(context); }

UcxSeal::UcxSeal(absl::string_view key, Direction direction) : context_(EVP_CIPHER_CTX_new()) {
  CHECK_EQ(key.size(), kUcxKeyBytes);
  blake3_hasher hasher;
  blake3_hasher_init_derive_key(
      &hasher, direction == Direction::kFromDialler ? kFromDialler : kFromAcceptor);
  blake3_hasher_update(&hasher, key.data(), key.size());
  std::array<uint8_t, kCipherKeyBytes> derived;
  blake3_hasher_finalize(&hasher, derived.data(), derived.size());
  CHECK(context_ != nullptr);
  CHECK_EQ(EVP_EncryptInit_ex(context_.get(), EVP_aes_128_gcm(), nullptr, derived.data(), nullptr),
           1);
}

UcxSum UcxSeal::Next(uint8_t kind, absl::Span<const absl::string_view> parts) {
  std::array<uint8_t, kNonceBytes> nonce{};
  for (size_t i = 0; i < 8; ++i) nonce[i] = static_cast<uint8_t>(number_ >> (8 * i));
  ++number_;
  bool ok = EVP_EncryptInit_ex(context_.get(), nullptr, nullptr, nullptr, nonce.data()) == 1;
  const auto add = [&](const void* data, size_t size) {
    int ignored;
    // A message is at most a frame, so its sizes fit.
    ok = ok && EVP_EncryptUpdate(context_.get(), nullptr, &ignored,
                                 static_cast<const uint8_t*>(data), static_cast<int>(size)) == 1;
  };
  add(&kind, sizeof kind);
  for (const absl::string_view part : parts) {
    if (!part.empty()) add(part.data(), part.size());
  }
  std::array<uint8_t, kUcxSumBytes> out;
  int ignored;
  ok = ok && EVP_EncryptFinal_ex(context_.get(), out.data(), &ignored) == 1 &&
       EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_GCM_GET_TAG, out.size(), out.data()) == 1;
  CHECK(ok) << "OpenSSL cannot compute a GMAC";
  UcxSum sum;
  std::copy(out.begin(), out.end(), sum.begin());
  return sum;
}

}  // namespace strata
