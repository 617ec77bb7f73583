#include "transport/pairing/pairing_guest.h"

#include <algorithm>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace strata {
namespace {

constexpr int64_t kSecondUs = 1'000'000;
constexpr std::ptrdiff_t kNameDigitsMax = 5;  // one less than in a code

int64_t SecondsUp(int64_t us) { return (us + kSecondUs - 1) / kSecondUs; }

absl::Status Later(absl::string_view why, int64_t wait_us) {
  return absl::ResourceExhaustedError(
      absl::StrFormat("%s: try again in %d s", why, std::max<int64_t>(1, SecondsUp(wait_us))));
}

}  // namespace

std::string ShownPairingName(absl::string_view name) {
  const auto is_digit = [](char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); };
  const bool hide_digits = std::count_if(name.begin(), name.end(), is_digit) > kNameDigitsMax;
  std::string shown(name);
  for (char& c : shown) {
    if (is_digit(c)) {
      if (hide_digits) c = '#';
    } else if (!absl::ascii_isalpha(static_cast<unsigned char>(c)) && c != '-' && c != '_' &&
               c != '.' && c != ' ') {
      c = '?';
    }
  }
  return shown;
}

PairingGuest::PairingGuest(const Clock* clock, Events events)
    : clock_(clock), events_(std::move(events)) {
  CHECK(events_.on_code && events_.on_ended && events_.on_admitted);
}

void PairingGuest::End(const absl::Status& why) {
  const bool shown = session_->keys.has_value();
  session_.reset();
  if (shown) events_.on_ended(why);
}

void PairingGuest::EndIfLate(int64_t now_us) {
  if (session_.has_value() && now_us - session_->begun_us >= kPairingUs) {
    End(absl::DeadlineExceededError(
        absl::StrCat("nobody confirmed the code within ", kPairingUs / kSecondUs, " s")));
  }
}

void PairingGuest::Tick() {
  const MutexLock lock(&mu_);
  EndIfLate(clock_->NowUs());
}

absl::Status PairingGuest::CheckRoom(int64_t now_us) {
  if (admitted_) return absl::FailedPreconditionError("this machine has a cluster's key already");
  if (session_.has_value()) {
    const int64_t silent_us = now_us - session_->heard_us;
    if (silent_us < kPairingSilentUs) {
      return Later("another machine is pairing with this one", kPairingSilentUs - silent_us);
    }
  }
  if (last_begin_us_.has_value() && now_us - *last_begin_us_ < kPairingBeginEveryUs) {
    return Later("a pairing began a moment ago", *last_begin_us_ + kPairingBeginEveryUs - now_us);
  }
  while (!codes_us_.empty() && now_us - codes_us_.front() >= kPairingCodesUs) {
    codes_us_.pop_front();
  }
  if (codes_us_.size() >= kPairingCodesMax) {
    return Later("too many pairings failed", codes_us_.front() + kPairingCodesUs - now_us);
  }
  return absl::OkStatus();
}

absl::StatusOr<PairingGuest::Session> PairingGuest::NewSession(
    const wire::PairingBeginRequest& request, int64_t now_us) {
  const absl::StatusOr<PairingKeyPair> own = PairingKeyPair::New();
  if (!own.ok()) return own.status();
  absl::StatusOr<SecretBytes> shared = own->SharedWith(request.member_key());
  if (!shared.ok()) return shared.status();
  absl::StatusOr<std::string> id = NewPairingBytes(kPairingIdBytes);
  if (!id.ok()) return id.status();
  absl::StatusOr<std::string> nonce = NewPairingBytes(kPairingNonceBytes);
  if (!nonce.ok()) return nonce.status();
  return Session{.id = *std::move(id),
                 .transcript = {.member_key = request.member_key(),
                                .guest_key = own->public_key(),
                                .guest_nonce = *std::move(nonce),
                                .member_name = request.member_name()},
                 .shared = *std::move(shared),
                 .begun_us = now_us,
                 .heard_us = now_us};
}

