// The state of other nodes: their records, and whether they are alive.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "coordinator/membership/membership.h"

namespace strata {
namespace {

// The number of equal ids at the front. In blocks at first: two long lists are nearly the same.
size_t SameInFront(absl::Span<const NodeId> a, absl::Span<const NodeId> b) {
  constexpr size_t kBlock = 16;
  static_assert(std::has_unique_object_representations_v<NodeId>);
  const size_t n = std::min(a.size(), b.size());
  size_t same = 0;
  while (same + kBlock <= n && std::memcmp(&a[same], &b[same], kBlock * sizeof(NodeId)) == 0) {
    same += kBlock;
  }
  while (same < n && a[same] == b[same]) ++same;
  return same;
}

}  // namespace

absl::Status Membership::Learn(const NodeRecord& record, int64_t now_us) {
  if (record.id.is_nobody()) return absl::InvalidArgumentError("the node has no id");
  if (record.id == self_.id) return absl::OkStatus();
  if (record.cluster != self_.cluster) {
    return absl::NotFoundError(absl::StrCat("it is in cluster ", record.cluster));
  }
  const size_t i = AddPeer(record.id);
  if (i == ReachGraph::kNone) return absl::ResourceExhaustedError("too many nodes are known");
  Peer& peer = peers_[i];
  if (records_[i] == nullptr) records_[i] = std::make_shared<const NodeRecord>(record);
  HasRecord(i);
  if (peer.last_heard_us == 0 && record.protocol != 0) {
    peer.other_version = record.protocol != self_.protocol;
  }
  for (const std::string& address : record.addresses) {
    std::erase(peer.learned, address);
    peer.learned.insert(peer.learned.begin(), address);
  }
  if (peer.learned.size() > options_.addresses_max) peer.learned.resize(options_.addresses_max);
  if (peer.state != ClusterView::State::kAlive) Hurry(i, now_us);
  ++changes_;
  return absl::OkStatus();
}

void Membership::TakeDetails(size_t i, const Heartbeat& message) {
  const HeartbeatDetails& details = *message.details;
  Peer& peer = peers_[i];
  // Sent again, since the sender did not know yet that this node has them.
  if (peer.details != nullptr && !peer.details_incomplete &&
      peer.details_version == message.body->details_version &&
      records_[i].get() == peer.details->record.get()) {
    return;
  }
  if (details.record->id != message.body->from || details.record->cluster != self_.cluster) return;
  const NodeRecord* const record = records_[i].get();
  if (record == nullptr || record->boot != details.record->boot ||
      record->revision != details.record->revision) {
    ++changes_;
  }
  records_[i] = std::shared_ptr<const NodeRecord>(message.details, details.record.get());
  HasRecord(i);
  // Empty if the graph does not have the last details completely.
  const HeartbeatDetails none;
  const HeartbeatDetails& had =
      peer.details == nullptr || peer.details_incomplete ? none : *peer.details;
  if (&had == &none) {
    graph_.ReachesNobody(i);
    peer.members = IndexSet(graph_.nodes_max());
  }
  peer.details_incomplete = false;
  TakeList(had.reaches, details.reaches, &peer.details_incomplete,
           [&](size_t k, bool in) { graph_.SetReaches(i, k, in); });
  if (&had == &none || had.members != details.members) {
    TakeList(had.members, details.members, &peer.details_incomplete,
             [&](size_t k, bool in) { peer.members.Set(k, in); });
    if (obeyed_ == i) ++changes_;
  }
  if (had.desired->version != details.desired->version) ++changes_;
  peer.details = message.details;
  peer.details_version = message.body->details_version;
  calm_details_ = 0;  // something has changed
}

// Calls set(number, is_in) for each id that is in only one of the lists. Ordered lists, as nodes
// send them, cost one comparison for an id that is in both; other lists work as well.
template <typename Set>
void Membership::TakeList(const std::vector<NodeId>& before, const std::vector<NodeId>& after,
                          bool* incomplete, Set set) {
  std::vector<NodeId> added;
  size_t b = 0, a = 0;
  while (true) {
    const size_t same =
        SameInFront(absl::MakeConstSpan(before).subspan(b), absl::MakeConstSpan(after).subspan(a));
    b += same, a += same;
    if (b == before.size() && a == after.size()) break;
    if (b == before.size() || (a < after.size() && after[a] < before[b])) {
      added.push_back(after[a++]);
    } else {
      const size_t number = graph_.Find(before[b++]);
      if (number != ReachGraph::kNone) set(number, false);
    }
  }
  // At the end, so that with unordered lists every id in `after` is set.
  for (const NodeId& id : added) {
    // The bits of nodes not known yet are kept for when they are.
    const size_t number = id.is_nobody() ? ReachGraph::kNone : graph_.Add(id);
    if (number == ReachGraph::kNone) {
      *incomplete = true;
    } else {
      set(number, true);
    }
  }
}

void Membership::TakeGossip(const std::shared_ptr<const NodeRecord>& record, int64_t now_us) {
  size_t i = graph_.Find(record->id);
  if (i != ReachGraph::kNone && records_[i] == record) return;  // most are passed on many times
  if (record->id.is_nobody() || record->id == self_.id || record->cluster != self_.cluster) return;
  i = AddPeer(record->id);
  if (i == ReachGraph::kNone) return;
  const NodeRecord* const had = records_[i].get();
  if (had != nullptr) {
    if (peers_[i].state == ClusterView::State::kAlive) return;  // its own record counts
    if (record->boot < had->boot) return;
    if (record->boot == had->boot && record->revision <= had->revision) return;
  }
  records_[i] = record;
  HasRecord(i);
  ++changes_;
  Hurry(i, now_us);
}

// All its messages and grants so far came from a process that is dead.
void Membership::Restarted(size_t i, int64_t now_us) {
  Peer& peer = peers_[i];
  if (role_ == Role::kMember && obeyed_ == i) BecomeFree(ReachGraph::kNone, now_us);
  peer.heard_sent_us = 0;
  peer.details_version = 0;
  peer.details = nullptr;
  peer.said = NothingSaid();
  peer.has_my_details = 0;
  peer.welcomes_me = false;
  peer.answered_us = 0;
  peer.dialled_us = peer.quiet_until_us = 0;
  peer.always_refuses = false;
  peer.first_refused_us = peer.refused_us = 0;
  peer.members.Clear();
  peer.since_us = now_us;
  peer.invited_until_us = 0;
  graph_.ReachesNobody(i);
  if (graph_.SetReaches(0, i, false)) details_stale_ = true;
  heard_.Set(i, false);
  if (members_.Has(i)) DropMember(i);
  ++changes_;
}

void Membership::OnRefused(const NodeId& node, int64_t tried_us, int64_t now_us) {
  Advance(now_us);
  const size_t i = graph_.Find(node);
  if (i == ReachGraph::kNone || i == 0) return;
  Peer& peer = peers_[i];
  // After a stall, unread messages may be from that node.
  const int64_t heard_us = std::max(peer.last_heard_us, awake_since_us_);
  if (peer.ended || peer.always_refuses || peer.last_heard_us == 0 || tried_us < heard_us) return;
  if (peer.first_refused_us == 0) peer.first_refused_us = tried_us;
  // A calm node, also where only that one is calm, sends a message after this time.
  const int64_t calm_us = peer.said->calm ? options_.calm_ms * 1250 : 0;
  const int64_t silent_since_us =
      std::max({peer.last_heard_us + calm_us, awake_since_us_, peer.quiet_until_us});
  if (tried_us < silent_since_us) return;
  if (peer.refused_us < silent_since_us) peer.refused_us = tried_us;
  if (tried_us - peer.refused_us < options_.refused_ms * 1000 ||
      tried_us - silent_since_us < options_.silent_ms * 1000) {
    return;
  }
  // A member waits its own lease out, unless it is certain.
  if (role_ == Role::kMember && obeyed_ == i && !AnsweredUntilSilent(peer)) return;
  Ended(i, now_us);
}

// Whether requests to it were answered until it fell silent, so that no firewall was there. For a
// calm node that time is not known.
bool Membership::AnsweredUntilSilent(const Peer& peer) const {
  return !peer.said->calm && peer.dialled_us != 0 &&
         peer.last_heard_us - peer.dialled_us < options_.silent_ms * 1000;
}

void Membership::Remove(const NodeId& node, int64_t now_us) {
  Advance(now_us);
  const size_t i = graph_.Find(node);
  if (i != ReachGraph::kNone && i != 0) Ended(i, now_us);
}

void Membership::Ended(size_t i, int64_t now_us) {
  Peer& peer = peers_[i];
  peer.ended = true;
  peer.answered_us = 0;
  peer.welcomes_me = false;
  peer.invited_until_us = 0;
  if (members_.Has(i)) DropMember(i);
  const bool awaited =
      (role_ == Role::kMember && obeyed_ == i) || (role_ == Role::kFree && wanted_ == i);
  if (awaited) BecomeFree(ReachGraph::kNone, now_us);
  UpdateStates(now_us);
  next_check_us_ = next_wake_us_ = now_us;
}

std::shared_ptr<const HeartbeatBody> Membership::NothingSaid() {
  static const auto* const kNothing =
      new std::shared_ptr<const HeartbeatBody>(std::make_shared<const HeartbeatBody>());
  return *kNothing;
}

size_t Membership::AddPeer(const NodeId& id) {
  size_t i = graph_.Add(id);
  if (i == ReachGraph::kNone && EvictPeer()) i = graph_.Add(id);
  return i;
}

void Membership::HasRecord(size_t i) {
  if (send_due_us_[i] == kNever) send_due_us_[i] = 0;
}

// Forgets the node that was silent longest among those that are not alive.
bool Membership::EvictPeer() {
  size_t oldest = ReachGraph::kNone;
  for (size_t i = 1; i < graph_.bound(); ++i) {
    const ClusterView::State state = peers_[i].state;
    if (state == ClusterView::State::kAlive || state == ClusterView::State::kSuspected ||
        members_.Has(i) || i == obeyed_ || i == wanted_ || graph_.id(i).is_nobody()) {
      continue;
    }
    if (oldest == ReachGraph::kNone || peers_[i].last_heard_us < peers_[oldest].last_heard_us) {
      oldest = i;
    }
  }
  if (oldest == ReachGraph::kNone) return false;
  graph_.Forget(oldest);
  heard_.Set(oldest, false);
  peers_[oldest] = Peer();
  records_[oldest] = nullptr;
  send_due_us_[oldest] = kNever;
  // Its number is reused: all details are taken anew.
  for (Peer& peer : peers_) {
    if (peer.members.bound() != 0) peer.members.Set(oldest, false);
    peer.details_version = 0;
    peer.details = nullptr;
  }
  ++changes_;
  return true;
}

void Membership::UpdateStates(int64_t now_us) {
  using State = ClusterView::State;
  next_check_us_ = now_us + (calm_ ? options_.calm_ms * 1000 : options_.heartbeat_ms * 500);
  const int64_t settles_ms =
      HasAllLiveNodes(now_us) ? options_.settle_ms : options_.suspect_after_ms;
  const bool settled = role_ == Role::kCoordinator && wanted_ == ReachGraph::kNone &&
                       now_us - leader_since_us_ >= settles_ms * 1000;
  if (settled != settled_) ++changes_;
  settled_ = settled;
  if (rival_reported_us_ != 0 && !KnowsRival(now_us)) {
    rival_reported_us_ = 0;
    ++changes_;
  }
  if (InGroup()) placed_until_us_ = now_us + options_.placed_ms * 1000;
  for (size_t i = 1; i < graph_.bound(); ++i) {
    Peer& peer = peers_[i];
    if (records_[i] == nullptr) continue;
    UpdateChallenger(i, now_us);
    const int64_t silent_us = now_us - HeardUs(peer);
    State state = State::kAlive;
    if (peer.other_version) {
      state = State::kOtherVersion;
    } else if (peer.last_heard_us == 0) {
      state = State::kUnheard;
    } else if (peer.leaving || peer.ended || silent_us >= options_.gone_after_ms * 1000) {
      state = State::kGone;
    } else if (silent_us >= SuspectAfterUs(peer)) {
      state = State::kSuspected;
    }
    if (state != peer.state) {
      peer.state = state;
      ++changes_;
    }
    const bool here = state == State::kAlive || state == State::kSuspected;
    heard_.Set(i, here);
    const int64_t gone_us = options_.gone_after_ms * 1000;
    const int64_t answered_us =
        std::max(peer.answered_us, peer.quiet_until_us - options_.calm_ms * 1000);
    const bool reaches = here && peer.answered_us > 0 && now_us - answered_us < gone_us;
    if (here) {
      // In calm, a node that becomes suspected gets a request at that time, or got one just before.
      for (const int64_t at_us : {HeardUs(peer) + gone_us, answered_us + gone_us}) {
        if (at_us > now_us) next_check_us_ = std::min(next_check_us_, at_us);
      }
    }
    if (graph_.SetReaches(0, i, reaches)) {
      details_stale_ = true;
      ++changes_;
    }
  }
}

// Whether every node heard lately is a member, or is known to have left or ended: not merely
// silent, as all nodes are to one that is cut off.
bool Membership::HasAllLiveNodes(int64_t now_us) const {
  for (size_t i = 1; i < graph_.bound(); ++i) {
    const Peer& peer = peers_[i];
    if (records_[i] == nullptr || members_.Has(i) || peer.leaving || peer.ended ||
        peer.other_version) {
      continue;
    }
    const bool lately = now_us - peer.last_heard_us < options_.gone_after_ms * 5000;
    if (lately || peer.last_heard_us == 0) return false;
  }
  return true;
}

bool Membership::Fresh(const Peer& peer, int64_t now_us) const {
  return peer.details != nullptr && !peer.leaving && !peer.ended && !peer.other_version &&
         now_us - HeardUs(peer) < SuspectAfterUs(peer);
}

}  // namespace strata
