// A node's part in its cluster: runs membership (coordinator/membership/membership.h) on the loop.
// Finds nodes by mDNS and by the addresses a person gave, tries every address of each, keeps the
// fastest that works, and carries heartbeats over it. Loop thread, but for what is said otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
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
#include "transport/base/peer_addresses.h"
#include "transport/discovery/discovery.h"

namespace strata {

// --peer options, and heartbeats under way to one node, at most.
inline constexpr size_t kStaticPeersMax = 64;
inline constexpr int kHeartbeatsUnderWayMax = 4;
// Certificates are read again each second, and heartbeats are under way for a second at most.
inline constexpr int64_t kReturnMs = 5'000;
// Nodes without a key that are told of; more are not.
inline constexpr size_t kWaitingNodesMax = 16;

// The clock that membership needs: it goes on while the machine sleeps. Lives as long as the
// process.
Clock* SleeplessClock();

class ClusterRuntime final : private Discovery::Listener {
 public:
  struct Options {
    NodeRecord self;                 // its addresses are filled in
    std::string key_id;              // of the cluster's key at first; empty: it has none
    std::string id_file;             // that holds the node's id; empty: none does
    std::vector<std::string> peers;  // host:port of nodes that may be there
    Discovery::Starter discovery = &Discovery::StartMdns;  // null: by `peers` alone
    MembershipOptions membership;
    int64_t answer_ms = 1'000;           // a request unanswered for so long has failed
    int64_t peer_retry_ms = 1'000;       // between questions to an address of `peers`
    int64_t interfaces_poll_ms = 1'000;  // how soon a change of addresses is seen
    int64_t connect_probe_ms = 100;      // between questions whether a process has ended
  };

  // `loop` and `clock` outlive it. Sends nothing before Start().
  ClusterRuntime(EventLoop* loop, const Clock* clock, Options options,
                 std::unique_ptr<PeerTransport> transport);
  ~ClusterRuntime() override;

  // Begins. Where mDNS cannot be used it says so to the log and goes on without. Once; loop thread,
  // or before it runs.
  struct Listening {
    HostPort address;                    // really listened on; the host may mean all interfaces
    std::vector<std::string> advertise;  // host:port told instead of the interfaces' addresses
  };
  void Start(Listening listening);

  // Says good-bye to the others and stops; `done` is called soon after on the loop, whether they
  // heard or not. Once.
  void Leave(absl::AnyInvocable<void() &&> done);

  // Called after each change of view(), not from inside any call of this class.
  void OnChange(absl::AnyInvocable<void()> fn) { on_change_ = std::move(fn); }

  const NodeId& id() const { return options_.self.id; }
  // As of now; valid until the loop's next turn.
  const ClusterView& view() { return membership_.view(); }
  Membership* membership() { return &membership_; }

  // What this node tells others to dial, best guess first.
  const std::vector<std::string>& own_addresses() const { return own_addresses_; }

  // The address by which this node reaches that one best at present; empty: none is known to work.
  std::string AddressOf(const NodeId& node) const;
  // Of a node that is alone: the others that it should reach and does not, for people; those that
  // said good-bye or have ended are not missed. Empty: none, or it is not alone.
  std::string MissedNodes();
  // The answer to GetCluster.
  wire::GetClusterResponse Describe();
  // Why this node is in no cluster: another process has its id and its place. Empty: it may be in
  // one.
  std::string WhyRefused();
  // As of Membership, and sent at once.
  void SetDesiredState(std::vector<std::string> desired_state);
  // For a new plan. kFailedPrecondition unless this node coordinates.
  absl::StatusOr<wire::Epoch> NextEpoch();

  // The cluster's key has changed; others hear it by mDNS.
  void SetKeyId(std::string key_id);
  // That node does not get it: this one has nothing to do with it any more.
  void Remove(const NodeId& node);
  // The key of before lets nobody in any more: whoever was removed and is here again has the new
  // one. From kReturnMs on, when what was under way has ended.
  void LetRemovedReturn();

