// The guest's side of a pairing (pairing.h): a node without a key, which anybody may call. Without
// I/O: messages in, messages out. pairing_service.h is it over gRPC.
//
// Strangers can have it compute one key pair and one secret in a second at most, keep it busy for a
// minute at a time, and see what they sent themselves; nothing that it says is of use to them. Two
// who pair with it at once do not get into each other's way, for each call names its pairing.
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

// Between two pairings that begin.
inline constexpr int64_t kPairingBeginEveryUs = 1'000'000;
// One that has been silent for so long makes room for another.
inline constexpr int64_t kPairingSilentUs = 60'000'000;
// Codes shown without an admission in kPairingCodesUs, after which no pairing begins for a while.
inline constexpr size_t kPairingCodesMax = 5;
inline constexpr int64_t kPairingCodesUs = 600'000'000;

// `name`, which anybody may have sent, as it may stand beside a code: ASCII letters, digits, "-",
// "_", "." and spaces, '?' for what is none of them. Where there are six digits or more they are
// '#', so that no name looks like a code.
std::string ShownPairingName(absl::string_view name);

// Thread-safe.
class PairingGuest {
 public:
  // Called on the threads that call Begin() and so on, one at a time and under a lock: they neither
  // block for long nor call the guest.
  struct Events {
    // Show this code, and who says to be at the other end: a stranger, maybe.
    absl::AnyInvocable<void(const std::string& code, const std::string& shown_name)> on_code;
    // The code shown last is of no use any more; nobody was admitted.
    absl::AnyInvocable<void(const absl::Status& why)> on_ended;
    // The key, and whom it came from. It is taken when this says OK: then the guest is one no more.
    // Else the member hears the code of the error, not its words, and others may try. Keeping the
    // key in a file is not too long.
    absl::AnyInvocable<absl::Status(ClusterKey key, const PairingIdentity& from)> on_admitted;
  };
  // `clock` outlives this.
  PairingGuest(const Clock* clock, Events events);

  // What member and guest say to each other, in this order. Each has these errors:
  //   kInvalidArgument     a field has another size or form than pairing.proto says
  //   kFailedPrecondition  no such pairing: it ended, another took its place, or it is not its
  //   turn;
  //                        another version; this node has a key
  //   kInternal            OpenSSL cannot
  // Whoever does not name a pairing changes nothing about it.
  //
  // kResourceExhausted: another pairs with it, or too soon, or too many codes, with when to try
  // again. kUnavailable: no random bytes.
  absl::StatusOr<wire::PairingBeginResponse> Begin(const wire::PairingBeginRequest& request);
  // Calls on_code. Once in a pairing.
  absl::StatusOr<wire::PairingDiscloseResponse> Disclose(
      const wire::PairingDiscloseRequest& request);
  // Calls on_admitted or on_ended: the pairing is over, whatever comes of it, unless `sealed` is of
  // no right size. kUnauthenticated: it was not sealed by who began the pairing.
  absl::StatusOr<wire::PairingAdmitResponse> Admit(const wire::PairingAdmitRequest& request);
  // Calls on_ended, if a code was shown.
  absl::StatusOr<wire::PairingRefuseResponse> Refuse(const wire::PairingRefuseRequest& request);

  // Ends a pairing whose time is up. Each second or so while a code is shown, so that it goes when
  // nobody calls; what is above does it by itself.
  void Tick();

 private:
  struct Session {
    std::string id;
    PairingTranscript transcript;  // the member's nonce comes with Disclose()
    SecretBytes shared;            // until Disclose(), which makes keys of it
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
  static absl::StatusOr<OpenedPairingPayload> OpenPairingPayload(const Session& session,
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
