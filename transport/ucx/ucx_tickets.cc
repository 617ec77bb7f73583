#include "transport/ucx/ucx_tickets.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "transport/ucx/ucx_seal.h"

namespace strata {

absl::StatusOr<UcxTicket> UcxTickets::Give(std::string address, UcxOfferOptions options,
                                           AcceptLinkFn accept, Time now) {
  absl::StatusOr<std::string> token = UcxSecret(kUcxTokenBytes);
  if (!token.ok()) return token.status();
  absl::StatusOr<std::string> key = UcxSecret(kUcxKeyBytes);
  if (!key.ok()) return key.status();
  std::vector<Ticket> old;  // destroyed after the lock
  MutexLock lock(&mu_);
  for (size_t i = 0; i < tickets_.size();) {
    if (tickets_[i].until > now) {
      ++i;
      continue;
    }
    old.push_back(std::move(tickets_[i]));
    tickets_.erase(tickets_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  if (tickets_.size() >= kUcxTicketsMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("too many unused tickets for links; at most ", kUcxTicketsMax));
  }
  UcxTicket ticket{std::move(address), *token, *key};
  tickets_.push_back(Ticket{*std::move(token), *std::move(key), options, std::move(accept),
                            now + std::chrono::milliseconds(options.ticket_timeout_ms)});
  return ticket;
}

absl::StatusOr<UcxTickets::Ticket> UcxTickets::Take(absl::string_view token, Time now) {
  Ticket ticket;
  {
    MutexLock lock(&mu_);
    // Compares with all of them, so that the time taken reveals nothing.
    auto found = tickets_.end();
    for (auto one = tickets_.begin(); one != tickets_.end(); ++one) {
      if (UcxSecretsEqual(one->token, token)) found = one;
    }
    if (found == tickets_.end()) {
      return absl::UnauthenticatedError("the peer's token was never issued, or is used up");
    }
    ticket = std::move(*found);
    tickets_.erase(found);
  }
  if (ticket.until <= now) return absl::UnauthenticatedError("the peer's token has expired");
  return ticket;
}

}  // namespace strata
