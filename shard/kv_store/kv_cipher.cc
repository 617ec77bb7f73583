#include "shard/kv_store/kv_cipher.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <sys/random.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "transport/security/hkdf.h"
#include "transport/security/openssl_status.h"

namespace strata {
namespace {

constexpr char kPurpose[] = "strata 2026-11 kv blocks of ";
constexpr char kScopePurpose[] = "strata 2026-11 kv blocks for ";
constexpr int kNonceBytes = 12;
constexpr int kTagBytes = 16;
static_assert(kNonceBytes + kTagBytes == kKvSealBytes);

const uint8_t* Bytes(absl::string_view text) {
  return reinterpret_cast<const uint8_t*>(text.data());
}
uint8_t* Bytes(char* text) { return reinterpret_cast<uint8_t*>(text); }

// Of what HKDF derives: first the folder's name, then the keys of names and of blocks.
constexpr size_t kFolderBytes = 16, kCipherKeyBytes = 32;

absl::Status Derive(const Secret& key, const std::string& info, absl::Span<uint8_t> out) {
  const absl::Span<const uint8_t> secret(Bytes(key.Reveal()), key.Reveal().size());
  return HkdfSha256({.secret = secret, .salt = {}, .info = info}, out);
}

// One block of AES, whole, so that nothing stays in the context. A null context is refused.
KvName Permute(evp_cipher_ctx_st* context, const KvName& name) {
  KvName out = {};
  int n = 0;
  EVP_CipherUpdate(context, Bytes(out.data()), &n, Bytes({name.data(), name.size()}),
                   static_cast<int>(name.size()));
  return out;
}

// Runs `bytes` through a context that has a nonce, after the name. Returns false when it fails.
bool Update(evp_cipher_ctx_st* context, const KvName& name, absl::string_view bytes, char* out) {
  int n = 0;
  return EVP_CipherUpdate(context, nullptr, &n, Bytes({name.data(), name.size()}),
                          static_cast<int>(name.size())) == 1 &&
         EVP_CipherUpdate(context, Bytes(out), &n, Bytes(bytes), static_cast<int>(bytes.size())) ==
             1;
}

}  // namespace

absl::StatusOr<KvCipher> KvCipher::Make(const Secret& key, absl::string_view identity) {
  std::array<uint8_t, kFolderBytes + 2 * kCipherKeyBytes> derived;
  if (auto s = Derive(key, absl::StrCat(kPurpose, identity), absl::MakeSpan(derived)); !s.ok()) {
    return s;
  }
  const uint8_t* const names_key = derived.data() + kFolderBytes;
  const uint8_t* const blocks_key = names_key + kCipherKeyBytes;

  KvCipher cipher;
  cipher.blocks_key_ =
      Secret(std::string(reinterpret_cast<const char*>(blocks_key), kCipherKeyBytes));
  cipher.folder_ =
      absl::BytesToHexString({reinterpret_cast<const char*>(derived.data()), kFolderBytes});
  for (Context* context : {&cipher.to_file_, &cipher.from_file_, &cipher.seal_, &cipher.open_}) {
    context->reset(EVP_CIPHER_CTX_new());
    if (*context == nullptr) return OpensslError("no cipher");
  }
  constexpr int kEncrypt = 1, kDecrypt = 0;
  const bool ok = EVP_CipherInit_ex2(cipher.to_file_.get(), EVP_aes_256_ecb(), names_key, nullptr,
                                     kEncrypt, nullptr) == 1 &&
                  EVP_CipherInit_ex2(cipher.from_file_.get(), EVP_aes_256_ecb(), names_key, nullptr,
                                     kDecrypt, nullptr) == 1 &&
                  EVP_CIPHER_CTX_set_padding(cipher.to_file_.get(), 0) == 1 &&
                  EVP_CIPHER_CTX_set_padding(cipher.from_file_.get(), 0) == 1 &&
                  EVP_CipherInit_ex2(cipher.seal_.get(), EVP_aes_256_gcm(), nullptr, nullptr,
                                     kEncrypt, nullptr) == 1 &&
                  EVP_CipherInit_ex2(cipher.open_.get(), EVP_aes_256_gcm(), nullptr, nullptr,
                                     kDecrypt, nullptr) == 1;
  OPENSSL_cleanse(derived.data(), derived.size());
  if (!ok) return OpensslError("AES-256");
  return cipher;
}

absl::Status KvCipher::KeyOf(absl::string_view scope, absl::Span<uint8_t> key) const {
  return Derive(blocks_key_, absl::StrCat(kScopePurpose, scope), key);
}

std::string KvCipher::FileOf(const KvName& name) const {
  const KvName file = Permute(to_file_.get(), name);
  return absl::BytesToHexString({file.data(), file.size()});
}

std::optional<KvName> KvCipher::NameOf(absl::string_view file) const {
  std::string bytes;
  if (file.size() != 2 * kKvNameBytes || !absl::HexStringToBytes(file, &bytes)) return std::nullopt;
  return Permute(from_file_.get(), SplitKvNames(bytes).front());
}

absl::StatusOr<std::string> KvCipher::Seal(const BlockId& id, absl::string_view bytes) const {
  std::string sealed(kKvSealBytes + bytes.size(), '\0');
  if (getentropy(sealed.data(), kNonceBytes) != 0) {
    return absl::UnavailableError("the system gives no random bytes");
  }
  std::array<uint8_t, kCipherKeyBytes> key;
  if (auto s = KeyOf(id.scope, absl::MakeSpan(key)); !s.ok()) return s;
  int n = 0;
  const bool ok =
      EVP_CipherInit_ex2(seal_.get(), nullptr, key.data(), Bytes(sealed.data()), 1, nullptr) == 1 &&
      Update(seal_.get(), id.name, bytes, sealed.data() + kKvSealBytes) &&
      EVP_CipherFinal_ex(seal_.get(), Bytes(sealed.data()), &n) == 1 &&
      EVP_CIPHER_CTX_ctrl(seal_.get(), EVP_CTRL_AEAD_GET_TAG, kTagBytes,
                          sealed.data() + kNonceBytes) == 1;
  OPENSSL_cleanse(key.data(), key.size());
  if (!ok) return OpensslError("AES-256-GCM");
  return sealed;
}

absl::StatusOr<std::string> KvCipher::Open(const BlockId& id, absl::string_view sealed) const {
  if (sealed.size() < kKvSealBytes) return absl::DataLossError("a KV block is cut short");
  std::string bytes(sealed.size() - kKvSealBytes, '\0');
  std::string tag(sealed.substr(kNonceBytes, kTagBytes));
  std::array<uint8_t, kCipherKeyBytes> key;
  if (auto s = KeyOf(id.scope, absl::MakeSpan(key)); !s.ok()) return s;
  int n = 0;
  const bool ok =
      EVP_CipherInit_ex2(open_.get(), nullptr, key.data(), Bytes(sealed), 0, nullptr) == 1 &&
      EVP_CIPHER_CTX_ctrl(open_.get(), EVP_CTRL_AEAD_SET_TAG, kTagBytes, tag.data()) == 1 &&
      Update(open_.get(), id.name, sealed.substr(kKvSealBytes), bytes.data()) &&
      EVP_CipherFinal_ex(open_.get(), Bytes(bytes.data()), &n) == 1;
  OPENSSL_cleanse(key.data(), key.size());
  if (!ok) return absl::DataLossError("a KV block is damaged");
  return bytes;
}

}  // namespace strata
