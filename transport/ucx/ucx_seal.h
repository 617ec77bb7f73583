// The keyed checksum that each message of a link over UCX carries, and the secrets it starts from.
// UCX knows no keys and checks no bytes: an attacker on the network could insert frames.
//
// GMAC (AES-128-GCM without anything to encrypt) over the message's kind and bytes, with its number
// as the nonce: several times faster than a keyed hash, which counts at 16 KiB in some
// microseconds. Each direction has a key of its own, derived from the session's with BLAKE3, so
// that no nonce is used twice with a key. Sources: NIST SP 800-38D; the BLAKE3 paper (2021).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

struct evp_cipher_ctx_st;  // OpenSSL's

namespace strata {

inline constexpr size_t kUcxTokenBytes = 32;
inline constexpr size_t kUcxKeyBytes = 32;
inline constexpr size_t kUcxSumBytes = 16;

using UcxSum = std::array<char, kUcxSumBytes>;

// Unpredictable bytes from the system. kUnavailable when it has none.
absl::StatusOr<std::string> UcxSecret(size_t bytes);

// Compares in constant time, wherever the bytes differ.
bool UcxSecretsEqual(absl::string_view a, absl::string_view b);

// One direction of one link. Not thread-safe.
class UcxSeal {
 public:
  enum class Direction { kFromDialler, kFromAcceptor };

  // REQUIRES: `key` has kUcxKeyBytes.
  UcxSeal(absl::string_view key, Direction direction);

  // The checksum of the direction's next message, to send or to compare with. Counts the message.
  // REQUIRES: the boundaries of `parts` follow from `kind` and from the content of the first part.
  UcxSum Next(uint8_t kind, absl::Span<const absl::string_view> parts);

 private:
  struct Free {
    void operator()(evp_cipher_ctx_st* context) const;
  };
  const std::unique_ptr<evp_cipher_ctx_st, Free> context_;  // holds the key
  uint64_t number_ = 0;
};

}  // namespace strata
