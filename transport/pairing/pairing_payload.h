// What a member gives a guest at the end of a pairing (pairing.h), and how it is sealed. As bytes,
// before they are:
//
//   32 bytes            the member's node id, lower-case hex digits
//   1 byte, N           length of the name that follows
//   N bytes             the name of the cluster (--cluster)
//   the rest            the key's text (cluster_key.h), kPairingKeyTextBytesMax at most
//
// Not a protobuf message, whose parser leaves pieces of what it reads where nobody wipes them. Any
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

// Who admits.
struct PairingIdentity {
  std::string node_id;  // 32 lower-case hex digits
  std::string name;     // of the node, as it said when it began; CheckPairingName()
  std::string cluster;  // its name; CheckPairingName()
};
// kInvalidArgument: a field is not as said above.
absl::Status CheckPairingIdentity(const PairingIdentity& identity);

inline constexpr size_t kPairingKeyTextBytesMax = 128;
inline constexpr size_t kPairingSealedBytesMax =
    32 + 1 + kPairingNameBytesMax + kPairingKeyTextBytesMax + 16;

// `from` without its name, and the key. kInvalidArgument: CheckPairingIdentity().
absl::StatusOr<Secret> PairingPayload(const PairingIdentity& from, const ClusterKey& key);

struct OpenedPairingPayload {
  PairingIdentity from;  // without its name
  ClusterKey key;
};
// kInvalidArgument, saying what is wrong and nothing of the key.
absl::StatusOr<OpenedPairingPayload> ReadPairingPayload(const Secret& admission);

// Once for each `keys`, or the secret is one no more. kInternal, in OpenSSL's words, when it
// cannot.
absl::StatusOr<std::string> SealPairing(const PairingKeys& keys, const Secret& plain);
// kUnauthenticated: other keys sealed that, or nothing did; kInternal: OpenSSL cannot.
absl::StatusOr<Secret> UnsealPairing(const PairingKeys& keys, absl::string_view sealed);

}  // namespace strata
