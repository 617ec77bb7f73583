// The cluster's members and its coordinator. A state machine without input or output: heartbeats
// and times go in, heartbeats and the time of the next wake come out. Lives on the node's loop
// thread; tests/sim checks it under a fake clock.
//
// Every node exchanges a heartbeat with every other it knows each heartbeat_ms. A reaches B while B
// answers A's requests; two nodes are linked when each reaches the other. Nodes report to
// each other which nodes they reach, so that each knows the graph.
//
// Groups. A node that obeys nobody coordinates a group of its own, and groups merge (Garcia-Molina,
// "Elections in a distributed computing system", 1982: the invitation algorithm): so starting up,
// replacing a lost coordinator and healing a partition are one mechanism. Two groups merge only if
// all their nodes are linked with each other; a coordinator that sees two of its members unlinked
// releases one of them. So each group is always a clique of the links, and a clique apart from
// others ends as one group. Of two coordinators the one with fewer live requests yields, then the
// one with fewer members, then the one that coordinated for less time, then the greater id.
// Requests and time count by powers of two, so that both sides see the same order. The one that
// yields first asks and is welcomed; then it releases its members and sends them to the other. So a
// newcomer or a flapping node, small and young, never displaces a working coordinator.
//
// Moves. Where links are not transitive (A–B, B–C, not A–C), two groups that cannot merge may share
// a node that is linked with all of both. A member that has been linked with all of a greater group
// than its own for move_after_ms reports that, and its coordinator releases it to that group: one
// at a time, and none while its group has live requests. Groups grow at the cost of lesser ones
// only, so moves come to an end.
//
// Calm. Where two members both report that nothing has changed for calm_after_ms, and no message
// between them was lost for longer, one sends requests and the other answers: the coordinator, or
// the lesser id, each calm_ms. A new request shows that the last answer was received, so the other
// need not send requests, but does so now and then, to check that it could. Two members that do not
// coordinate send requests the less often, the more members there are: except to its coordinator, a
// node of a large group sends as many messages as one of a small group. The coordinator notices a
// member's silence, and each member the coordinator's, after gone_after_ms as ever; two members of
// more than calm_nodes notice each other's later. Any change ends the calm.
//
// Lost messages. A node that does not answer gets requests more often before it counts as not
// reached. Whatever is lost, no node obeys two coordinators. While up to a fifth of all messages is
// lost, nodes agree within the usual time, 5 s after the last change, and stay together. With 30 %
// they agree, too (within 10 s), but not for good: five nodes lose one of them about once an hour,
// for a second.
//
// Leases (Gray and Cheriton, 1989). A node obeys a coordinator for a lease that it grants in answer
// to an offer, and nobody else until that ends on its own clock or the coordinator releases it. The
// coordinator counts a lease from when it sent the offer, the member from when it granted it and
// clock_drift_max longer, so the coordinator's ends first. A node that starts grants nothing for
// one lease, since it may have granted one before. So no node ever obeys two coordinators, whatever
// is lost, late, or out of order.
//
// Refusals. Where a process has ended and its machine has not, the machine's system refuses
// connections to it (ECONNREFUSED), which shows in a moment what silence shows in seconds. A node
// that refused for refused_ms, and was silent for silent_ms all the while, has ended: it is gone,
// and so is every lease that it gave or was granted. A living node is refused only where a firewall
// answers in its name; it is heard all the same, after which its refusals mean nothing until it
// starts again. A firewall may have been there before the silence, unnoticed: so a member takes its
// coordinator for ended only if that was not calm and had answered a request of the member within
// silent_ms before it was heard last. Otherwise the member obeys until its lease ends, whatever
// refuses. One promise is weaker there: where such a firewall keeps both sides from each other, or
// comes up less than a second before a coordinator falls silent otherwise, a member may obey
// another before the first one's lease has ended by that one's clock. Epochs keep the order even
// then.
//
// Shared ids. A machine that was cloned, or restored beside the one that it replaces, has an id
// that is taken. Each process draws a nonce when it starts, and a node gives its place for an id to
// one process: the first that it hears, for as long as that is heard within gone_after_ms and does
// not leave. Other processes with that id are refused, with the address of the one that has the
// place. A process that was started again is the only one that is heard, so it has its place after
// gone_after_ms of silence, and after silent_ms where it has the same addresses. That both live is
// known once both were heard for a while. Then each gets a report of the other, and one rule
// decides which of them leaves the cluster until the other is gone: one that is in no group with
// others, nor lately was; else the one that started later; else the one of the greater nonce. Where
// groups meet that each have the id, they become one in this way. A group most of whose nodes share
// their ids with others is another cluster made from the same image: it stays apart, and both
// serve. A process that goes on from an old snapshot hears from others of messages of its own that
// it has not sent yet: it starts over, as if it were started again, with another nonce.
//
// Desired state. Each node has a list of the models that are to stay loaded, also on its disk. A
// list has a version: the epoch of the coordinator that changed it, and the number of the change in
// that epoch. A member takes its coordinator's list if that is newer than its own, and a
// coordinator the newest that its members have: so an older list, of a node that was away or of a
// restored disk, never undoes a newer one, and of two groups that both changed it the greater
// version stays. Epochs and leaders come and go without a new version: only a person's change makes
// one. A member sends its list only until its coordinator has it, and then the version that is on
// its disk.
//
// Epochs. A node takes no epoch below the newest it obeyed (its floor). A coordinator claims an
// epoch when it gains its first member or plans (NextEpoch), and a higher one only when it plans
// again or admits a node whose floor is above its own: so a node that was away and did nothing
// comes back without raising it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/membership/membership_graph.h"
#include "coordinator/membership/membership_types.h"

