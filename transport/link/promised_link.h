// Between a peer's Hello and the open link, an acceptor waits for exactly one event: the link, or
// the news that it will not come because the peer left.
#pragma once

#include <memory>
#include <utility>

#include "transport/link/link.h"

namespace strata {

// An AcceptedLink's `on_open`. Destroyed uncalled, it calls Owner::AbandonIncoming(); called, it
// gives the link to Owner::SetIncoming(). One of them, once.
template <typename Owner>
class PromisedLink {
 public:
  explicit PromisedLink(std::shared_ptr<Owner> owner) : owner_(std::move(owner)) {}
  PromisedLink(PromisedLink&&) = default;
  ~PromisedLink() {
    if (owner_ != nullptr) owner_->AbandonIncoming();
  }
  void operator()(std::unique_ptr<Link> link) {
    std::exchange(owner_, nullptr)->SetIncoming(std::move(link));
  }

 private:
  std::shared_ptr<Owner> owner_;  // shared with the acceptor
};

}  // namespace strata
