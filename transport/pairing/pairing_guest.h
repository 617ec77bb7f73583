// The guest's side of a pairing (pairing.h): a node without a key, which anybody may call. Without
// I/O: messages in, messages out. pairing_service.h runs it over gRPC.
//
// Unknown callers can make it compute at most one key pair and one secret a second, block it for a
// minute at a time, and see their own input; its responses are of no use to them. Two members that
// pair with it at once do not disturb each other, since each call names its pairing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/pairing.pb.h"
#include "transport/base/clock.h"
#include "transport/base/mutex.h"
#include "transport/pairing/pairing.h"
#include "transport/pairing/pairing_payload.h"
#include "transport/security/cluster_key.h"
#include "transport/security/secret_text.h"

namespace strata {

// The least time between the beginnings of two pairings.
inline constexpr int64_t kPairingBeginEveryUs = 1'000'000;
// A pairing without a call for this long may be replaced by another.
inline constexpr int64_t kPairingSilentUs = 60'000'000;
// Codes shown without an admission in kPairingCodesUs, after which no pairing begins for a while.
inline constexpr size_t kPairingCodesMax = 5;
inline constexpr int64_t kPairingCodesUs = 600'000'000;

// `name`, which is untrusted, in a form to show beside a code: ASCII letters, digits, "-", "_", "."
// and spaces, '?' for all other characters. Six digits or more become '#', so that no name looks
// like a code.
std::string ShownPairingName(absl::string_view name);

// Thread-safe.
class PairingGuest {
 public:
  // Called on the threads that call Begin() and the others, one at a time and under a lock: they
  // must neither block for long nor call the guest.
  struct Events {
    // Show this code, and the other end's name, which is not authenticated.
    absl::AnyInvocable<void(const std::string& code, const std::string& shown_name)> on_code;
    // The code shown last is no longer valid; no member admitted this machine.
    absl::AnyInvocable<void(const absl::Status& why)> on_ended;
    // The key, and the member that sent it. OK accepts the key and ends the guest's role. After an
    // error the member gets its code, not its message, and others may try. Writing the key to a
    // file is not too long.
    absl::AnyInvocable<absl::Status(ClusterKey key, const PairingIdentity& from)> on_admitted;
  };
  // `clock` outlives this.
  PairingGuest(const Clock* clock, Events events);

  // The member's calls, in this order. Each has these errors:
  //   kInvalidArgument     a field does not have the size or form that pairing.proto says
  //   kFailedPrecondition  no such pairing (it ended or another replaced it), or a call out of
  //                        order; another version; this node has a key
  //   kInternal            OpenSSL failed
  // A call with another pairing's id does not change this pairing.
  //
  // kResourceExhausted: another member pairs with it, or too soon, or too many codes, with the time
  // to try again. kUnavailable: no random bytes.
  absl::StatusOr<wire::PairingBeginResponse> Begin(const wire::PairingBeginRequest& request);
  // Calls on_code. Once per pairing.
  absl::StatusOr<wire::PairingDiscloseResponse> Disclose(
      const wire::PairingDiscloseRequest& request);
  // Calls on_admitted or on_ended: the pairing is over in any case, unless the size of `sealed` is
  // invalid. kUnauthenticated: the member that began the pairing did not seal it.
  absl::StatusOr<wire::PairingAdmitResponse> Admit(const wire::PairingAdmitRequest& request);
  // Calls on_ended, if a code was shown.
  absl::StatusOr<wire::PairingRefuseResponse> Refuse(const wire::PairingRefuseRequest& request);

  // Ends a pairing whose time is up. Call it about every second while a code is shown, so that the
  // code disappears without a call; the calls above do the same.
  void Tick();

 private:
  struct Session {
    std::string id;
    PairingTranscript transcript;  // the member's nonce comes with Disclose()
    SecretBytes shared;            // until Disclose(), which derives `keys` from it
    std::optional<PairingKeys> keys;
    int64_t begun_us;
    int64_t heard_us;
  };

  void EndIfLate(int64_t now_us) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void End(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether another pairing may begin.
  absl::Status CheckRoom(int64_t now_us) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static absl::StatusOr<Session> NewSession(const wire::PairingBeginRequest& request,
                                            int64_t now_us);
  // The pairing that a request names.
  absl::StatusOr<Session*> Find(absl::string_view id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static absl::StatusOr<PairingPayloadContent> OpenPairingPayload(const Session& session,
                                                                  absl::string_view sealed);

  const Clock* const clock_;

  Mutex mu_;
  Events events_ ABSL_GUARDED_BY(mu_);
  bool admitted_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<Session> session_ ABSL_GUARDED_BY(mu_);
  std::optional<int64_t> last_begin_us_ ABSL_GUARDED_BY(mu_);
  std::deque<int64_t> codes_us_ ABSL_GUARDED_BY(mu_);  // at most kPairingCodesMax
};

}  // namespace strata
