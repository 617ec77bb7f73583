// Issued, unused tickets for links over UCX: each is valid for one link and for a limited time.
// Part of links over UCX (ucx_link.h). Thread-safe.
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

  // The issuer's record of a ticket.
  struct Ticket {
    std::string token;
    std::string key;
    UcxOfferOptions options;
    AcceptLinkFn accept;
    Time until;
  };

  // Issues a new ticket, with `address` in it. kResourceExhausted: kUcxTicketsMax are unused;
  // kUnavailable: the system has no random bytes.
  absl::StatusOr<UcxTicket> Give(std::string address, UcxOfferOptions options, AcceptLinkFn accept,
                                 Time now);

  // Uses up the ticket of `token`. kUnauthenticated: there is none, or it has expired.
  absl::StatusOr<Ticket> Take(absl::string_view token, Time now);

 private:
  Mutex mu_;  // never held together with another
  std::vector<Ticket> tickets_ ABSL_GUARDED_BY(mu_);
};

}  // namespace strata