namespace strata {

struct MembershipOptions {
  int64_t heartbeat_ms = 250;
  int64_t suspect_after_ms = 1000;
  int64_t gone_after_ms = 2000;  // also how long a lease lasts
  int64_t retry_gone_ms = 500;   // between heartbeats to a node that is gone
  int64_t retry_late_ms = 100;   // to a node that owes the answers of two heartbeats
  int64_t calm_ms = 1000;        // between heartbeats of a calm pair; half of gone_after_ms at most
  int64_t calm_after_ms = 5000;  // without a change
  int64_t calm_lossless_ms = 10000;  // since a message was lost between the two
  size_t calm_nodes = 8;             // in a group; in larger ones members send fewer requests
  int64_t settle_ms = 300;           // a new coordinator waits for others before it joins any
  int64_t join_wait_ms = 750;        // a released node waits so long for its next coordinator
  int64_t move_after_ms = 5000;    // how long a member prefers another group before it asks to move
  int64_t refused_ms = 200;        // from the first refusal to one after which a node has ended
  int64_t silent_ms = 625;         // of a node that has ended by then, two and a half heartbeats
  int64_t placed_ms = 60'000;      // a node lately was in a group with others
  double clock_drift_max = 0.005;  // rates of two clocks differ by less
  size_t nodes_max = 1024;         // known at a time, this one among them
  size_t addresses_max = 32;       // kept of a node
  size_t known_per_heartbeat = 32;  // records passed on in one

  // Breaks the protocol, to show that the simulator notices.
  bool unsafe_ignore_lease = false;
};

// Times are microseconds of one clock that never goes back, the same in all calls; it must go on
// while the machine sleeps (CLOCK_BOOTTIME), or a coordinator that slept would believe in leases
// that ended.
class Membership {
 public:
  // `self` needs an id, a boot and a cluster. Nothing is sent before the first Tick.
  Membership(const MembershipOptions& options, NodeRecord self, int64_t now_us);

  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  // Discovery or the user reports that this node exists. Another cluster's is kNotFound, and not
  // kept. Addresses add to what is known. kResourceExhausted: nodes_max are known and none is gone.
  absl::Status Learn(const NodeRecord& record, int64_t now_us);

  // This node's addresses changed; others learn them with the next heartbeats.
  void SetAddresses(std::vector<std::string> addresses, int64_t now_us);

  // The newest desired state that this node knows: the models that are to stay loaded; never null.
  const DesiredStatePtr& desired() const { return desired_; }
  // This node's disk has it. REQUIRES: before the first Tick.
  void OpenDesired(DesiredStatePtr desired);
  // The disk has that version, or cannot have it.
  void OnDesiredStored(const DesiredVersion& version, int64_t now_us);
  // A person changes it through this node. Members get it at once. Models over kDesiredStatesMax or
  // kDesiredStateBytesMax are left out. kFailedPrecondition unless this node coordinates.
  absl::Status ChangeDesired(std::vector<std::string> models, int64_t now_us);
  // Of a coordinator: no member has a newer one that is not known here.
  bool KnowsMembersDesired() const;
  // Of a coordinator: its disk and its members' have desired(), or cannot.
  bool IsDesiredStored() const;
  // Of a coordinator: another one that this node is linked with has the same or a newer one, and
  // comes first.
  bool LeavesDesiredToAnother(int64_t now_us) const;

  // Requests whose clients are connected to this node.
  void SetLiveRequests(uint32_t n) { live_requests_ = n; }

