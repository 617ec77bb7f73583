// Who is in the cluster, and who coordinates it. A state machine without input or output:
// heartbeats and times go in, heartbeats and the time of the next wake come out. Lives on the
// node's loop thread; tests/sim proves it under a fake clock.
//
// Every node exchanges a heartbeat with every other it knows each heartbeat_ms. A reaches B while B
// answers A's requests; two nodes are linked when each reaches the other. Nodes tell each other
// whom they reach, so that each knows the graph.
//
// Groups. A node that obeys nobody coordinates a group of its own, and groups merge (Garcia-Molina,
// "Elections in a distributed computing system", 1982: the invitation algorithm): so starting up,
// replacing a lost coordinator and healing a partition are one mechanism. Two groups merge only if
// all their nodes are linked with each other; a coordinator that sees two of its members unlinked
// lets one of them go. So each group is always a clique of the links, and a clique apart from
// others ends as one group. Of two coordinators the one with fewer live requests yields, then the
// one with fewer members, then the one that served shorter, then the greater id. Requests and time
// count by powers of two, so that both sides see the same order. The one that yields first asks and
// is welcomed; then it releases its members and sends them to the other. So a newcomer or a
// flapping node, small and young, never displaces a working coordinator.
//
// Moves. Where links are not transitive (A–B, B–C, not A–C), two groups that cannot merge may share
// a node that is linked with all of both. A member that has been linked with all of a greater group
// than its own for move_after_ms says so, and its coordinator lets it go there: one at a time, and
// none while its group has live requests. Groups grow at the cost of lesser ones only, so that
// ends.
//
// Calm. Where two members both say that nothing has changed for calm_after_ms, and no message
// between them was lost for longer, one asks and the other answers: the coordinator, or the lesser
// id, each calm_ms. Whoever asks again has heard the answer before, so that the other need not ask,
// but does so now and then, to see that it could. Two that do not coordinate ask the less often,
// the more members there are: but for its coordinator a node of a large group says as much as one
// of a small group. The coordinator notices a member's silence, and each member the coordinator's,
// after gone_after_ms as ever; two members of more than calm_nodes notice each other's later. Any
// change, and all is as before.
//
// Lost messages. A node that does not answer is asked more often before it counts as not reached.
// Whatever is lost, no node obeys two coordinators. While up to a fifth of all messages is lost,
// nodes agree within the same time as ever, 5 s after the last change, and stay together. With 30 %
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
// connections to it (ECONNREFUSED), which says in a moment what silence says in seconds. A node
// that refused for refused_ms, and was silent for silent_ms all the while, has ended: it is gone,
// and so is every lease that it gave or was granted. A living node is refused only where a firewall
// answers in its name; it is heard all the same, after which its refusals mean nothing until it
// starts again. A firewall may have been there before the silence, unnoticed: so a member takes its
// coordinator for ended only if that was not calm and had answered a request of the member within
// silent_ms before it was heard last. Otherwise the member obeys until its lease ends, whatever
// refuses. One promise is weaker there: where such a firewall keeps both sides from each other, or
// comes up less than a second before a coordinator falls silent otherwise, a member may obey
// another before the first one's lease has ended by that one's clock. Epochs keep order then as
// ever.
//
// Shared ids. A machine that was cloned, or restored beside the one that it replaces, has an id
// that is taken. Each process draws a nonce when it starts, and a node gives its place for an id to
// one process: the first that it hears, for as long as that is heard within gone_after_ms and does
// not leave. Others of that id are refused, and told which process is there. A process that was
// started again is the only one that is heard, so it has its place after gone_after_ms of silence,
// and after silent_ms where it has the same addresses. That two live is known once both were heard
// for a while. Then both are told of each other, and one rule says which of them goes out of the
// cluster until the other is gone: one that is in no group with others, nor lately was; else the
// one that started later; else the one of the greater nonce. Where groups meet that each have the
// id, they become one in this way. A group most of whose nodes share their ids with others is
// another cluster made from the same image: it stays apart, and both serve. A process that goes on
// from an old snapshot hears from others of messages of its own that it has not sent yet: it starts
// over, as if it were started again, with another nonce.
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
  int64_t retry_late_ms = 100;   // to one that owes the answers of two heartbeats
  int64_t calm_ms = 1000;        // between heartbeats of a calm pair; half of gone_after_ms at most
  int64_t calm_after_ms = 5000;  // without a change
  int64_t calm_lossless_ms = 10000;  // since a message was lost between the two
  size_t calm_nodes = 8;         // in a group; with more of them members ask each other less often
  int64_t settle_ms = 300;       // a new coordinator waits for others before it joins any
  int64_t join_wait_ms = 750;    // a released node waits so long for its next coordinator
  int64_t move_after_ms = 5000;  // that a member wants another group before it asks to go
  int64_t refused_ms = 200;      // from the first refusal to one after which a node has ended
  int64_t silent_ms = 625;       // of a node that has ended by then, two and a half heartbeats
  int64_t placed_ms = 60'000;    // a node lately was in a group with others
  double clock_drift_max = 0.005;   // rates of two clocks differ by less
  size_t nodes_max = 1024;          // known at a time, this one among them
  size_t addresses_max = 32;        // kept of a node
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

  // Discovery or a person says that this node exists. Another cluster's is kNotFound, and not kept.
  // Addresses add to what is known. kResourceExhausted: nodes_max are known and none is gone.
  absl::Status Learn(const NodeRecord& record, int64_t now_us);

  // This node's addresses changed; others hear with the next heartbeats.
  void SetAddresses(std::vector<std::string> addresses, int64_t now_us);

  // What this node, while it coordinates, leaves to whoever does so after it; nothing to begin
  // with. Members hear at once. What is over kDesiredStatesMax or kDesiredStateBytesMax is left
  // out.
  void SetDesiredState(std::vector<std::string> desired_state, int64_t now_us);
  // What the coordinator that this node obeyed last had left when it was lost or left. Nothing
  // where it lives and has let go of this node.
  const std::vector<std::string>& desired_state() const { return desired_state_; }

  // Requests whose clients are connected to this node.
  void SetLiveRequests(uint32_t n) { live_requests_ = n; }

  // While this node has work for others, who are to notice each other's ends soon: not calm.
  void SetBusy(bool busy) { busy_ = busy; }

  // The heartbeats that are due. Send each to the node by any of its addresses, a few in flight to
  // one node at most and the rest dropped, and give the answer to OnReply.
  std::vector<OutgoingHeartbeat> Tick(int64_t now_us);

  // When to call Tick next; look again after each call of anything else.
  int64_t next_wake_us() const { return next_wake_us_; }

  // A request without a receiver, for an address whose node is unknown (--peer host:port).
  Heartbeat Probe(int64_t now_us);

  // A request came in; returns the answer, or a refusal where another process has the sender's
  // place. kNotFound: from another cluster, or for another node than this. kInvalidArgument: no
  // heartbeat of ours. kResourceExhausted as in Learn. Peers are told these as they are.
  absl::StatusOr<Heartbeat> OnRequest(const Heartbeat& request, int64_t now_us);

  // The answer to a request sent by Tick or Probe. Errors as OnRequest; kAlreadyExists: another
  // process than the one that has the node's place answered.
  absl::Status OnReply(const Heartbeat& reply, int64_t now_us);

  // At an address that may be that node's, or this one's, answers a process of its id. See "Shared
  // ids"; nothing where it is the one that has the place.
  void OnProcess(const NodeId& node, const OtherProcess& process, int64_t now_us);
  // This process, as others are to tell of it; without its address.
  OtherProcess Self(int64_t now_us) const;

  // Wherever the node had answered lately, connecting to it was tried at `tried_us` and refused
  // (ECONNREFUSED). See "Refusals". Try again soon, until the node is gone or heard.
  void OnRefused(const NodeId& node, int64_t tried_us, int64_t now_us);

  // That node was taken out of the cluster: it is gone, and with it every lease that it gave or was
  // granted. Nothing of it is to be given to this from then on, unless it has become a member
  // again.
  void Remove(const NodeId& node, int64_t now_us);

  // Says good-bye: members are released, nothing is obeyed or granted any more. Call Tick once
  // more and send what it says.
  void Leave(int64_t now_us);

  // Rises whenever view() would say something new, times apart.
  uint64_t changes() const { return changes_; }

  // As of the last call of anything. Valid until the next call. Costs O(nodes) after a change.
  const ClusterView& view();

  // For a new plan: raises this coordinator's epoch and returns it. kFailedPrecondition unless this
  // node coordinates.
  absl::StatusOr<ClusterEpoch> NextEpoch(int64_t now_us);

  // Whom this node obeys at that time; nobody while between two. Never allocates.
  NodeId obeys(int64_t now_us) const;
  // Of the coordinator that this node obeys or last obeyed.
  const ClusterEpoch& epoch() const { return epoch_; }
  // Whether this node coordinates and `node`'s lease, or its own, is good at that time: only then
  // may it tell the node what to do.
  bool HoldsLease(const NodeId& node, int64_t now_us) const;

 private:
  // A node's coordinator: none, itself, or another by a lease.
  enum class Role { kStarting, kFree, kMember, kCoordinator, kLeft };

  static constexpr int64_t kNever = INT64_MAX;

  // Another process with the id of a node that is there. Of several, one.
  struct Challenger {
    OtherProcess process;  // as of `last_us`
    int64_t first_us = 0;  // when it was heard
    int64_t last_us = 0;
    int64_t until_us = 0;  // forgotten, if it is not heard again
    bool shown = false;    // in view_
  };

  // What is known of another node. Indexed as in graph_. What each heartbeat needs comes first and
  // is in two cache lines: with hundreds of nodes, waiting for memory is what a heartbeat costs.
  struct alignas(64) Peer {
    // In its own words, of its boot `boot`; 0: it never spoke to this node.
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
    int64_t asked_us = 0;        // the newest request, by its stamp
    int64_t dialled_us = 0;      // when the newest that it answered was sent
    int64_t quiet_until_us = 0;  // nobody asks before, since all is calm
    int64_t lossy_until_us = 0;  // an answer was missing

    ClusterView::State state = ClusterView::State::kUnheard;
    bool other_version = false;
    bool leaving = false;
    bool ended = false;           // of "Refusals"; until it is heard again
    bool always_refuses = false;  // the same: it lives all the same
    bool welcomes_me = false;
    bool details_incomplete = false;  // more ids than nodes_max

    // While this node coordinates.
    int64_t lease_until_us = 0;    // of this member's lease
    int64_t invited_until_us = 0;  // an offer to a node that is no member yet
    int64_t released_us = 0;       // grants of older offers are void

    std::unique_ptr<Challenger> challenger;  // null: none lately
    std::shared_ptr<const HeartbeatDetails> details;
    IndexSet members;                  // if it coordinates; no bound before there are details
    std::vector<std::string> learned;  // addresses from discovery, newest first
    int64_t since_us = 0;
    int64_t first_refused_us = 0;  // the first try that was refused since it started; 0: none was
    int64_t refused_us = 0;        // the same, since it was heard
    size_t known_next = 0;         // where the next round of records to pass on begins
  };

  // Of a node that has not spoken since it started.
  static std::shared_ptr<const HeartbeatBody> NothingSaid();

  // How coordinators compare: the greater stays.
  struct Rank {
    uint32_t requests, size, seniority;
    NodeId id;
    bool operator<(const Rank& other) const;
  };

  // membership_peers.cc and membership.cc: what is known of others, and messages.
  size_t AddPeer(const NodeId& id);
  bool EvictPeer();
  void HasRecord(size_t i);  // heartbeats go to it from now on
  void TakeGossip(const std::shared_ptr<const NodeRecord>& record, int64_t now_us);
  void Restarted(size_t i, int64_t now_us);
  bool AnsweredToTheLast(const Peer& peer) const;
  void Ended(size_t i, int64_t now_us);
  bool HasAllWhoAreThere(int64_t now_us) const;
  absl::Status Check(const Heartbeat& message) const;
  absl::StatusOr<size_t> Take(const Heartbeat& message, int64_t now_us);
  void TakeDetails(size_t i, const Heartbeat& message);
  template <typename Set>
  void TakeList(const std::vector<NodeId>& before, const std::vector<NodeId>& after,
                bool* incomplete, Set set);
  int64_t HeartbeatMs(size_t i, int64_t now_us) const;
  // See "Calm".
  bool Calm(size_t i, int64_t now_us) const;
  bool Asks(size_t i) const;
  int64_t CalmUs(size_t i) const;
  void Rest(size_t i, int64_t now_us);
  void Disturb(size_t i, int64_t now_us);
  void LookForChanges(int64_t now_us);
  int64_t HeardUs(const Peer& peer) const;
  int64_t SuspectAfterUs(const Peer& peer) const;
  std::shared_ptr<const HeartbeatBody> Body(int64_t now_us);
  Heartbeat Make(size_t i, std::shared_ptr<const HeartbeatBody> body, int64_t now_us);
  int64_t NextStamp(int64_t now_us);
  void AddKnown(size_t i, Heartbeat* message);
  void BeginBoot(uint64_t boot, int64_t now_us);
  void Hurry(size_t i, int64_t now_us);
  void RefreshDetails();
  void UpdateStates(int64_t now_us);
  bool Fresh(const Peer& peer, int64_t now_us) const;
  bool IsCoordinator(size_t i) const;

  // membership_identity.cc: processes that share an id.
  bool HasPlace(size_t i, const Heartbeat* challenge, int64_t now_us) const;
  void Challenge(size_t i, OtherProcess process, int64_t lasts_us, int64_t now_us);
  bool BothLive(size_t i, int64_t now_us) const;
  void LookAtChallenger(size_t i, int64_t now_us);
  bool IsToThisProcess(const Heartbeat& message) const;
  Heartbeat Refusal(const Heartbeat& request, int64_t now_us);
  absl::StatusOr<Heartbeat> OnOwnId(const Heartbeat& request, int64_t now_us);
  void TakeOther(const OtherProcess& other, int64_t now_us);
  bool KnowsRival(int64_t now_us) const;
  bool Loses(const OtherProcess& other, int64_t now_us) const;
  bool InGroup() const;
  bool InContestedGroup(int64_t now_us) const;
  void GoOut(int64_t now_us);
  void StartOver(int64_t now_us);
  void AddSharedIds(ClusterView* view) const;

  // membership_group.cc: leases and groups.
  void Advance(int64_t now_us);
  void TakeLease(size_t i, const Heartbeat& message, int64_t now_us);
  void TakeGrant(size_t i, const Heartbeat& message, int64_t now_us);
  void TakeOption(size_t i, int64_t now_us);
  void FillLease(size_t i, int64_t now_us, Heartbeat* message);
  void BecomeCoordinator(int64_t now_us);
  void BecomeFree(size_t next, int64_t now_us);
  void Yield(size_t next, int64_t now_us);
  void DropMember(size_t i);
  void DropLapsed(int64_t now_us);
  void DropUnlinked(int64_t now_us);
  void ChooseWanted(int64_t now_us);
  void ChooseMove(int64_t now_us);
  bool LetsGo(size_t i, int64_t now_us) const;
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
  // Of each peer; null: somebody reaches it, but nobody has told its record. Apart from them, since
  // many are passed on at once.
  std::vector<std::shared_ptr<const NodeRecord>> records_;
  // To each peer; kNever: it has no record. Apart from them, since all are looked at in each wake.
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
  std::shared_ptr<const HeartbeatBody> body_;  // as said last; null: nothing yet
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
  std::vector<std::string> my_desired_state_;
  std::vector<std::string> desired_state_;  // of who was obeyed last
  int64_t welcomed_us_ = 0;                 // when this coordinator last welcomed another
  int64_t void_before_us_ = 0;              // grants of older offers are void
  int64_t unlinked_since_us_ = 0;           // two members are; 0: no
  size_t move_to_ = ReachGraph::kNone;      // the greater group's coordinator that a member sees
  int64_t move_since_us_ = 0;               // for how long
  int64_t let_go_us_ = 0;                   // when this coordinator last let a member go there
  IndexSet heard_;                          // alive or suspected, with a record
  const IndexSet nobody_;
  IndexSet members_;      // a coordinator's, itself among them
  int64_t lapse_us_ = 0;  // no member's lease ends before
  mutable uint64_t member_requests_ = 0;
  mutable bool member_requests_stale_ = true;  // a member said another number, or is another

  bool settled_ = false;

  // Another process with this one's id, as last told.
  OtherProcess rival_;
  int64_t rival_since_us_ = 0;
  int64_t rival_told_us_ = 0;    // 0: never
  int64_t placed_until_us_ = 0;  // it is, or lately was, in a group with others
  bool out_ = false;             // another process has this one's place

  bool busy_ = false;
  bool calm_ = false;
  int64_t calm_from_us_ = 0;
  uint64_t calm_changes_ = 0;  // the last ones that were looked for
  uint64_t calm_details_ = 0;

  uint64_t changes_ = 1;
  uint64_t view_changes_ = 0;
  ClusterView view_;
};

}  // namespace strata