  // Requests that came in over the service Cluster. `from_host`: where from, empty if unknown.
  absl::StatusOr<wire::Heartbeat> Exchange(const wire::Heartbeat& request,
                                           const std::string& from_host);
  wire::IdentifyResponse Identify() const;

 private:
  struct Peer {
    PeerPaths paths{PeerPaths::Options()};
    uint64_t nonce = 0;  // of the process that they are to
    int under_way = 0;   // heartbeats
    // The newest heartbeat that had no way to go; sent as soon as there is one.
    std::unique_ptr<Heartbeat> waiting;
    int64_t waiting_us = 0;
    // While it is found out whether its process has ended.
    bool connect_probing = false;
    std::unique_ptr<EventLoop::Handle> next_connect_probe;
  };
  // An address that a person gave; its node is not known before it answers.
  struct StaticPeer {
    std::string address;
    NodeId node;  // who answered last
    bool asked = false;
    bool found = false;     // by mDNS, with this node's id
    std::string complaint;  // the last one logged
  };

  void OnFound(const DiscoveryRecord& record) override;
  void OnLost(const std::string& node_id) override;
  void OnWaiting(const NodeId& node, const DiscoveryRecord& record);

  void StartDiscovery();
  void LeaveNow();
  // Whether nothing is heard of it and nothing said to it.
  bool IsRemoved(const NodeId& node) const { return removed_.contains(node); }
  bool MayReturn(const NodeId& node);  // then it is not removed any more
  void Pump();                         // sends what is due
  bool IsOfAnotherProcess(const NodeId& node, const wire::OtherProcess& process);
  void OnProcess(const NodeId& node, const std::string& address, const wire::OtherProcess& process);
  void OnOwnIdFound(const DiscoveryRecord& record);
  std::vector<wire::SharedId> SharedIds();
  void LogSharedIds();
  void LogSharedNames();
  void Settle();  // after every call of membership: tells of changes, sets the next wake
  void ReadInterfaces();
  std::vector<std::string> OwnAddresses() const;
  Peer& PeerOf(const NodeId& node);
  void TakeAddresses();
  void Observe(const NodeId& node, const std::string& from_host);
  void StartAskingStaticPeers();
  void AskStaticPeers();
  void OnStaticReply(size_t index, absl::StatusOr<wire::Heartbeat> reply);

  void Failed(const NodeId& node, const std::string& address, int64_t sent_us,
              const absl::Status& why);
  // They have changed the key, and not for this node.
  void OnRemoved(const absl::Status& why);
  void ProbeAt(const NodeId& node);
  void OnConnectProbed(const NodeId& node, int64_t tried_us, bool refused);

  void SendTo(const NodeId& node, Heartbeat message);
  void SendOver(const NodeId& node, const std::string& address, const Heartbeat& message);
  void SendProbes(const NodeId& node);
  void OnProbed(const NodeId& node, const std::string& address, int64_t sent_us,
                const absl::StatusOr<wire::IdentifyResponse>& response);

  // Wraps what comes back from the transport, or from the loop, so that it does nothing once this
  // is gone.
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
  uint64_t changes_ = 0;  // of membership_, that were seen
  absl::AnyInvocable<void()> on_change_;
  bool change_posted_ = false;
  int under_way_ = 0;  // heartbeats to all nodes
  bool leaving_ = false;
  bool told_removed_ = false;
  bool told_refused_ = false;
  std::map<NodeId, int64_t> told_shared_;  // ids, and when that was logged; a few
  std::map<std::string, int64_t> told_names_;
  absl::AnyInvocable<void() &&> left_;

  std::map<NodeId, std::unique_ptr<Peer>> peers_;
  std::vector<StaticPeer> static_peers_;
  std::map<NodeId, DiscoveryRecord> waiting_;  // for a key
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