  // While this node has work for others, nodes must notice failures soon: not calm.
  void SetBusy(bool busy) { busy_ = busy; }

  // Returns the heartbeats that are due. Send each to the node at any of its addresses, with a few
  // in flight to one node at most and the rest dropped, and pass the answer to OnReply.
  std::vector<OutgoingHeartbeat> Tick(int64_t now_us);

  // When to call Tick next; may change with each call of any other function.
  int64_t next_wake_us() const { return next_wake_us_; }

  // A request without a receiver, for an address whose node is unknown (--peer host:port).
  Heartbeat Probe(int64_t now_us);

  // A request came in; returns the answer, or a refusal where another process has the sender's
  // place. kNotFound: from another cluster, or for another node than this. kInvalidArgument: a
  // malformed heartbeat. kResourceExhausted as in Learn. The peer gets these errors as they are.
  absl::StatusOr<Heartbeat> OnRequest(const Heartbeat& request, int64_t now_us);

  // The answer to a request sent by Tick or Probe. Errors as OnRequest; kAlreadyExists: the answer
  // is from another process than the one that has the node's place.
  absl::Status OnReply(const Heartbeat& reply, int64_t now_us);

  // A process with the id of `node`, which may be this node, answers at some address. See "Shared
  // ids"; no effect if it is the one that has the place.
  void OnProcess(const NodeId& node, const OtherProcess& process, int64_t now_us);
  // This process, as others report it; without its address.
  OtherProcess Self(int64_t now_us) const;

  // Connections to all addresses where the node had answered lately were tried at `tried_us` and
  // refused (ECONNREFUSED). See "Refusals". Try again soon, until the node is gone or heard.
  void OnRefused(const NodeId& node, int64_t tried_us, int64_t now_us);

  // The node was removed from the cluster: it is gone, and with it every lease that it gave or was
  // granted. REQUIRES: no message of it is passed to this object from then on, unless it has become
  // a member again.
  void Remove(const NodeId& node, int64_t now_us);

  // Says good-bye: releases members, and obeys and grants nothing any more. Call Tick once more and
  // send its heartbeats.
  void Leave(int64_t now_us);

  // Rises whenever view() changes, apart from its times.
  uint64_t changes() const { return changes_; }

  // As of the last call of anything. Valid until the next call. Costs O(nodes) after a change.
  const ClusterView& view();

  // For a new plan: raises this coordinator's epoch and returns it. kFailedPrecondition unless this
  // node coordinates.
  absl::StatusOr<ClusterEpoch> NextEpoch(int64_t now_us);

  // The coordinator that this node obeys at that time; nobody while between two. Never allocates.
  NodeId obeys(int64_t now_us) const;
  // Of the coordinator that this node obeys or last obeyed.
  const ClusterEpoch& epoch() const { return epoch_; }
  // Whether this node coordinates and `node`'s lease is valid at that time (always, for this node):
  // only then may it give the node orders.
  bool HoldsLease(const NodeId& node, int64_t now_us) const;

 private:
  // A node's coordinator: none, itself, or another by a lease.
  enum class Role { kStarting, kFree, kMember, kCoordinator, kLeft };

  static constexpr int64_t kNever = INT64_MAX;

  // Another process with the id of a live node. One of them, if there are several.
  struct Challenger {
    OtherProcess process;  // as of `last_us`
    int64_t first_us = 0;  // when it was heard
    int64_t last_us = 0;
    int64_t until_us = 0;  // forgotten, if it is not heard again
    bool shown = false;    // in view_
  };

  // The state of another node. Indexed as in graph_. The fields that each heartbeat needs come
  // first and are in two cache lines: with hundreds of nodes, waiting for memory is what a
  // heartbeat costs.
  struct alignas(64) Peer {
    // As it reported itself, in its boot `boot`; 0: it never sent a message to this node.
    uint64_t boot = 0;
    uint64_t nonce = 0;                                         // of the process that has the place
    std::shared_ptr<const HeartbeatBody> said = NothingSaid();  // never null
    int64_t heard_sent_us = 0;                                  // sent_us of their newest message
    uint64_t details_version = 0;
    uint64_t has_my_details = 0;

    // By this node's clock.
    int64_t last_heard_us = 0;
    int64_t answered_us = 0;  // when their newest answered request was sent
    int64_t last_sent_us = 0;
    int64_t requested_us = 0;    // the newest request, by its stamp
    int64_t dialled_us = 0;      // when the newest that it answered was sent
    int64_t quiet_until_us = 0;  // no request before, since the pair is calm
    int64_t lossy_until_us = 0;  // an answer was missing

