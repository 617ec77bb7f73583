// The payload that a member sends a guest at the end of a pairing (pairing.h), and its sealing. Its
// bytes before sealing:
//
//   32 bytes            the member's node id, lower-case hex digits
//   1 byte, N           length of the name that follows
//   N bytes             the name of the cluster (--cluster)
//   the rest            the key's text (cluster_key.h), kPairingKeyTextBytesMax at most
//
// Not a protobuf message, whose parser leaves copies of its input in memory that is not wiped. Any
// thread; nothing here blocks.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "transport/pairing/pairing.h"
#include "transport/security/cluster_key.h"
#include "transport/security/secret.h"

namespace strata {

// The member that admits the guest.
struct PairingIdentity {
  std::string node_id;  // 32 lower-case hex digits
  std::string name;     // of the node, from its Begin; CheckPairingName()
  std::string cluster;  // its name; CheckPairingName()
};
// kInvalidArgument: a field is not as described above.
absl::Status CheckPairingIdentity(const PairingIdentity& identity);

inline constexpr size_t kPairingKeyTextBytesMax = 128;
inline constexpr size_t kPairingSealedBytesMax =
    32 + 1 + kPairingNameBytesMax + kPairingKeyTextBytesMax + 16;

// `from` without its name, and the key. kInvalidArgument: CheckPairingIdentity().
absl::StatusOr<Secret> PairingPayload(const PairingIdentity& from, const ClusterKey& key);

struct PairingPayloadContent {
  PairingIdentity from;  // without its name
  ClusterKey key;
};
// kInvalidArgument, with the reason and nothing of the key.
absl::StatusOr<PairingPayloadContent> ReadPairingPayload(const Secret& admission);

// REQUIRES: called once for each `keys`; a second message would break the encryption. kInternal,
// with OpenSSL's message, when it fails.
absl::StatusOr<std::string> SealPairing(const PairingKeys& keys, const Secret& plain);
// kUnauthenticated: not sealed with these keys; kInternal: OpenSSL failed.
absl::StatusOr<Secret> UnsealPairing(const PairingKeys& keys, absl::string_view sealed);

}  // namespace strata
