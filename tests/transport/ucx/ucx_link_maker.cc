// Links over UCX between two UcxLinks in one process, by this program's transports.
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/transport/link/link_maker.h"
#include "tests/transport/ucx/ucx_test_transports.h"
#include "transport/ucx/ucx_link.h"

namespace strata {
namespace {

std::unique_ptr<UcxLinks> Start() {
  auto links = UcxLinks::Start(UcxTestOptions());
  EXPECT_TRUE(links.ok()) << links.status();
  return *std::move(links);
}

class UcxLinkMaker final : public LinkMaker {
 public:
  absl::StatusOr<std::unique_ptr<Link>> Dial(Options options, AcceptLinkFn accept,
                                             Link::Receiver* receiver) override {
    UcxOfferOptions offer;
    offer.allow_mixed_versions = options.acceptor_allows_mixed;
    absl::StatusOr<UcxTicket> ticket = acceptors_->Offer(offer, std::move(accept));
    if (!ticket.ok()) return ticket.status();
    UcxDialOptions dial;
    dial.ticket = *std::move(ticket);
    dial.hello = std::move(options.hello);
    dial.allow_mixed_versions = options.dialler_allows_mixed;
    dial.timeout_ms = 30'000;
    return diallers_->Dial(std::move(dial), receiver);
  }

 private:
  const std::unique_ptr<UcxLinks> acceptors_ = Start();
  const std::unique_ptr<UcxLinks> diallers_ = Start();
};

}  // namespace

std::unique_ptr<LinkMaker> MakeLinkMaker() { return std::make_unique<UcxLinkMaker>(); }

}  // namespace strata
