#include "transport/pairing/pairing_member.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "transport/security/secret.h"

namespace strata {

PairingMember::PairingMember(PairingIdentity self, const Clock* clock)
    : clock_(clock), self_(std::move(self)) {}

absl::StatusOr<PairingMember> PairingMember::New(PairingIdentity self, const Clock* clock) {
  if (absl::Status status = CheckPairingIdentity(self); !status.ok()) return status;
  return PairingMember(std::move(self), clock);
}

void PairingMember::Forget() {
  own_.reset();
  shared_.reset();
  keys_.reset();
  code_.clear();
}

absl::Status PairingMember::Take(Turn turn) {
  if (turn_ != turn) {
    return absl::FailedPreconditionError("the pairing has ended, or its steps are out of order");
  }
  turn_ = Turn::kNone;
  // No limit for OnAdmitted(): a guest that was sent the key has it, however late its answer is.
  const bool timed = turn != Turn::kBegin && turn != Turn::kAdmitted;
  if (timed && clock_->NowUs() - begun_us_ >= kPairingUs) {
    Forget();
    return absl::DeadlineExceededError(
        absl::StrCat("the pairing took longer than ", kPairingUs / 1'000'000, " s"));
  }
  return absl::OkStatus();
}

absl::StatusOr<wire::PairingBeginRequest> PairingMember::MakeBegin() {
  if (absl::Status status = Take(Turn::kBegin); !status.ok()) return status;
  absl::StatusOr<PairingKeyPair> own = PairingKeyPair::New();
  if (!own.ok()) return own.status();
  absl::StatusOr<std::string> nonce = NewPairingBytes(kPairingNonceBytes);
  if (!nonce.ok()) return nonce.status();
  own_ = *std::move(own);
  transcript_.member_key = own_->public_key();
  transcript_.member_nonce = *std::move(nonce);
  transcript_.member_name = self_.name;
  begun_us_ = clock_->NowUs();
  turn_ = Turn::kBegun;

  wire::PairingBeginRequest request;
  request.set_version(kPairingVersion);
  request.set_member_key(transcript_.member_key);
  request.set_member_name(transcript_.member_name);
  return request;
}

absl::StatusOr<wire::PairingDiscloseRequest> PairingMember::OnBegun(
    const wire::PairingBeginResponse& response) {
  if (absl::Status status = Take(Turn::kBegun); !status.ok()) return status;
  const std::optional<PairingKeyPair> own = std::move(own_);
  own_.reset();
  absl::Status status = CheckPairingBytes("pairing", response.pairing(), kPairingIdBytes);
  if (status.ok()) {
    status = CheckPairingBytes("commitment", response.commitment(), kPairingHashBytes);
  }
  if (status.ok()) status = CheckPairingBytes("guest_key", response.guest_key(), kPairingKeyBytes);
  // A guest that sends back the member's own key learns no secret, but is not a valid guest either.
  if (status.ok() && response.guest_key() == own->public_key()) {
    status = absl::InvalidArgumentError("guest_key: it is this machine's own");
  }
  if (!status.ok()) return status;
  absl::StatusOr<SecretBytes> shared = own->SharedWith(response.guest_key());
  if (!shared.ok()) return shared.status();
  shared_ = *std::move(shared);
  id_ = response.pairing();
  commitment_ = response.commitment();
  transcript_.guest_key = response.guest_key();
  turn_ = Turn::kDisclosed;

  wire::PairingDiscloseRequest request;
  request.set_pairing(id_);
  request.set_member_nonce(transcript_.member_nonce);
  return request;
}

absl::Status PairingMember::OnDisclosed(const wire::PairingDiscloseResponse& response) {
  if (absl::Status status = Take(Turn::kDisclosed); !status.ok()) return status;
  const SecretBytes shared = std::move(shared_);
  if (absl::Status status =
          CheckPairingBytes("guest_nonce", response.guest_nonce(), kPairingNonceBytes);
      !status.ok()) {
    return status;
  }
  transcript_.guest_nonce = response.guest_nonce();
  const absl::StatusOr<std::string> commitment = PairingCommitment(transcript_);
  if (!commitment.ok()) return commitment.status();
  if (!SamePairingBytes(*commitment, commitment_)) {
    return absl::UnauthenticatedError(
        "the other machine's nonce does not match its commitment: an attacker may be in the "
        "middle");
  }
  absl::StatusOr<PairingKeys> keys = DerivePairingKeys(shared, transcript_);
  if (!keys.ok()) return keys.status();
  absl::StatusOr<std::string> code = PairingCode(transcript_);
  if (!code.ok()) return code.status();
  keys_ = *std::move(keys);
  code_ = *std::move(code);
  turn_ = Turn::kAdmit;
  return absl::OkStatus();
}

absl::StatusOr<wire::PairingAdmitRequest> PairingMember::MakeAdmit(const ClusterKey& key) {
  if (absl::Status status = Take(Turn::kAdmit); !status.ok()) return status;
  const absl::StatusOr<Secret> admission = PairingPayload(self_, key);
  absl::StatusOr<std::string> sealed =
      admission.ok() ? SealPairing(*keys_, *admission) : admission.status();
  if (!sealed.ok()) {
    Forget();
    return sealed.status();
  }
  keys_->admit_key.reset();  // used once only
  turn_ = Turn::kAdmitted;

  wire::PairingAdmitRequest request;
  request.set_pairing(id_);
  request.set_sealed(*std::move(sealed));
  return request;
}

absl::Status PairingMember::OnAdmitted(const wire::PairingAdmitResponse& response) {
  if (absl::Status status = Take(Turn::kAdmitted); !status.ok()) return status;
  const std::string proof = keys_->proof;
  Forget();
  if (!SamePairingBytes(proof, response.proof())) {
    return absl::UnauthenticatedError(
        "another machine answered: check on the machine itself whether it has the key");
  }
  return absl::OkStatus();
}

absl::StatusOr<wire::PairingRefuseRequest> PairingMember::MakeRefuse() {
  turn_ = Turn::kNone;
  Forget();
  if (id_.empty()) return absl::FailedPreconditionError("there is no pairing to refuse");
  wire::PairingRefuseRequest request;
  request.set_pairing(std::exchange(id_, ""));
  return request;
}

}  // namespace strata
