// The member's side of a pairing (pairing.h): has the cluster's key and gives it to one guest,
// after a person confirmed that both show the same code. Without I/O: messages in, messages out.
//
//   MakeBegin() ─▶ OnBegun(response) ─▶ OnDisclosed(response), code() ─▶ the person confirms
//     ─▶ MakeAdmit(key) ─▶ OnAdmitted(response)
//
// One object for one pairing; any error ends it. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/pairing.pb.h"
#include "transport/base/clock.h"
#include "transport/pairing/pairing.h"
#include "transport/pairing/pairing_payload.h"
#include "transport/security/cluster_key.h"
#include "transport/security/secret_text.h"

namespace strata {

class PairingMember {
 public:
  // `clock` outlives this. kInvalidArgument: CheckPairingIdentity().
  static absl::StatusOr<PairingMember> New(PairingIdentity self, const Clock* clock);

  // Call each of these once, in this order: kFailedPrecondition out of order, and after an error.
  // kDeadlineExceeded: kPairingUs are over. kInvalidArgument: a field of the response is not as
  // pairing.proto says, or a key is invalid. kInternal: OpenSSL failed.

  // kUnavailable: no random bytes.
  absl::StatusOr<wire::PairingBeginRequest> MakeBegin();
  absl::StatusOr<wire::PairingDiscloseRequest> OnBegun(const wire::PairingBeginResponse& response);
  // kUnauthenticated: the nonce does not match the guest's commitment. An attacker is in the
  // middle, and there is no code.
  absl::Status OnDisclosed(const wire::PairingDiscloseResponse& response);

  // "012 345"; empty before OnDisclosed() and after an error. Both machines show the same code,
  // unless an attacker is in the middle.
  const std::string& code() const { return code_; }

  // REQUIRES: a person compared the codes and confirmed; the other end gets the key.
  absl::StatusOr<wire::PairingAdmitRequest> MakeAdmit(const ClusterKey& key);
  // OK: the guest has the key. kUnauthenticated: another machine answered, and the guest may have
  // the key or not.
  absl::Status OnAdmitted(const wire::PairingAdmitResponse& response);

  // From OnBegun() on, at any time: the person refused, or the pairing failed. Ends the pairing
  // here. kFailedPrecondition: there is no pairing that the guest knows.
  absl::StatusOr<wire::PairingRefuseRequest> MakeRefuse();

 private:
  enum class Turn { kBegin, kBegun, kDisclosed, kAdmit, kAdmitted, kNone };

  PairingMember(PairingIdentity self, const Clock* clock);
  // Checks that it is `turn`, and sets kNone until the caller sets the next turn.
  absl::Status Take(Turn turn);
  void Forget();

  const Clock* clock_;
  PairingIdentity self_;
  Turn turn_ = Turn::kBegin;
  int64_t begun_us_ = 0;
  std::string id_;
  std::string commitment_;
  std::optional<PairingKeyPair> own_;
  PairingTranscript transcript_;
  SecretBytes shared_;
  std::optional<PairingKeys> keys_;
  std::string code_;
};

}  // namespace strata
