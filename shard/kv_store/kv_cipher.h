// Encrypts the KV blocks of one store: what a model has read is as secret as the text itself. Their
// bytes by AES-256-GCM (NIST SP 800-38D) with a random nonce and the block's name as further data,
// so that a damaged block, or one under another name, is not opened. Their names, from which a text
// could be guessed, as one block of AES-256 each: files are found by them, and names are read from
// a folder. The keys are derived (HKDF) from the node's key and the store's identity, so that no
// store opens another one's blocks; that of a block from its scope, too, which is on no disk: once
// nobody comes with the scope any more, nobody can read the block. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "shard/kv_store/kv_block.h"
#include "transport/security/openssl_free.h"
#include "transport/security/secret.h"

struct evp_cipher_ctx_st;  // OpenSSL's

namespace strata {

// That a sealed block has more than its bytes.
inline constexpr size_t kKvSealBytes = 28;

class KvCipher {
 public:
  // `key` is any secret; `identity` says what the blocks are of. kInternal, with OpenSSL's message,
  // when it fails.
  static absl::StatusOr<KvCipher> Make(const Secret& key, absl::string_view identity);

  // A name for the store's folder; tells nothing of the identity.
  const std::string& folder() const { return folder_; }
  std::string FileOf(const KvName& name) const;
  // nullopt: not the name of a block's file.
  std::optional<KvName> NameOf(absl::string_view file) const;

  struct BlockId {
    KvName name;
    absl::string_view scope;
  };
  // kUnavailable: the system has no random bytes.
  absl::StatusOr<std::string> Seal(const BlockId& id, absl::string_view bytes) const;
  // kDataLoss: they are not what Seal() returned for this name and scope.
  absl::StatusOr<std::string> Open(const BlockId& id, absl::string_view sealed) const;

 private:
  using Context = std::unique_ptr<evp_cipher_ctx_st, OpensslFree>;

  KvCipher() = default;
  absl::Status KeyOf(absl::string_view scope, absl::Span<uint8_t> key) const;

  std::string folder_;
  Context to_file_, from_file_;  // names
  Secret blocks_key_;            // that the keys of scopes are derived from
  Context seal_, open_;          // blocks
};

}  // namespace strata
