// The key of a cluster: 256 random bits, never a passphrase. Every machine that has it is a member;
// the cluster's id and authority are derived from it (cluster_certificates.h).
//
// Every derivation: HKDF with SHA-256 (RFC 5869), extract and expand, with
//
//   IKM   the key's 32 bytes
//   salt  the 22 bytes of ASCII "strata cluster key v1\n" (the last is 0x0a)
//   info  ASCII, without a terminator, a different one for each purpose:
//           "cluster id"                      10 bytes: id(), in Crockford's base 32, lower case
//           "certificate authority ed25519"   32 bytes: the private key of the authority
//
// A new purpose takes a new info. Another salt would give every node another cluster.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "transport/security/secret.h"
#include "transport/security/secret_text.h"

namespace strata {

// The beginning of a key's text, by which people, and programs that search for leaked keys,
// recognize it.
inline constexpr absl::string_view kClusterKeyPrefix = "strata-key-1-";

// Moved, never copied; wiped on destruction; cannot be printed. Thread-safe except moves. A key
// that was moved from may only be assigned to or destroyed.
class ClusterKey {
 public:
  // A new key, from the system's random generator. kUnavailable when that fails.
  static absl::StatusOr<ClusterKey> New();

  // Reads the text of ToText(), as typed by a person (secret_text.h). kInvalidArgument names the
  // error, never the text. kInternal: OpenSSL has no HKDF.
  static absl::StatusOr<ClusterKey> FromText(absl::string_view text);

  ClusterKey(ClusterKey&&) noexcept = default;
  ClusterKey& operator=(ClusterKey&&) noexcept = default;
  ~ClusterKey() = default;

  // The key itself, for a person who wants to see it and for the key's file.
  Secret ToText() const;

  // 16 characters that identify the cluster and reveal nothing of the key: for logs, status, mDNS.
  const std::string& id() const { return id_; }

  // Fills `out` with the derivation for `info` (see above), a purpose of the caller alone. At most
  // 8160 bytes. kInternal, with OpenSSL's message, when it fails.
  absl::Status Derive(absl::string_view info, absl::Span<uint8_t> out) const;

  template <typename Sink>
  friend void AbslStringify(Sink&, const ClusterKey&) = delete;
  friend std::ostream& operator<<(std::ostream&, const ClusterKey&) = delete;

 private:
  explicit ClusterKey(SecretBytes bytes) : bytes_(std::move(bytes)) {}
  static absl::StatusOr<ClusterKey> Of(SecretBytes bytes);

  SecretBytes bytes_;
  std::string id_;
};

}  // namespace strata
