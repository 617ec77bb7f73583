// Pairing: gives the cluster's key to a machine without it, over an untrusted network, after a
// person has compared six digits on two screens.
//
// The guest (pairing_guest.h) has no key and listens; the member (pairing_member.h) has it and
// dials, because members never listen to unknown machines. Their messages (proto/pairing.proto), in
// plain gRPC (pairing_service.h):
//
//   member                                   guest
//   Begin       its public key, its name ─▶
//                                         ◀─ its public key, the commitment to its nonce
//   Disclose    its nonce ─▶
//                                         ◀─ its nonce, which the member checks by the commitment
//               both show the code; the person compares, and confirms at the member
//   Admit       the cluster's key, sealed ─▶
//                                         ◀─ a proof that the guest accepted it
//
// This is the numeric comparison of Bluetooth (Core Specification 5.4, vol. 2 part H, 7.2.1) and
// the short authentication string of ZRTP (RFC 6189, 4.4.1 and 7); S. Vaudenay, "Secure
// communications over insecure channels based on short authenticated strings" (CRYPTO 2005), proves
// such a protocol. An attacker in the middle has other keys towards each side, so the sides show
// codes of different transcripts. The guest commits to its nonce before it sees the member's, and
// the member discloses its own before it sees the guest's: neither side, nor an attacker between
// them, can search for a nonce whose code matches. A try succeeds once in 10^6, and each needs a
// person who compares. A guest shows at most kPairingCodesMax codes in kPairingCodesUs: else an
// attacker, while a member waits for its person, could have the guest show code after code until
// one matches.
//
// Limit: the guest trusts the first member that admits it, since no person confirms there (F.
// Stajano, R. Anderson, "The Resurrecting Duckling", 1999). An attacker on the network could make
// it part of another cluster, though never get this cluster's key. It shows who admitted it.
//
// Derivation. "|" joins bytes; words in quotes are ASCII without a terminator, \n is 0x0a; H is
// SHA-256; HKDF is that of hkdf.h, extract and expand.
//
//   public keys  32 bytes each, X25519 (RFC 7748), as they were sent
//   nonces       32 bytes each, from the system's random generator
//   commitment   H("strata pairing v1 commitment\n" | member's key | guest's key | guest's nonce)
//   transcript   H("strata pairing v1 transcript\n" | member's key | guest's key |
//                  member's nonce | guest's nonce | length of the member's name, 1 byte | the name)
//   code         HKDF(IKM the transcript, salt "strata pairing v1\n", info "code"), 8 bytes, as a
//                number with the first byte highest, modulo 10^6; six digits, shown "012 345"
//   secret       X25519(own private key, other's public key), 32 bytes; refused when all are 0
//                (RFC 7748, 6.1)
//   admit key    HKDF(IKM the secret, salt "strata pairing v1\n", info "admit key" | transcript),
//                32 bytes
//   admit IV     the same with info "admit iv" | transcript, 12 bytes
//   proof        the same with info "admitted" | transcript, 32 bytes
//   sealed       AES-256-GCM (NIST SP 800-38D) of the payload (pairing_payload.h) with admit
//                key and IV, once in a pairing; no additional data; the tag, 16 bytes, at the end
//
// Keys and nonces are used for one pairing only. Any thread; nothing here blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "transport/security/secret.h"
#include "transport/security/secret_text.h"

struct evp_pkey_st;

namespace strata {

// Raised by any change of the above; both sides must have the same.
inline constexpr uint32_t kPairingVersion = 1;

inline constexpr size_t kPairingKeyBytes = 32;
inline constexpr size_t kPairingNonceBytes = 32;
inline constexpr size_t kPairingHashBytes = 32;  // commitment, transcript, proof
inline constexpr size_t kPairingIdBytes = 16;
inline constexpr size_t kPairingNameBytesMax = 64;

// From Begin to Admit, on either side's own clock; the person compares in that time.
inline constexpr int64_t kPairingUs = 120'000'000;

// The values that both sides exchanged.
// REQUIRES: all but the name have the sizes above, which is checked where a message is read.
struct PairingTranscript {
  std::string member_key;
  std::string guest_key;
  std::string member_nonce;
  std::string guest_nonce;
  std::string member_name;
};

// Moved, never copied; OpenSSL wipes the private key. Reading is thread-safe.
class PairingKeyPair {
 public:
  // kInternal, with OpenSSL's message, when it fails.
  static absl::StatusOr<PairingKeyPair> New();
  static absl::StatusOr<PairingKeyPair> Of(const SecretBytes& private_key);  // for tests

  const std::string& public_key() const { return public_key_; }

  // The secret shared with the owner of `other`'s private key. kInvalidArgument: `other` is no
  // public key of kPairingKeyBytes, or one of the few that give all-zero secrets.
  absl::StatusOr<SecretBytes> SharedWith(absl::string_view other) const;

 private:
  struct Free {
    void operator()(evp_pkey_st* key) const;
  };
  using Key = std::unique_ptr<evp_pkey_st, Free>;
  static absl::StatusOr<PairingKeyPair> Of(Key key);
  PairingKeyPair(Key key, std::string public_key);

  Key key_;
  std::string public_key_;
};

// `size` random bytes, which do not stay secret for long. kUnavailable when the system has none.
absl::StatusOr<std::string> NewPairingBytes(size_t size);

// The commitment of a transcript without the member's nonce. kInternal: OpenSSL has no SHA-256.
absl::StatusOr<std::string> PairingCommitment(const PairingTranscript& transcript);

// "012 345". kInternal, with OpenSSL's message, when it fails.
absl::StatusOr<std::string> PairingCode(const PairingTranscript& transcript);

struct PairingKeys {
  SecretBytes admit_key;
  std::string admit_iv;  // 12 bytes
  std::string proof;     // kPairingHashBytes; secret until the guest sends it
};
// kInternal, with OpenSSL's message, when it fails.
absl::StatusOr<PairingKeys> DerivePairingKeys(const SecretBytes& shared,
                                              const PairingTranscript& transcript);

// Whether both are the same; the time taken does not depend on where they differ.
bool SamePairingBytes(absl::string_view a, absl::string_view b);

// kInvalidArgument: `bytes`, the field `what` of a message, has another size.
absl::Status CheckPairingBytes(absl::string_view what, absl::string_view bytes, size_t size);
// kInvalidArgument: not 1 to kPairingNameBytesMax bytes of printable text.
absl::Status CheckPairingName(absl::string_view what, absl::string_view name);

}  // namespace strata
