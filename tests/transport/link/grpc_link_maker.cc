#include <utility>
#include <vector>

#include "tests/transport/link/link_maker.h"
#include "tests/transport/rpc/grpc_server.h"

namespace strata {
namespace {

class GrpcLinkMaker final : public LinkMaker {
 public:
  absl::StatusOr<std::unique_ptr<Link>> Dial(Options options, AcceptLinkFn accept,
                                             Link::Receiver* receiver) override {
    GrpcLinkAcceptor::Options server;
    server.allow_mixed_versions = options.acceptor_allows_mixed;
    servers_.push_back(std::make_unique<GrpcServer>(server, std::move(accept)));
    DialOptions dial;
    dial.address = servers_.back()->address();
    dial.hello = std::move(options.hello);
    dial.allow_mixed_versions = options.dialler_allows_mixed;
    dial.timeout_ms = 30'000;
    return DialGrpcLink(std::move(dial), receiver);
  }

 private:
  std::vector<std::unique_ptr<GrpcServer>> servers_;
};

}  // namespace

std::unique_ptr<LinkMaker> MakeLinkMaker() { return std::make_unique<GrpcLinkMaker>(); }

}  // namespace strata