    ClusterView::State state = ClusterView::State::kUnheard;
    bool other_version = false;
    bool leaving = false;
    bool ended = false;           // see "Refusals"; until it is heard again
    bool always_refuses = false;  // see "Refusals": it lives nevertheless
    bool welcomes_me = false;
    bool details_incomplete = false;  // more ids than nodes_max

    // While this node coordinates.
    int64_t lease_until_us = 0;    // of this member's lease
    int64_t invited_until_us = 0;  // an offer to a node that is no member yet
    int64_t released_us = 0;       // grants of older offers are void

    std::unique_ptr<Challenger> challenger;  // null: none lately
    std::shared_ptr<const HeartbeatDetails> details;
    IndexSet members;                  // if it coordinates; without a bound until details come
    std::vector<std::string> learned;  // addresses from discovery, newest first
    int64_t since_us = 0;
    int64_t first_refused_us = 0;  // the first refused try since it started; 0: none
    int64_t refused_us = 0;        // the same, since it was last heard
    size_t known_next = 0;         // where the next round of records to pass on begins
  };

  // The body of a node that has sent nothing since it started.
  static std::shared_ptr<const HeartbeatBody> NothingSaid();

  // The order of coordinators: the greater one stays.
  struct Rank {
    uint32_t requests, size, seniority;
    NodeId id;
    bool operator<(const Rank& other) const;
  };

  // membership_peers.cc and membership.cc: the state of other nodes, and messages.
  size_t AddPeer(const NodeId& id);
  bool EvictPeer();
  void HasRecord(size_t i);  // heartbeats are sent to it from now on
  void TakeGossip(const std::shared_ptr<const NodeRecord>& record, int64_t now_us);
  void Restarted(size_t i, int64_t now_us);
  bool AnsweredUntilSilent(const Peer& peer) const;
  void Ended(size_t i, int64_t now_us);
  bool HasAllLiveNodes(int64_t now_us) const;
  absl::Status Check(const Heartbeat& message) const;
  absl::StatusOr<size_t> Take(const Heartbeat& message, int64_t now_us);
  void TakeDetails(size_t i, const Heartbeat& message);
  template <typename Set>
  void TakeList(const std::vector<NodeId>& before, const std::vector<NodeId>& after,
                bool* incomplete, Set set);
  int64_t HeartbeatMs(size_t i, int64_t now_us) const;
  // See "Calm".
  bool Calm(size_t i, int64_t now_us) const;
  bool SendsRequests(size_t i) const;
  int64_t CalmUs(size_t i) const;
  void Rest(size_t i, int64_t now_us);
  void Disturb(size_t i, int64_t now_us);
  void UpdateCalm(int64_t now_us);
  int64_t HeardUs(const Peer& peer) const;
  int64_t SuspectAfterUs(const Peer& peer) const;
  std::shared_ptr<const HeartbeatBody> Body(int64_t now_us);
  Heartbeat Make(size_t i, std::shared_ptr<const HeartbeatBody> body, int64_t now_us);
  int64_t NextStamp(int64_t now_us);
  void AddKnown(size_t i, Heartbeat* message);
  void BeginBoot(uint64_t boot, int64_t now_us);
  void Hurry(size_t i, int64_t now_us);
  void RefreshDetails();
  bool HasDetails(size_t i) const;
  bool HasCoordinatorDesired() const;
  void TakeDesired(const DesiredStatePtr& desired);
  void FollowDesired(size_t i, int64_t now_us);
  void AnnounceDesired(int64_t now_us);
  void UpdateStates(int64_t now_us);
  bool Fresh(const Peer& peer, int64_t now_us) const;
  bool IsCoordinator(size_t i) const;

  // membership_identity.cc: processes that share an id.
  bool HasPlace(size_t i, const Heartbeat* challenge, int64_t now_us) const;
  void Challenge(size_t i, OtherProcess process, int64_t lasts_us, int64_t now_us);
  bool BothLive(size_t i, int64_t now_us) const;
  void UpdateChallenger(size_t i, int64_t now_us);
  bool IsToThisProcess(const Heartbeat& message) const;
  Heartbeat Refusal(const Heartbeat& request, int64_t now_us);
  absl::StatusOr<Heartbeat> OnOwnId(const Heartbeat& request, int64_t now_us);
  void TakeOther(const OtherProcess& other, int64_t now_us);
  bool KnowsRival(int64_t now_us) const;
  bool Loses(const OtherProcess& other, int64_t now_us) const;
  bool InGroup() const;
  bool InContestedGroup(int64_t now_us) const;
  void StepOut(int64_t now_us);
  void StartOver(int64_t now_us);
  void AddSharedIds(ClusterView* view) const;

