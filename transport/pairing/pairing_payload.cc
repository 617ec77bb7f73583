#include "transport/pairing/pairing_payload.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>

#include <memory>
#include <utility>

#include "absl/log/check.h"
#include "transport/base/node_id.h"
#include "transport/security/openssl_bytes.h"
#include "transport/security/openssl_status.h"

namespace strata {
namespace {

constexpr size_t kTagBytes = 16;

struct Free {
  void operator()(EVP_CIPHER* cipher) const { EVP_CIPHER_free(cipher); }
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
};
using Cipher = std::unique_ptr<EVP_CIPHER, Free>;
using Context = std::unique_ptr<EVP_CIPHER_CTX, Free>;

// Ready to encrypt or decrypt; null when OpenSSL cannot.
Context Start(const PairingKeys& keys, bool encrypt) {
  CHECK(keys.admit_key != nullptr);
  const Cipher cipher(EVP_CIPHER_fetch(nullptr, "AES-256-GCM", nullptr));
  Context context(cipher == nullptr ? nullptr : EVP_CIPHER_CTX_new());
  // 12 bytes are GCM's default length.
  if (context == nullptr ||
      EVP_CIPHER_get_iv_length(cipher.get()) != static_cast<int>(keys.admit_iv.size()) ||
      EVP_CipherInit_ex2(context.get(), cipher.get(), keys.admit_key->data(),
                         OpensslBytes(keys.admit_iv), encrypt ? 1 : 0, nullptr) != 1) {
    return nullptr;
  }
  return context;
}

absl::Status CheckNodeId(absl::string_view text) {
  if (IsNodeId(text)) return absl::OkStatus();
  return absl::InvalidArgumentError("node id: it must be 32 lower-case hex digits");
}

}  // namespace

absl::Status CheckPairingIdentity(const PairingIdentity& identity) {
  absl::Status status = CheckNodeId(identity.node_id);
  if (status.ok()) status = CheckPairingName("the node's name", identity.name);
  if (status.ok()) status = CheckPairingName("the cluster's name", identity.cluster);
  return status;
}

absl::StatusOr<Secret> PairingPayload(const PairingIdentity& from, const ClusterKey& key) {
  if (absl::Status status = CheckPairingIdentity(from); !status.ok()) return status;
  const Secret text = key.ToText();
  std::string bytes;
  bytes.reserve(kPairingSealedBytesMax);  // growing would leave a copy behind
  bytes.append(from.node_id);
  bytes.push_back(static_cast<char>(from.cluster.size()));
  bytes.append(from.cluster);
  bytes.append(text.Reveal());
  return Secret(std::move(bytes));
}

absl::StatusOr<PairingPayloadContent> ReadPairingPayload(const Secret& admission) {
  absl::string_view rest = admission.Reveal();
  if (rest.size() <= kNodeIdDigits) return absl::InvalidArgumentError("the payload is cut short");
  PairingIdentity from = {.node_id = std::string(rest.substr(0, kNodeIdDigits))};
  const auto cluster_bytes = static_cast<unsigned char>(rest[kNodeIdDigits]);
  rest.remove_prefix(kNodeIdDigits + 1);
  if (rest.size() <= cluster_bytes) return absl::InvalidArgumentError("the payload is cut short");
  from.cluster = std::string(rest.substr(0, cluster_bytes));
  rest.remove_prefix(cluster_bytes);
  absl::Status status = CheckNodeId(from.node_id);
  if (status.ok()) status = CheckPairingName("the cluster's name", from.cluster);
  if (status.ok() && rest.size() > kPairingKeyTextBytesMax) {
    status = absl::InvalidArgumentError("the key is too long to be a cluster's key");
  }
  if (!status.ok()) return status;
  absl::StatusOr<ClusterKey> key = ClusterKey::FromText(rest);
  if (!key.ok()) return key.status();
  return PairingPayloadContent{.from = std::move(from), .key = *std::move(key)};
}

absl::StatusOr<std::string> SealPairing(const PairingKeys& keys, const Secret& plain) {
  const Context context = Start(keys, /*encrypt=*/true);
  const std::string& text = plain.Reveal();
  std::string sealed(text.size() + kTagBytes, '\0');
  int size = 0, rest = 0;
  if (context == nullptr ||
      EVP_EncryptUpdate(context.get(), OpensslBytes(&sealed), &size, OpensslBytes(text),
                        static_cast<int>(text.size())) != 1 ||
      static_cast<size_t>(size) != text.size() ||
      EVP_EncryptFinal_ex(context.get(), OpensslBytes(&sealed) + size, &rest) != 1 || rest != 0 ||
      EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_AEAD_GET_TAG, kTagBytes,
                          OpensslBytes(&sealed) + size) != 1) {
    Wipe(&sealed);
    return OpensslError("AES-256-GCM");
  }
  return sealed;
}

absl::StatusOr<Secret> UnsealPairing(const PairingKeys& keys, absl::string_view sealed) {
  absl::Status wrong = absl::UnauthenticatedError(
      "the sealed key does not come from the machine that began this pairing, or was changed");
  if (sealed.size() < kTagBytes || sealed.size() > kPairingSealedBytesMax) return wrong;
  const Context context = Start(keys, /*encrypt=*/false);
  if (context == nullptr) return OpensslError("AES-256-GCM");
  const size_t plain_bytes = sealed.size() - kTagBytes;
  std::string tag(sealed.substr(plain_bytes));
  std::string plain(plain_bytes, '\0');
  int size = 0, rest = 0;
  const bool ok =
      EVP_DecryptUpdate(context.get(), OpensslBytes(&plain), &size, OpensslBytes(sealed),
                        static_cast<int>(plain_bytes)) == 1 &&
      static_cast<size_t>(size) == plain_bytes &&
      EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_AEAD_SET_TAG, kTagBytes, tag.data()) == 1 &&
      EVP_DecryptFinal_ex(context.get(), OpensslBytes(&plain) + size, &rest) == 1 && rest == 0;
  Secret opened(std::move(plain));  // wiped where it is not returned
  if (!ok) {
    ERR_clear_error();
    return wrong;
  }
  return opened;
}

}  // namespace strata
