// Pairing (pairing.h) over gRPC: the service of a machine without a key, and the call that a member
// makes when a person wants to admit one.
//
// In plain text, on a channel and a server of its own, beside --open the only place where that is
// so: the two have no key in common yet, and pairing.h says why nothing on the wire needs to be
// believed or kept from anybody.
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
// server that a guest has for strangers: else they could make it keep what they send.
inline constexpr int kPairingMessageBytesMax = 4096;

// For the grpc::ServerBuilder of a guest; answers on gRPC's threads. `guest` outlives it, and it
// outlives its server.
std::unique_ptr<grpc::Service> MakePairingService(PairingGuest* guest);

struct PairWithOptions {
  std::string address;   // host:port of the guest
  PairingIdentity self;  // the member
  const Clock* clock = Clock::Real();
  absl::Duration call_timeout = absl::Seconds(10);  // of each call; the first one connects
};

// Whether a person sees this code on the guest as well; called once at most, on the caller's
// thread. It may block: the guest waits for kPairingUs from the start. An error is what cannot ask.
using AskPersonFn = absl::AnyInvocable<absl::StatusOr<bool>(const std::string& code)>;

// Gives the guest the key, if the person says yes. Blocks. Errors name the address:
//   kUnavailable, kDeadlineExceeded  nobody is there or answers, or the person took too long
//   kResourceExhausted               another pairs with the guest, with when to try again
//   kFailedPrecondition              it has a key, takes no pairings, is of another version, or let
//                                    another take this one's place
//   kCancelled                       the person said no, and the guest was told
//   kUnauthenticated                 somebody is in the middle; the message says whether the guest
//                                    may have the key
//   kInvalidArgument                 `options`, or what came is no pairing's
//   and the one of `ask_person`
absl::Status PairWith(const PairWithOptions& options, AskPersonFn ask_person,
                      const ClusterKey& key);

}  // namespace strata
