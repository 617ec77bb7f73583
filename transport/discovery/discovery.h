// Discovery of other nodes on the local network without configuration. The one interface between
// the node and mDNS/DNS-SD, implemented for each system (mdns_avahi.cc) and by tests. Loop thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "transport/base/event_loop.h"
#include "transport/base/peer_addresses.h"
#include "transport/base/printable_text.h"

namespace strata {

// A node's announcement on the network. Untrusted: none of it is authenticated.
struct DiscoveryRecord {
  std::string node_id;
  PrintableText name;
  PrintableText cluster;
  PrintableText key_id;   // of the cluster's key (ClusterKey::id()); empty: it has none
  bool waits = false;     // for a key (cluster_join.h), at its port
  uint32_t protocol = 0;  // kProtocolVersion of its program
  uint64_t nonce = 0;     // of its process; 0: not announced
  std::vector<std::string> addresses;  // host:port, as gRPC takes them; not in order of quality
};

class Discovery {
 public:
  // Records of nodes followed at a time; more are ignored.
  static constexpr size_t kRecordsMax = 4096;

  class Listener {
   public:
    virtual ~Listener() = default;
    // A node is there, or its record has changed. Not called for the own record, but for one of
    // another process with the own id. Must not destroy the discovery.
    virtual void OnFound(const DiscoveryRecord& record) = 0;
    // The node withdrew its record, or the record expired. The node may still be up.
    virtual void OnLost(const std::string& node_id) = 0;
  };

  struct Options {
    DiscoveryRecord self;  // its addresses are ignored
    uint16_t port = 0;     // where `self` listens; 0: look for others only
  };
  // StartMdns(), or a test's replacement.
  using Starter = absl::StatusOr<std::unique_ptr<Discovery>> (*)(EventLoop* loop, Options options,
                                                                 Listener* listener);
  // Starts to announce `self` and to look for others by mDNS/DNS-SD (RFC 6762, RFC 6763), service
  // `_strata._tcp`, on every interface that is up, now and later. `loop` and `listener` outlive it.
  // kUnavailable: mDNS cannot be used here; kUnimplemented: this build has none.
  static absl::StatusOr<std::unique_ptr<Discovery>> StartMdns(EventLoop* loop, Options options,
                                                              Listener* listener);

  // Withdraws the own record from the network.
  virtual ~Discovery() = default;

  // Sets the addresses that others may reach this node by; each is announced on its own interface
  // only. Call it again when they change.
  virtual void Announce(const std::vector<InterfaceAddress>& addresses) = 0;
};

}  // namespace strata
