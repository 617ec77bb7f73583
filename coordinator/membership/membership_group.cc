// Leases and groups.
#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "coordinator/membership/membership.h"

namespace strata {
namespace {

constexpr size_t kNone = ReachGraph::kNone;

}  // namespace

bool Membership::Rank::operator<(const Rank& other) const {
  if (requests != other.requests) return requests < other.requests;
  if (size != other.size) return size < other.size;
  if (seniority != other.seniority) return seniority < other.seniority;
  return id > other.id;
}

NodeId Membership::obeys(int64_t now_us) const {
  if (role_ == Role::kCoordinator) return self_.id;
  if (role_ == Role::kMember && now_us < obeys_until_us_) return graph_.id(obeyed_);
  return NodeId();
}

bool Membership::HoldsLease(const NodeId& node, int64_t now_us) const {
  if (role_ != Role::kCoordinator) return false;
  const size_t i = graph_.Find(node);
  return i == 0 || (i != kNone && members_.Has(i) && now_us < peers_[i].lease_until_us);
}

// Applies the changes that time alone causes.
void Membership::Advance(int64_t now_us) {
  // The time beyond the planned sleep.
  const int64_t slept_us = now_us - std::max(now_us_, next_wake_us_);
  if (slept_us > options_.heartbeat_ms * 500) awake_since_us_ = now_us;
  // A coordinator that slept starts over in rank: others have coordinated meanwhile.
  const bool slept = slept_us > options_.suspect_after_ms * 1000;
  now_us_ = std::max(now_us_, now_us);
  switch (role_) {
    case Role::kStarting:
      if (now_us >= obeys_until_us_) BecomeCoordinator(now_us);
      break;
    case Role::kFree:
      if (now_us >= wanted_until_us_) BecomeCoordinator(now_us);
      break;
    case Role::kMember: {
      const bool forsake = options_.unsafe_ignore_lease && !Fresh(peers_[obeyed_], now_us);
      if (now_us >= obeys_until_us_ || forsake) {
        BecomeFree(kNone, now_us);
      } else if (now_us >= next_check_us_) {
        ChooseMove(now_us);
      }
      break;
    }
    case Role::kCoordinator:
      if (slept) leader_since_us_ = now_us;
      DropLapsed(now_us);
      if (now_us >= next_check_us_) {
        DropUnlinked(now_us);
        ChooseWanted(now_us);
      }
      break;
    case Role::kLeft:
      break;
  }
}

// An offer or a release, in a message that no later one overtook.
void Membership::TakeLease(size_t i, const Heartbeat& message, int64_t now_us) {
  const bool mine = role_ == Role::kMember && obeyed_ == i;
  if (message.release) {
    if (!mine) return;
    BecomeFree(graph_.Find(message.next), now_us);
    return;
  }
  const bool joins = role_ == Role::kFree && wanted_ == i;
  if (!message.offer || !(mine || joins)) return;
  const HeartbeatBody& body = *message.body;
  if (body.obeys != body.from || body.epoch.coordinator != body.from || body.epoch.counter == 0 ||
      body.epoch < floor_) {
    return;
  }
  if (joins || epoch_ != body.epoch) ++changes_;
  if (joins) Hurry(i, now_us);
  role_ = Role::kMember;
  obeyed_ = i;
  if (joins) wanted_ = move_to_ = kNone;
  epoch_ = floor_ = body.epoch;
  granted_us_ = message.sent_us;
  obeys_until_us_ = now_us + obedience_us_;
  if (joins) AnnounceDesired(now_us);
}

void Membership::TakeGrant(size_t i, const Heartbeat& message, int64_t now_us) {
  if (role_ != Role::kCoordinator || message.body->obeys != self_.id) return;
  Peer& peer = peers_[i];
  const int64_t offered_us = message.granted_us;
  if (offered_us <= std::max(void_before_us_, peer.released_us) || offered_us > last_stamp_us_ ||
      offered_us + lease_us_ <= now_us) {
    return;
  }
  if (members_.Has(i)) {
    peer.lease_until_us = std::max(peer.lease_until_us, offered_us + lease_us_);
    return;
  }
  peer.invited_until_us = 0;
  if (!graph_.linked(i).Contains(members_)) return;  // it is released with the next heartbeat
  peer.lease_until_us = offered_us + lease_us_;
  members_.Set(i, true);
  lapse_us_ = std::min(lapse_us_, peer.lease_until_us);
  member_requests_stale_ = true;
  details_stale_ = true;
  ++changes_;
}

// Handles the coordinator that the peer wants, and this node's own plan to join the peer.
void Membership::TakeWants(size_t i, int64_t now_us) {
  Peer& peer = peers_[i];
  const HeartbeatBody& said = *peer.said;
  if (role_ == Role::kFree && wanted_ == i && !IsCoordinator(i)) {
    const size_t next = graph_.Find(said.wants.is_nobody() ? said.obeys : said.wants);
    if (next != kNone && next != 0) SetWants(next, now_us);
    return;
  }
  if (role_ != Role::kCoordinator) return;
  if (members_.Has(i) && (said.obeys != self_.id || peer.leaving)) DropMember(i);
  if (MayRelease(i, now_us)) {
    released_member_us_ = now_us;
    DropMember(i);
    Hurry(i, now_us);
  }
  if (wanted_ == i && peer.welcomes_me && IsCoordinator(i)) {
    Yield(i, now_us);
    return;
  }
  if (said.wants != self_.id || members_.Has(i)) return;
  if (said.obeys.is_nobody()) {
    if (now_us < peer.invited_until_us) return;
    IndexSet group = members_;
    for (size_t k = 1; k < graph_.bound(); ++k) {
      if (now_us < peers_[k].invited_until_us) group.Set(k, true);
    }
    if (!graph_.linked(i).Contains(group)) return;
    peer.invited_until_us = now_us + options_.join_wait_ms * 1000;
    if (epoch_.counter == 0 || epoch_ < said.floor) ClaimEpochAbove(said.floor.counter);
    Hurry(i, now_us);
  } else if (now_us - peer.last_sent_us > options_.heartbeat_ms * 200 && WouldWelcome(i, now_us)) {
    Hurry(i, now_us);
  }
}

void Membership::FillLease(size_t i, int64_t now_us, Heartbeat* message) {
  if (i == 0) return;
  Peer& peer = peers_[i];
  if (role_ == Role::kMember && obeyed_ == i) message->granted_us = granted_us_;
  if (role_ == Role::kCoordinator) {
    if (members_.Has(i) || now_us < peer.invited_until_us) {
      message->offer = true;
      return;
    }
    if (WouldWelcome(i, now_us)) {
      message->welcome = true;
      welcomed_us_ = now_us;
    }
  }
  if (peer.said->obeys == self_.id) {
    message->release = true;
    if (wanted_ != kNone && role_ == Role::kFree) message->next = graph_.id(wanted_);
    if (role_ == Role::kMember) message->next = graph_.id(obeyed_);
    if (role_ == Role::kCoordinator) message->next = peer.said->wants;  // it may be moving
    peer.released_us = message->sent_us;
  }
}

void Membership::BecomeCoordinator(int64_t now_us) {
  role_ = Role::kCoordinator;
  if (std::exchange(out_, false)) rival_reported_us_ = 0;  // the rival is gone
  obeyed_ = wanted_ = kNone;
  epoch_ = ClusterEpoch();
  leader_since_us_ = now_us;
  released_member_us_ = now_us;
  welcomed_us_ = now_us - options_.heartbeat_ms * 2000;
  void_before_us_ = last_stamp_us_;
  unlinked_since_us_ = 0;
  members_.Clear();
  members_.Set(0, true);
  lapse_us_ = 0;
  member_requests_stale_ = true;
  for (size_t i = 1; i < graph_.bound(); ++i) peers_[i].invited_until_us = 0;
  details_stale_ = true;
  ++changes_;
  AnnounceDesired(now_us);  // before any message says that this node coordinates
}

void Membership::BecomeFree(size_t next, int64_t now_us) {
  obeyed_ = wanted_ = kNone;
  epoch_ = ClusterEpoch();
  if (next == kNone || next == 0 || !Fresh(peers_[next], now_us)) {
    BecomeCoordinator(now_us);
    return;
  }
  role_ = Role::kFree;
  wanted_until_us_ = now_us + options_.join_wait_ms * 1000;
  SetWants(next, now_us);
  ++changes_;
}

void Membership::Yield(size_t next, int64_t now_us) {
  members_.ForEach([&](size_t i) {
    peers_[i].lease_until_us = 0;
    if (i != 0) Hurry(i, now_us);
  });
  members_.Clear();
  void_before_us_ = last_stamp_us_;
  details_stale_ = true;
  BecomeFree(next, now_us);
}

void Membership::DropMember(size_t i) {
  members_.Set(i, false);
  member_requests_stale_ = true;
  peers_[i].lease_until_us = 0;
  peers_[i].released_us = last_stamp_us_;
  details_stale_ = true;
  ++changes_;
}

void Membership::DropLapsed(int64_t now_us) {
  if (now_us < lapse_us_) return;  // fast path: called with every message
  lapse_us_ = std::numeric_limits<int64_t>::max();
  members_.ForEach([&](size_t i) {
    if (i == 0) return;
    if (peers_[i].lease_until_us <= now_us) {
      DropMember(i);
    } else {
      lapse_us_ = std::min(lapse_us_, peers_[i].lease_until_us);
    }
  });
}

void Membership::DropUnlinked(int64_t now_us) {
  if (graph_.AllLinked(members_, members_)) {
    unlinked_since_us_ = 0;
    return;
  }
  // When a node falls silent, its peers notice one after the other; the first to notice must not be
  // dropped for it.
  if (unlinked_since_us_ == 0) unlinked_since_us_ = now_us;
  if (now_us - unlinked_since_us_ < options_.settle_ms * 1000) return;
  while (true) {
    size_t worst = kNone, most = 0;
    members_.ForEach([&](size_t i) {
      const size_t missing = graph_.linked(i).CountMissing(members_);
      if (i == 0 || missing == 0) return;
      if (missing > most || (missing == most && graph_.id(i) > graph_.id(worst))) {
        worst = i;
        most = missing;
      }
    });
    if (worst == kNone) return;
    DropMember(worst);
    Hurry(worst, now_us);
  }
}

void Membership::ChooseWanted(int64_t now_us) {
  size_t best = kNone;
  // A coordinator that was welcomed must find this one still coordinating.
  const bool may_yield = now_us - leader_since_us_ >= options_.settle_ms * 1000 &&
                         now_us - welcomed_us_ >= options_.heartbeat_ms * 2000;
  Rank best_rank = MyRank(now_us);
  for (size_t i = 1; may_yield && i < graph_.bound(); ++i) {
    const Peer& peer = peers_[i];
    if (!IsCoordinator(i) || !Fresh(peer, now_us) || !graph_.Linked(0, i)) continue;
    const Rank rank = RankOf(i);
    if (best_rank < rank && peer.members.Count() == peer.said->group_size &&
        graph_.AllLinked(members_, peer.members)) {
      best = i;
      best_rank = rank;
    }
  }
  if (best == kNone) {
    if (wanted_ != kNone) ++changes_;
    wanted_ = kNone;
  } else {
    SetWants(best, now_us);
  }
}

// For a member: see "Moves" in membership.h. Groups that can merge are left to the coordinators.
void Membership::ChooseMove(int64_t now_us) {
  const Peer& mine = peers_[obeyed_];
  size_t best = kNone;
  // A move between equal groups gains nothing.
  const auto weight = [](const Rank& rank) { return std::pair(rank.requests, rank.size); };
  Rank best_rank = RankOf(obeyed_);
  for (size_t i = 1; mine.said->group_requests == 0 && i < graph_.bound(); ++i) {
    const Peer& peer = peers_[i];
    if (i == obeyed_ || !IsCoordinator(i) || !Fresh(peer, now_us)) continue;
    const Rank rank = RankOf(i);
    if (weight(best_rank) < weight(rank) && peer.members.Has(i) &&
        peer.members.Count() == peer.said->group_size && graph_.linked(0).Contains(peer.members) &&
        !graph_.AllLinked(mine.members, peer.members)) {
      best = i;
      best_rank = rank;
    }
  }
  if (best != move_to_) {
    move_to_ = best;
    move_since_us_ = now_us;
  }
  if (best != kNone && now_us - move_since_us_ >= options_.move_after_ms * 1000) {
    SetWants(best, now_us);
    return;
  }
  if (wanted_ != kNone) ++changes_;
  wanted_ = kNone;
}

bool Membership::MayRelease(size_t i, int64_t now_us) const {
  const HeartbeatBody& said = *peers_[i].said;
  return members_.Has(i) && !said.wants.is_nobody() && said.wants != self_.id && wanted_ == kNone &&
         GroupRequests() == 0 && now_us - released_member_us_ >= options_.join_wait_ms * 1000;
}

void Membership::SetWants(size_t i, int64_t now_us) {
  if (wanted_ == i) return;
  wanted_ = i;
  peers_[i].welcomes_me = false;
  Hurry(i, now_us);
  ++changes_;
}

bool Membership::WouldWelcome(size_t i, int64_t now_us) const {
  const Peer& peer = peers_[i];
  if (role_ != Role::kCoordinator || wanted_ != kNone || peer.said->wants != self_.id ||
      !IsCoordinator(i) || !Fresh(peer, now_us) || !graph_.Linked(0, i) ||
      !(RankOf(i) < MyRank(now_us)) || peer.members.Count() != peer.said->group_size) {
    return false;
  }
  return graph_.AllLinked(members_, peer.members);
}

void Membership::ClaimEpochAbove(uint64_t counter) {
  counter = std::max({counter, epoch_.counter, floor_.counter});
  for (size_t i = 1; i < graph_.bound(); ++i) {
    const HeartbeatBody& said = *peers_[i].said;
    counter = std::max({counter, said.floor.counter, said.epoch.counter});
  }
  epoch_ = floor_ = ClusterEpoch{counter + 1, self_.id};
  ++changes_;
}

absl::StatusOr<ClusterEpoch> Membership::NextEpoch(int64_t now_us) {
  Advance(now_us);
  if (role_ != Role::kCoordinator) {
    return absl::FailedPreconditionError("this node does not coordinate");
  }
  ClaimEpochAbove(0);
  members_.ForEach([&](size_t i) {
    if (i != 0) Hurry(i, now_us);
  });
  return epoch_;
}

bool Membership::IsCoordinator(size_t i) const {
  const NodeId& obeys = peers_[i].said->obeys;
  return records_[i] != nullptr && !obeys.is_nobody() && obeys == graph_.id(i);
}

Membership::Rank Membership::MyRank(int64_t now_us) const {
  const auto served_s = static_cast<uint64_t>(now_us - leader_since_us_) / 1'000'000;
  return {static_cast<uint32_t>(std::bit_width(GroupRequests())),
          static_cast<uint32_t>(members_.Count()), static_cast<uint32_t>(std::bit_width(served_s)),
          self_.id};
}

Membership::Rank Membership::RankOf(size_t i) const {
  const HeartbeatBody& said = *peers_[i].said;
  return {static_cast<uint32_t>(std::bit_width(said.group_requests)), said.group_size,
          said.seniority, graph_.id(i)};
}

uint32_t Membership::GroupRequests() const {
  if (member_requests_stale_) {
    member_requests_stale_ = false;
    member_requests_ = 0;
    members_.ForEach([&](size_t i) {
      if (i != 0) member_requests_ += peers_[i].said->live_requests;
    });
  }
  return static_cast<uint32_t>(std::min<uint64_t>(live_requests_ + member_requests_, UINT32_MAX));
}

}  // namespace strata
