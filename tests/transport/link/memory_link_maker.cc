#include <utility>

#include "tests/support/memory_link.h"
#include "tests/transport/link/link_maker.h"

namespace strata {
namespace {

class MemoryLinkMaker final : public LinkMaker {
 public:
  absl::StatusOr<std::unique_ptr<Link>> Dial(Options options, AcceptLinkFn accept,
                                             Link::Receiver* receiver) override {
    MemoryDialOptions dial;
    dial.hello = std::move(options.hello);
    dial.allow_mixed_versions = options.dialler_allows_mixed;
    dial.acceptor_allows_mixed_versions = options.acceptor_allows_mixed;
    absl::StatusOr<DialledMemoryLink> dialled =
        DialMemoryLink(std::move(dial), std::move(accept), receiver);
    if (!dialled.ok()) return dialled.status();
    return std::move(dialled->link);
  }
};

}  // namespace

std::unique_ptr<LinkMaker> MakeLinkMaker() { return std::make_unique<MemoryLinkMaker>(); }

}  // namespace strata
