// Tickets for links over UCX that were given out and not used yet: each is good for one link and
// for a while. Part of links over UCX (ucx_link.h). Thread-safe.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "transport/base/mutex.h"
#include "transport/ucx/ucx_link.h"

namespace strata {

class UcxTickets {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Kept by who gave it out.
  struct Ticket {
    std::string token;
    std::string key;
    UcxOfferOptions options;
    AcceptLinkFn accept;
    Time until;
  };

  // A new one. kResourceExhausted: kUcxTicketsMax are out; kUnavailable: no secrets can be had.
  // `address` stands in what is given out.
  absl::StatusOr<UcxTicket> Give(std::string address, UcxOfferOptions options, AcceptLinkFn accept,
                                 Time now);

  // Uses up the ticket that `token` belongs to. kUnauthenticated: there is none, or it is too old.
  absl::StatusOr<Ticket> Take(absl::string_view token, Time now);

 private:
  Mutex mu_;  // never with another
  std::vector<Ticket> tickets_ ABSL_GUARDED_BY(mu_);
};

}  // namespace strata
