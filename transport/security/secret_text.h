// 256 secret bits as text that survives being read aloud and typed:
//
//   strata-key-1-000g-40r4-0m30-e209-185g-r38e-1w81-24gk-2gah-c5rr-34d1-p70x-3rfh-2j9b
//   prefix       |  32 bytes, then the first 3 of
//                |  SHA-256("strata secret checksum" | prefix | the 32 bytes)
//
// In Crockford's base 32 (https://www.crockford.com/base32.html), first byte's high bits first: no
// i, l, o or u; when reading, i and l are 1 and o is 0, and neither case, spaces nor hyphens count.
// 35 bytes are 56 symbols without a spare bit. The checksum distinguishes a typo (one in 2^24 goes
// unnoticed) from a well-formed secret that is not the right one. Any thread; nothing here blocks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "transport/security/secret.h"

namespace strata {

inline constexpr size_t kSecretBytes = 32;

// Wiped on destruction.
struct WipeSecretBytes {
  void operator()(std::array<uint8_t, kSecretBytes>* bytes) const;
};
using SecretBytes = std::unique_ptr<std::array<uint8_t, kSecretBytes>, WipeSecretBytes>;

// From the system's random generator, by OpenSSL. kUnavailable when that fails.
absl::StatusOr<SecretBytes> NewSecretBytes();

// The name of a kind of secret and its beginning; the strings outlive every call.
struct SecretKind {
  absl::string_view name;     // in errors: "cluster key"
  absl::string_view prefix;   // "strata-key-1-", lower case; the number is the form's version
  absl::string_view example;  // in errors: where to find one, "strata key show prints it"
};

// `bytes` in the same alphabet, without groups or checksum; for values that are not secret. Spare
// bits at the end are 0.
std::string Base32(absl::Span<const uint8_t> bytes);

// REQUIRES: `bytes` is not null.
Secret SecretToText(const SecretKind& kind, const SecretBytes& bytes);

// kInvalidArgument, with the error and its place but never the text, when `text` is not of this
// kind: another prefix, a character too many or too few, an unused one, a typo.
absl::StatusOr<SecretBytes> SecretFromText(const SecretKind& kind, absl::string_view text);

}  // namespace strata
