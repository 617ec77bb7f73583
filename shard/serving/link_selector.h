// Chooses the transport of a link between two workers: UCX where both have it, where the bytes stay
// in one machine or on a network that the operator trusts, and where it was measured faster; gRPC
// otherwise, and always when UCX fails. Links to the coordinator carry tokens only and always use
// gRPC.
//
// The dialler requests a ticket from the other worker over gRPC, measures both transports once with
// a few frames (transport/link/round_trip.h), and remembers the result until the process ends.
//
// Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/node.pb.h"
#include "transport/base/mutex.h"
#include "transport/link/link.h"
#include "transport/link/round_trip.h"
#include "transport/ucx/ucx_link.h"

namespace strata {

// Workers whose link choice is remembered; when there are more, all choices are forgotten.
inline constexpr size_t kLinkChoicesMax = 64;
// UCX is not used where 16 KiB and back take longer: its links take a second of silence for a dead
// peer, but a MiB on a slow network takes as long, and gRPC is not slower there.
inline constexpr absl::Duration kUcxTripMax = absl::Microseconds(2500);
// How long UCX is not used to a worker to which it has failed.
inline constexpr std::chrono::minutes kUcxAvoided{10};

// Round-trip time of 16 KiB between two workers, over each transport.
struct TransportLatency {
  absl::Duration ucx;
  absl::Duration grpc;
};
// Empty: links use UCX; else the reason why not, for `strata status`.
std::string WhyNotOverUcx(const TransportLatency& times);

struct LinkSelectorOptions {
  bool ucx = true;
  bool spin = false;  // UCX never sleeps: saves some microseconds, costs a core each
  std::vector<std::string> trusted_interfaces;  // UCX may leave the machine through these
  bool allow_mixed_versions = false;
  bool measure = true;         // false, for tests: UCX wherever it is available
  int64_t ucx_dial_ms = 3000;  // short, because gRPC is the fallback
};

class LinkSelector {
 public:
  // Decides about a peer's Hello; several calls at a time.
  using AcceptFn = std::function<absl::StatusOr<AcceptedLink>(const wire::Hello&)>;
  LinkSelector(LinkSelectorOptions options, AcceptFn accept);
  // REQUIRES: all links of this selector have been destroyed.
  ~LinkSelector();

  // Closes links that are being measured. Afterwards nothing is accepted: waits for running calls
  // of `accept`. REQUIRES: the caller holds no lock that they take.
  void Stop();

  // For acceptors of every transport: links that only measure end here.
  absl::StatusOr<AcceptedLink> Accept(const wire::Hello& peer);

  // This worker's offer to a dialler. Blocks for some milliseconds the first time.
  wire::OfferLinkResponse Offer(const wire::OfferLinkRequest& request);

  struct DialOptions {
    std::string address;  // host:port of the next worker's gRPC server
    wire::Hello hello;
    bool to_worker = true;  // else to the coordinator
  };
  struct DialResult {
    std::unique_ptr<Link> link;
    std::string note;  // why not over UCX
  };
  // Blocks for at most about twenty seconds: a slow path is measured once. Errors: as
  // DialGrpcLink().
  absl::StatusOr<DialResult> Dial(DialOptions options, Link::Receiver* receiver);

 private:
  using Time = std::chrono::steady_clock::time_point;
  // Measurements and failures of the links to one worker.
  struct LinkChoice {
    bool measured = false;
    TransportLatency times;
    std::string failure;  // of UCX
    Time avoid_until;
  };

  // An error says why UCX is not used; `failed`: UCX was tried.
  absl::StatusOr<std::unique_ptr<Link>> DialUcx(const DialOptions& options,
                                                Link::Receiver* receiver, bool* failed);
  // `on_break` as UcxDialOptions has it.
  absl::StatusOr<std::unique_ptr<Link>> DialOffered(
      const wire::OfferLinkResponse& offer, wire::Hello hello, Link::Receiver* receiver,
      std::function<void(const absl::Status& why)> on_break);
  absl::StatusOr<LinkChoice> MeasureLinks(const std::string& address);
  // Requests a ticket, and checks that this side may use it.
  absl::StatusOr<wire::OfferLinkResponse> RequestOffer(const std::string& address);
  absl::StatusOr<UcxLinks*> LinksOn(const std::string& host);
  absl::StatusOr<UcxTicket> GiveTicket(const std::string& host);
  wire::LinkPlace Place() const;
  static bool IsAvoided(const LinkChoice& choice) {
    return std::chrono::steady_clock::now() < choice.avoid_until;
  }
  LinkChoice GetChoice(const std::string& address);
  // Stores the measurement; returns it with the failures known so far.
  LinkChoice StoreMeasurement(const std::string& address, const LinkChoice& measured);
  LinkChoice& ChoiceFor(const std::string& address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Avoid(const std::string& address, const absl::Status& why);

  const LinkSelectorOptions options_;
  const AcceptFn accept_;
  const std::string host_;
  RoundTripSink sink_;

  Mutex mu_;
  CondVar accepted_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  int accepting_ ABSL_GUARDED_BY(mu_) = 0;  // running calls of `accept_`
  std::map<std::string, LinkChoice> choices_ ABSL_GUARDED_BY(mu_);

  Mutex links_mu_;  // held while UCX starts
  // By the host they listen on. Last: their threads use all of the above.
  std::map<std::string, absl::StatusOr<std::unique_ptr<UcxLinks>>> links_
      ABSL_GUARDED_BY(links_mu_);
};

}  // namespace strata
