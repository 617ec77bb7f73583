// Which wire a link between two workers goes over: UCX where both have it, where the bytes stay in
// one machine or on a network that a person trusts, and where it was measured faster; gRPC
// otherwise, and always when UCX fails. Links to the coordinator carry tokens only and stay with
// gRPC.
//
// The dialler asks the other worker over gRPC for a ticket, tries both wires once with a few frames
// (transport/link/round_trip.h), and remembers what it found for as long as the process lives.
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

// Workers of which is remembered what was found; when there are more, all are forgotten.
inline constexpr size_t kStageWaysMax = 64;
// Nothing goes over UCX where 16 KiB and back take longer: its links notice a dead peer by a second
// of silence, which a MiB on a slow wire is, too, and gRPC is not slower there.
inline constexpr absl::Duration kUcxTripMax = absl::Microseconds(2500);
// For so long nothing goes over UCX to a worker to which it has failed.
inline constexpr std::chrono::minutes kUcxAvoided{10};

// 16 KiB and back, over either wire between two workers.
struct TransportLatency {
  absl::Duration ucx;
  absl::Duration grpc;
};
// Empty: links go over UCX; else why they do not, for `strata status`.
std::string WhyNotOverUcx(const TransportLatency& times);

struct LinkSelectorOptions {
  bool ucx = true;
  bool spin = false;  // UCX never sleeps: some microseconds less for one core each
  std::vector<std::string> trusted_interfaces;  // UCX may leave the machine by these
  bool allow_mixed_versions = false;
  bool measure = true;         // false, for tests: UCX wherever it can be had
  int64_t ucx_dial_ms = 3000;  // short, because gRPC is there when it fails
};

class LinkSelector {
 public:
  // Decides about a peer's Hello; several calls at a time.
  using AcceptFn = std::function<absl::StatusOr<AcceptedLink>(const wire::Hello&)>;
  LinkSelector(LinkSelectorOptions options, AcceptFn accept);
  // After all links over them.
  ~LinkSelector();

  // Closes what is being measured. Afterwards nothing is accepted: waits for calls of `accept` that
  // have begun, so the caller holds nothing that they want.
  void Stop();

  // For every acceptor, whatever its wire: links that only measure end here.
  absl::StatusOr<AcceptedLink> Accept(const wire::Hello& peer);

  // What this worker offers to one that asks. Blocks for some milliseconds the first time.
  wire::OfferLinkResponse Offer(const wire::OfferLinkRequest& request);

  struct DialOptions {
    std::string address;  // host:port of the next worker's gRPC server
    wire::Hello hello;
    bool to_worker = true;  // else to the coordinator
  };
  struct Dialled {
    std::unique_ptr<Link> link;
    std::string note;  // why not over UCX
  };
  // Blocks for at most some twenty seconds: what is slow is measured once. Errors:
  // DialGrpcLink()'s.
  absl::StatusOr<Dialled> Dial(DialOptions options, Link::Receiver* receiver);

 private:
  using Time = std::chrono::steady_clock::time_point;
  // What is known of the way to a worker.
  struct Way {
    bool measured = false;
    TransportLatency times;
    std::string failure;  // of UCX
    Time avoid_until;
  };

  // A status says why it does not go over UCX; `failed`: UCX was tried.
  absl::StatusOr<std::unique_ptr<Link>> DialUcx(const DialOptions& options,
                                                Link::Receiver* receiver, bool* failed);
  absl::StatusOr<std::unique_ptr<Link>> DialOffered(const wire::OfferLinkResponse& offer,
                                                    const std::string& address, wire::Hello hello,
                                                    Link::Receiver* receiver);
  absl::StatusOr<Way> MeasureWay(const std::string& address);
  // A ticket that this side may use.
  absl::StatusOr<wire::OfferLinkResponse> Ask(const std::string& address);
  absl::StatusOr<UcxLinks*> LinksOn(const std::string& host);
  absl::StatusOr<UcxTicket> GiveTicket(const std::string& host);
  wire::LinkPlace Place() const;
  static bool IsAvoided(const Way& way) {
    return std::chrono::steady_clock::now() < way.avoid_until;
  }
  Way Known(const std::string& address);
  // With what else is known of it.
  Way Remember(const std::string& address, const Way& measured);
  Way& WayTo(const std::string& address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Avoid(const std::string& address, const absl::Status& why);

  const LinkSelectorOptions options_;
  const AcceptFn accept_;
  const std::string host_;
  RoundTripSink sink_;

  Mutex mu_;
  CondVar accepted_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  int accepting_ ABSL_GUARDED_BY(mu_) = 0;  // calls of `accept_` under way
  std::map<std::string, Way> ways_ ABSL_GUARDED_BY(mu_);

  Mutex links_mu_;  // held while UCX starts
  // By the host they listen on. Last: their threads use all of the above.
  std::map<std::string, absl::StatusOr<std::unique_ptr<UcxLinks>>> links_
      ABSL_GUARDED_BY(links_mu_);
};

}  // namespace strata
