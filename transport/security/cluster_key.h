// The key of a cluster: 256 random bits, never a passphrase. Whoever has it is a member; everything
// that makes a cluster one is derived from it (cluster_certificates.h).
//
// Derivation, for all that is derived: HKDF with SHA-256 (RFC 5869), extract and expand, with
//
//   IKM   the key's 32 bytes
//   salt  the 22 bytes of ASCII "strata cluster key v1\n" (the last is 0x0a)
//   info  ASCII, without an end, one for each purpose; of no two purposes the same:
//           "cluster id"                      10 bytes: id(), in Crockford's base 32, lower case
//           "certificate authority ed25519"   32 bytes: the private key of the authority
//
// A new purpose takes a new info. Another salt would be another cluster to every node.
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

// How the text of a key begins: people, and programs that look for leaked keys, know it by that.
inline constexpr absl::string_view kClusterKeyPrefix = "strata-key-1-";

// Moved, never copied; wiped when it goes; printed by nothing. Thread-safe but for moves. A key
// that was moved from may only be assigned to or destroyed.
class ClusterKey {
 public:
  // A new one, from the system's random generator. kUnavailable when that gives nothing.
  static absl::StatusOr<ClusterKey> New();

  // Of the text that ToText() made, as a person typed it (secret_text.h). kInvalidArgument says
  // what is wrong with it, never what it was. kInternal: OpenSSL has no HKDF.
  static absl::StatusOr<ClusterKey> FromText(absl::string_view text);

  ClusterKey(ClusterKey&&) noexcept = default;
  ClusterKey& operator=(ClusterKey&&) noexcept = default;
  ~ClusterKey() = default;

  // The key itself, for the person who asked for it and for the key's file.
  Secret ToText() const;

  // 16 characters that tell clusters apart and say nothing of the key: for logs, status, mDNS.
  const std::string& id() const { return id_; }

  // Fills `out` with what the key gives for `info` (see above), a purpose that nobody else has. At
  // most 8160 bytes. kInternal, in OpenSSL's words, when it cannot.
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
