// Pairing (pairing.h) over gRPC: the service of a machine without a key, and the call of a member
// whose person wants to admit it.
//
// Unencrypted, on a channel and a server of its own, the only such place beside --open: the two
// have no key in common yet, and pairing.h says why nothing on the network needs to be trusted or
// kept secret.
#pragma once

#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "transport/base/clock.h"
#include "transport/pairing/pairing_guest.h"
#include "transport/pairing/pairing_payload.h"
#include "transport/security/cluster_key.h"

namespace grpc {
class Service;
}

namespace strata {

// More than any message of a pairing has. For ServerBuilder::SetMaxReceiveMessageSize() of the
// guest's server: else unknown callers could fill its memory.
inline constexpr int kPairingMessageBytesMax = 4096;

// For the grpc::ServerBuilder of a guest; answers on gRPC's threads. `guest` outlives the service,
// which outlives its server.
std::unique_ptr<grpc::Service> MakePairingService(PairingGuest* guest);

struct PairWithOptions {
  std::string address;   // host:port of the guest
  PairingIdentity self;  // the member
  const Clock* clock = Clock::Real();
  absl::Duration call_timeout = absl::Seconds(10);  // of each call; the first one also connects
};

// Returns whether a person sees this code on the guest as well; called once at most, on the
// caller's thread. It may block: the guest waits for kPairingUs from the start. An error: the
// person cannot be asked.
using AskPersonFn = absl::AnyInvocable<absl::StatusOr<bool>(const std::string& code)>;

// Gives the guest the key, if the person confirms. Blocks. Errors name the address:
//   kUnavailable, kDeadlineExceeded  no answer, or the person took too long
//   kResourceExhausted               another member pairs with the guest, with the time to retry
//   kFailedPrecondition              the guest has a key, takes no pairings, has another version,
//                                    or replaced this pairing by another
//   kCancelled                       the person refused, and the guest was notified
//   kUnauthenticated                 an attacker is in the middle; the message says whether the
//                                    guest may have the key
//   kInvalidArgument                 invalid `options`, or an invalid response
//   and the errors of `ask_person`
absl::Status PairWith(const PairWithOptions& options, AskPersonFn ask_person,
                      const ClusterKey& key);

}  // namespace strata
