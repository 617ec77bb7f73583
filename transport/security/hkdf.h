// HKDF with SHA-256 (RFC 5869), extract and expand: keys from a secret, one for each purpose. Any
// thread; nothing here blocks.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace strata {

struct HkdfInput {
  absl::Span<const uint8_t> secret;  // IKM
  absl::string_view salt;            // empty: 32 zero bytes
  absl::string_view info;
};

// Fills `out`, at most 8160 bytes. kInternal, with OpenSSL's message, when it fails.
absl::Status HkdfSha256(const HkdfInput& input, absl::Span<uint8_t> out);

}  // namespace strata
