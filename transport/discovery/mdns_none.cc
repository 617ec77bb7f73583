// For systems without mDNS (STRATA_MDNS=none): there a node is given others with --peer.
#include "transport/discovery/discovery.h"

namespace strata {

absl::StatusOr<std::unique_ptr<Discovery>> Discovery::StartMdns(
    EventLoop*, Options,  // NOLINT(performance-unnecessary-value-param): others keep them
    Listener*) {
  return absl::UnimplementedError("mDNS: this build has none; name a node with --peer host:port");
}

}  // namespace strata