  // membership_group.cc: leases and groups.
  void Advance(int64_t now_us);
  void TakeLease(size_t i, const Heartbeat& message, int64_t now_us);
  void TakeGrant(size_t i, const Heartbeat& message, int64_t now_us);
  void TakeWants(size_t i, int64_t now_us);
  void FillLease(size_t i, int64_t now_us, Heartbeat* message);
  void BecomeCoordinator(int64_t now_us);
  void BecomeFree(size_t next, int64_t now_us);
  void Yield(size_t next, int64_t now_us);
  void DropMember(size_t i);
  void DropLapsed(int64_t now_us);
  void DropUnlinked(int64_t now_us);
  void ChooseWanted(int64_t now_us);
  void ChooseMove(int64_t now_us);
  bool MayRelease(size_t i, int64_t now_us) const;
  void SetWants(size_t i, int64_t now_us);
  void ClaimEpochAbove(uint64_t counter);
  bool WouldWelcome(size_t i, int64_t now_us) const;
  Rank MyRank(int64_t now_us) const;
  Rank RankOf(size_t i) const;
  uint32_t GroupRequests() const;

  void BuildView();

  const MembershipOptions options_;
  const int64_t lease_us_;      // as a coordinator counts it
  const int64_t obedience_us_;  // as a member counts it
  const std::shared_ptr<const std::string> cluster_;

  NodeRecord self_;
  ReachGraph graph_;  // this node is number 0
  std::vector<Peer> peers_;
  // Of each peer; null: some node reaches it, but none has sent its record. Apart from peers_,
  // since many are passed on at once.
  std::vector<std::shared_ptr<const NodeRecord>> records_;
  // To each peer; kNever: it has no record. Apart from peers_, since each wake reads all of them.
  std::vector<int64_t> send_due_us_;
  int64_t now_us_ = 0;  // of the last call
  int64_t awake_since_us_ = 0;
  int64_t started_us_ = 0;
  int64_t last_stamp_us_ = 0;
  int64_t next_wake_us_ = 0;
  int64_t next_check_us_ = 0;
  uint64_t details_version_ = 1;
  bool details_stale_ = true;
  std::shared_ptr<const HeartbeatDetails> details_;
  std::shared_ptr<const HeartbeatBody> body_;  // as sent last; null: none yet
  uint32_t live_requests_ = 0;

  Role role_ = Role::kStarting;
  ClusterEpoch epoch_;  // of the coordinator obeyed
  ClusterEpoch floor_;
  size_t obeyed_ = ReachGraph::kNone;  // a member's coordinator
  int64_t granted_us_ = 0;             // its newest offer that was granted, by its clock
  int64_t obeys_until_us_ = 0;         // the lease granted, or the wait after a start
  size_t wanted_ = ReachGraph::kNone;  // the coordinator to join
  int64_t wanted_until_us_ = 0;        // of a free node
  int64_t leader_since_us_ = 0;        // a coordinator's
  DesiredStatePtr desired_ = NoDesiredState();
  DesiredVersion stored_;               // that the disk has
  int64_t welcomed_us_ = 0;             // when this coordinator last welcomed another
  int64_t void_before_us_ = 0;          // grants of older offers are void
  int64_t unlinked_since_us_ = 0;       // since when two members are unlinked; 0: none are
  size_t move_to_ = ReachGraph::kNone;  // the greater group's coordinator that a member sees
  int64_t move_since_us_ = 0;           // since when
  int64_t released_member_us_ = 0;      // when this coordinator last released one
  IndexSet heard_;                      // alive or suspected, with a record
  const IndexSet nobody_;
  IndexSet members_;      // a coordinator's, itself among them
  int64_t lapse_us_ = 0;  // no member's lease ends before
  mutable uint64_t member_requests_ = 0;
  mutable bool member_requests_stale_ = true;  // a member's number, or the members, changed

  bool settled_ = false;

  // Another process with this one's id, as last reported.
  OtherProcess rival_;
  int64_t rival_since_us_ = 0;
  int64_t rival_reported_us_ = 0;  // 0: never
  int64_t placed_until_us_ = 0;    // until then this node counts as placed (OtherProcess)
  bool out_ = false;               // another process has this one's place

  bool busy_ = false;
  bool calm_ = false;
  int64_t calm_from_us_ = 0;
  uint64_t calm_changes_ = 0;  // changes_ and details_version_ as UpdateCalm() last saw them
  uint64_t calm_details_ = 0;

  uint64_t changes_ = 1;
  uint64_t view_changes_ = 0;
  ClusterView view_;
};

}  // namespace strata
