// A node's part in its cluster: runs membership (coordinator/membership/membership.h) on the loop.
// Finds nodes by mDNS and by the addresses that the user gave, tries every address of each node,
// keeps the fastest that works, and sends heartbeats over it. Loop thread, unless stated otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "coordinator/cluster/peer_paths.h"
#include "coordinator/cluster/peer_transport.h"
#include "coordinator/membership/membership.h"
#include "proto/cluster.pb.h"
#include "transport/base/clock.h"
#include "transport/base/event_loop.h"
#include "transport/base/host_lookup.h"
#include "transport/base/peer_addresses.h"
#include "transport/discovery/discovery.h"

namespace strata {

// The most --peer options, addresses of them all, and heartbeats in flight to one node.
inline constexpr size_t kStaticPeersMax = 64;
inline constexpr int kHeartbeatsInFlightMax = 4;
// Certificates are read again each second, and heartbeats are in flight for a second at most.
inline constexpr int64_t kReturnMs = 5'000;
// Nodes without a key that are reported; more are not.
inline constexpr size_t kWaitingNodesMax = 16;

// The clock that membership needs: it runs on while the machine sleeps. Lives as long as the
// process.
Clock* SleeplessClock();

class ClusterRuntime final : private Discovery::Listener {
 public:
  struct Options {
    NodeRecord self;      // its addresses are filled in
    std::string key_id;   // of the cluster's key at first; empty: it has none
    std::string id_file;  // holds the node's id; empty: no file does
    // host:port of possible nodes; a host's name stands for all of its addresses, and is looked up
    // again and again.
    std::vector<std::string> peers;
    Discovery::Starter discovery = &Discovery::StartMdns;  // null: `peers` only
    decltype(&LookUpHost) look_up = &LookUpHost;
    MembershipOptions membership;
    int64_t answer_ms = 1'000;           // a request unanswered for so long has failed
    int64_t peer_retry_ms = 1'000;       // between requests to an address of `peers`
    int64_t look_up_ms = 5'000;          // from the end of a name's look-up to the next
    int64_t interfaces_poll_ms = 1'000;  // how soon a change of addresses is noticed
    int64_t connect_probe_ms = 100;      // between probes whether a process has ended
  };

  // `loop` and `clock` outlive it. Sends nothing before Start().
  ClusterRuntime(EventLoop* loop, const Clock* clock, Options options,
                 std::unique_ptr<PeerTransport> transport);
  ~ClusterRuntime() override;

  // Starts. Where mDNS cannot be used it logs that and goes on without. Once; on the loop thread,
  // or before the loop runs.
  struct Listening {
    HostPort address;                    // the bound address; the host may mean all interfaces
    std::vector<std::string> advertise;  // host:port announced instead of the interfaces' addresses
  };
  void Start(Listening listening);

  // Says good-bye to the others and stops; `done` is called soon after on the loop, whether or not
  // they received it. Once.
  void Leave(absl::AnyInvocable<void() &&> done);

  // Called after each change of view(), not from inside any call of this class.
  void OnChange(absl::AnyInvocable<void()> fn) { on_change_ = std::move(fn); }

  const NodeId& id() const { return options_.self.id; }
  // As of now; valid until the loop's next turn.
  const ClusterView& view() { return membership_.view(); }
  Membership* membership() { return &membership_; }

  // The addresses that this node announces, best guess first.
  const std::vector<std::string>& own_addresses() const { return own_addresses_; }

  // The best address of `node` at present; empty: none is known to work.
  std::string AddressOf(const NodeId& node) const;
  // If this node is alone: the others that it should reach but does not, for people, without those
  // that said good-bye or have ended. Empty: none, or it is not alone.
  std::string MissedNodes();
  // The response to GetCluster.
  wire::GetClusterResponse Describe();
  // Why this node is in no cluster: another process has its id and its place. Empty: it is not
  // refused.
  std::string WhyRefused();
  // As Membership's, and sends what follows at once.
  absl::Status ChangeDesired(std::vector<std::string> models);
  void OnDesiredStored(const DesiredVersion& version);
  bool LeavesDesiredToAnother() { return membership_.LeavesDesiredToAnother(clock_->NowUs()); }
  // For a new plan. kFailedPrecondition unless this node coordinates.
  absl::StatusOr<wire::Epoch> NextEpoch();

  // This node, its cluster and the cluster's key, on one line: a file with another line is not this
  // node's.
  std::string OwnerLine() const;

  // The cluster's key has changed; announces it by mDNS.
  void SetKeyId(std::string key_id);
  // `node` does not get the new key: this node drops it and ignores it from now on.
  void Remove(const NodeId& node);
  // The old key no longer gives access: a removed node that is back has the new one, and may
  // return. Takes effect after kReturnMs, when calls that were in flight have ended.
  void LetRemovedReturn();

  // Requests to the service Cluster. `from_host`: the sender's host, empty if unknown.
  absl::StatusOr<wire::Heartbeat> Exchange(const wire::Heartbeat& request,
                                           const std::string& from_host);
  wire::IdentifyResponse Identify() const;