absl::StatusOr<wire::PairingBeginResponse> PairingGuest::Begin(
    const wire::PairingBeginRequest& request) {
  if (request.version() != kPairingVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("this machine has version ", kPairingVersion, " of pairing, the other has ",
                     request.version(), ": install the same Strata on both"));
  }
  absl::Status status = CheckPairingBytes("member_key", request.member_key(), kPairingKeyBytes);
  if (status.ok()) status = CheckPairingName("member_name", request.member_name());
  if (!status.ok()) return status;

  const MutexLock lock(&mu_);
  const int64_t now_us = clock_->NowUs();
  EndIfLate(now_us);
  if (status = CheckRoom(now_us); !status.ok()) return status;
  last_begin_us_ = now_us;  // even if it fails: the computation below is what is limited
  absl::StatusOr<Session> session = NewSession(request, now_us);
  if (!session.ok()) return session.status();
  const absl::StatusOr<std::string> commitment = PairingCommitment(session->transcript);
  if (!commitment.ok()) return commitment.status();
  if (session_.has_value()) End(absl::AbortedError("another pairing replaced it"));
  session_ = *std::move(session);

  wire::PairingBeginResponse response;
  response.set_pairing(session_->id);
  response.set_guest_key(session_->transcript.guest_key);
  response.set_commitment(*commitment);
  return response;
}

absl::StatusOr<PairingGuest::Session*> PairingGuest::Find(absl::string_view id) {
  EndIfLate(clock_->NowUs());
  if (absl::Status status = CheckPairingBytes("pairing", id, kPairingIdBytes); !status.ok()) {
    return status;
  }
  if (!session_.has_value() || !SamePairingBytes(session_->id, id)) {
    return absl::FailedPreconditionError(
        "no such pairing: it took too long, or another pairing replaced it");
  }
  return &*session_;
}

absl::StatusOr<wire::PairingDiscloseResponse> PairingGuest::Disclose(
    const wire::PairingDiscloseRequest& request) {
  if (absl::Status status =
          CheckPairingBytes("member_nonce", request.member_nonce(), kPairingNonceBytes);
      !status.ok()) {
    return status;
  }
  const MutexLock lock(&mu_);
  const absl::StatusOr<Session*> found = Find(request.pairing());
  if (!found.ok()) return found.status();
  Session& session = **found;
  if (session.keys.has_value()) {
    return absl::FailedPreconditionError("the member's nonce has been sent already");
  }
  session.transcript.member_nonce = request.member_nonce();
  const absl::StatusOr<std::string> code = PairingCode(session.transcript);
  absl::StatusOr<PairingKeys> keys = DerivePairingKeys(session.shared, session.transcript);
  if (!code.ok() || !keys.ok()) {
    absl::Status why = code.ok() ? keys.status() : code.status();
    End(why);
    return why;
  }
  session.keys = *std::move(keys);
  session.shared.reset();
  session.heard_us = clock_->NowUs();
  codes_us_.push_back(session.heard_us);  // bounded: one per pairing, and CheckRoom() counts them
  events_.on_code(*code, ShownPairingName(session.transcript.member_name));

  wire::PairingDiscloseResponse response;
  response.set_guest_nonce(session.transcript.guest_nonce);
  return response;
}

absl::StatusOr<PairingPayloadContent> PairingGuest::OpenPairingPayload(const Session& session,
                                                                       absl::string_view sealed) {
  const absl::StatusOr<Secret> plain = UnsealPairing(*session.keys, sealed);
  if (!plain.ok()) return plain.status();
  absl::StatusOr<PairingPayloadContent> admission = ReadPairingPayload(*plain);
  if (admission.ok()) admission->from.name = session.transcript.member_name;
  return admission;
}

absl::StatusOr<wire::PairingAdmitResponse> PairingGuest::Admit(
    const wire::PairingAdmitRequest& request) {
  if (request.sealed().empty() || request.sealed().size() > kPairingSealedBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("sealed: it must have 1 to ", kPairingSealedBytesMax, " bytes"));
  }
  const MutexLock lock(&mu_);
  const absl::StatusOr<Session*> found = Find(request.pairing());
  if (!found.ok()) return found.status();
  if (!(*found)->keys.has_value()) {
    return absl::FailedPreconditionError("the nonces must be sent before the key");
  }
  absl::StatusOr<PairingPayloadContent> admission = OpenPairingPayload(**found, request.sealed());
  if (!admission.ok()) {
    End(admission.status());
    return admission.status();
  }
  wire::PairingAdmitResponse response;
  response.set_proof((*found)->keys->proof);
  if (const absl::Status status = events_.on_admitted(std::move(admission->key), admission->from);
      !status.ok()) {
    End(status);
    return absl::Status(status.code(), "the machine cannot store the key: it shows the reason");
  }
  session_.reset();
  admitted_ = true;
  return response;
}

absl::StatusOr<wire::PairingRefuseResponse> PairingGuest::Refuse(
    const wire::PairingRefuseRequest& request) {
  const MutexLock lock(&mu_);
  const absl::StatusOr<Session*> found = Find(request.pairing());
  if (!found.ok()) return found.status();
  End(absl::CancelledError("the other machine refused"));
  return wire::PairingRefuseResponse();
}

}  // namespace strata