 private:
  struct Peer {
    PeerPaths paths{PeerPaths::Options()};
    uint64_t nonce = 0;  // of the process at their end
    int in_flight = 0;   // heartbeats
    // The newest heartbeat for which no path worked; sent as soon as one does.
    std::unique_ptr<Heartbeat> waiting;
    int64_t waiting_us = 0;
    // While probes find out whether its process has ended.
    bool connect_probing = false;
    std::unique_ptr<EventLoop::Handle> next_connect_probe;
  };
  // An address that the user gave, or that a name has; its node is not known before it answers.
  struct StaticPeer {
    std::string name;  // that has the address, as the user gave it; empty: none
    NodeId node;       // that answered last
    bool pending = false;
    bool found = false;     // by mDNS, with this node's id
    std::string complaint;  // the last one logged
  };
  // A host's name that the user gave.
  struct PeerName {
    HostPort name;
    int64_t next_us = 0;  // when it is looked up again
    std::string complaint;
    std::unique_ptr<EventLoop::Handle> look_up;  // under way
  };

  void OnFound(const DiscoveryRecord& record) override;
  void OnLost(const std::string& node_id) override;
  void OnWaiting(const NodeId& node, const DiscoveryRecord& record);

  void StartDiscovery();
  void LeaveNow();
  // Whether the node was removed: nothing is received from it or sent to it.
  bool IsRemoved(const NodeId& node) const { return removed_.contains(node); }
  bool MayReturn(const NodeId& node);  // if so, it is no longer removed
  void Pump();                         // sends the heartbeats that are due
  bool IsOfAnotherProcess(const NodeId& node, const wire::OtherProcess& process);
  void OnProcess(const NodeId& node, const std::string& address, const wire::OtherProcess& process);
  void OnOwnIdFound(const DiscoveryRecord& record);
  std::vector<wire::SharedId> SharedIds();
  void LogSharedIds();
  void LogSharedNames();
  void Settle();  // after every call of membership: reports changes, sets the next wake
  void ReadInterfaces();
  std::vector<std::string> OwnAddresses() const;
  Peer& PeerOf(const NodeId& node);
  void TakeAddresses();
  void Observe(const NodeId& node, const std::string& from_host);
  void StartProbingStaticPeers();
  void ProbeStaticPeers();
  void OnStaticReply(const std::string& address, absl::StatusOr<wire::Heartbeat> reply);
  void LookUpPeerNames();
  void OnLookedUp(PeerName* peer, HostAddresses addresses);

  void Failed(const NodeId& node, const std::string& address, int64_t sent_us,
              const absl::Status& why);
  // The other nodes have changed the key without this node.
  void OnRemoved(const absl::Status& why);
  void ProbeAt(const NodeId& node);
  void OnConnectProbed(const NodeId& node, int64_t tried_us, bool refused);

  void SendTo(const NodeId& node, Heartbeat message);
  void SendOver(const NodeId& node, const std::string& address, const Heartbeat& message);
  void SendProbes(const NodeId& node);
  void OnProbed(const NodeId& node, const std::string& address, int64_t sent_us,
                const absl::StatusOr<wire::IdentifyResponse>& response);

  // Wraps a callback of the transport or the loop so that it does nothing once this object is gone.
  template <typename Fn>
  auto WhileAlive(Fn fn) {
    return [alive = std::weak_ptr(alive_), fn = std::move(fn)](auto&&... arguments) mutable {
      if (!alive.expired()) fn(std::forward<decltype(arguments)>(arguments)...);
    };
  }

  // Constant.
  EventLoop* const loop_;
  const Clock* const clock_;
  const Options options_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // watched by WhileAlive()

  Listening listening_;  // since Start()
  const std::unique_ptr<PeerTransport> transport_;
  Membership membership_;
  uint64_t changes_ = 0;  // of membership_, as last handled
  absl::AnyInvocable<void()> on_change_;
  bool change_posted_ = false;
  int in_flight_ = 0;  // heartbeats to all nodes
  bool leaving_ = false;
  bool logged_removed_ = false;
  bool logged_refused_ = false;
  std::map<NodeId, int64_t> logged_shared_ids_;  // ids, and when that was logged; a few
  std::map<std::string, int64_t> logged_names_;
  std::set<PrintableText> logged_keys_;  // of other clusters; a few
  absl::AnyInvocable<void() &&> left_;

  std::map<NodeId, std::unique_ptr<Peer>> peers_;
  std::map<std::string, StaticPeer> static_peers_;  // by address
  std::vector<PeerName> peer_names_;                // constant but for what is in each
  std::map<NodeId, DiscoveryRecord> waiting_;       // for a key
  std::string key_id_;
  std::map<NodeId, int64_t> removed_;  // and when they may return, by the clock
  std::vector<InterfaceAddress> interfaces_;
  std::vector<std::string> own_addresses_;
  std::unique_ptr<Discovery> discovery_;

  std::unique_ptr<EventLoop::Handle> wake_;
  std::unique_ptr<EventLoop::Handle> interfaces_timer_;
  std::unique_ptr<EventLoop::Handle> static_timer_;
  std::unique_ptr<EventLoop::Handle> leave_timer_;
};

}  // namespace strata
