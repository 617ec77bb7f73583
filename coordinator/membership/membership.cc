// Messages in and out; membership_peers.cc has the state of other nodes, membership_group.cc leases
// and groups.
#include "coordinator/membership/membership.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"

namespace strata {
namespace {

// Peers could otherwise make counters wrap around.
constexpr uint64_t kCounterMax = uint64_t{1} << 62;

// A silence of calm_ms must not look like a failure.
MembershipOptions WithCalm(MembershipOptions options) {
  options.calm_ms =
      std::max(options.heartbeat_ms, std::min(options.calm_ms, options.gone_after_ms / 2));
  return options;
}

}  // namespace

Membership::Membership(const MembershipOptions& options, NodeRecord self, int64_t now_us)
    : options_(WithCalm(options)),
      lease_us_(options.gone_after_ms * 1000),
      obedience_us_(static_cast<int64_t>(static_cast<double>(options.gone_after_ms) * 1000 *
                                         (1 + 2 * options.clock_drift_max)) +
                    1),
      cluster_(std::make_shared<const std::string>(self.cluster.str())),
      self_(std::move(self)),
      graph_(options.nodes_max),
      peers_(options.nodes_max),
      records_(options.nodes_max),
      send_due_us_(options.nodes_max, kNever),
      now_us_(now_us),
      awake_since_us_(now_us),
      started_us_(now_us),
      heard_(options.nodes_max),
      nobody_(options.nodes_max),
      members_(options.nodes_max) {
  CHECK(!self_.id.is_nobody());
  CHECK(self_.boot > 0 && self_.boot < kCounterMax);
  CHECK_GE(options.nodes_max, 1u);
  graph_.Add(self_.id);
  BeginBoot(self_.boot, now_us);
  if (self_.boot == 1) obeys_until_us_ = now_us;  // a new id: there was no boot before
  next_wake_us_ = now_us;
  next_check_us_ = now_us;
}

// The boot before may have granted a lease.
void Membership::BeginBoot(uint64_t boot, int64_t now_us) {
  self_.boot = boot;
  role_ = Role::kStarting;
  epoch_ = ClusterEpoch();
  obeyed_ = wanted_ = ReachGraph::kNone;
  obeys_until_us_ = now_us + (options_.unsafe_ignore_lease ? 0 : obedience_us_);
  void_before_us_ = last_stamp_us_;
  members_.Clear();
  details_stale_ = true;
  ++changes_;
}

void Membership::SetAddresses(std::vector<std::string> addresses, int64_t now_us) {
  if (addresses.size() > options_.addresses_max) addresses.resize(options_.addresses_max);
  if (addresses == self_.addresses) return;
  self_.addresses = std::move(addresses);
  ++self_.revision;
  details_stale_ = true;
  next_check_us_ = next_wake_us_ = now_us;
  ++changes_;
}

std::vector<OutgoingHeartbeat> Membership::Tick(int64_t now_us) {
  // Checks early, so that one wake serves the check and the heartbeats.
  if (calm_) next_check_us_ = now_us;
  Advance(now_us);
  if (now_us >= next_check_us_) {
    UpdateStates(now_us);
    RefreshDetails();
  }
  UpdateCalm(now_us);
  std::vector<OutgoingHeartbeat> out;
  std::shared_ptr<const HeartbeatBody> body;  // one for all: sending does not change it
  // Heartbeats that are almost due are sent now, so that few wakes serve many peers.
  const int64_t due_us = now_us + options_.heartbeat_ms * 40;
  for (size_t i = 1; i < graph_.bound(); ++i) {
    int64_t& send_due_us = send_due_us_[i];
    if (send_due_us <= due_us && records_[i] == nullptr) {
      send_due_us = kNever;
    } else if (send_due_us <= due_us) {
      Peer& peer = peers_[i];
      if (peer.requested_us > peer.answered_us) {
        peer.lossy_until_us = now_us + options_.calm_lossless_ms * 1000;
      }
      send_due_us = now_us + 1000 * HeartbeatMs(i, now_us);
      if (body == nullptr) body = Body(now_us);
      out.push_back({graph_.id(i), Make(i, body, now_us)});
      peer.requested_us = out.back().message.sent_us;
    }
  }
  next_wake_us_ = std::min(next_check_us_, std::ranges::min(send_due_us_));
  if (obeys_until_us_ > now_us) next_wake_us_ = std::min(next_wake_us_, obeys_until_us_);
  if (role_ == Role::kLeft) next_wake_us_ = kNever;
  return out;
}

// The time between two heartbeats to a peer.
int64_t Membership::HeartbeatMs(size_t i, int64_t now_us) const {
  const Peer& peer = peers_[i];
  if (peer.state != ClusterView::State::kAlive && peer.state != ClusterView::State::kSuspected) {
    return options_.retry_gone_ms;
  }
  // Late: retry faster before it counts as not reached, as messages may have been lost. 2.5
  // heartbeats, since answers take a while.
  const bool late =
      graph_.reaches(0).Has(i) &&
      now_us - std::max(peer.answered_us, peer.quiet_until_us) > options_.heartbeat_ms * 2500;
  return late ? std::min(options_.retry_late_ms, options_.heartbeat_ms) : options_.heartbeat_ms;
}

void Membership::UpdateCalm(int64_t now_us) {
  if (changes_ != calm_changes_ || details_version_ != calm_details_ || details_stale_) {
    calm_changes_ = changes_;
    calm_details_ = details_version_;
    calm_from_us_ = now_us + options_.calm_after_ms * 1000;
  }
  const bool has_group = role_ == Role::kCoordinator || role_ == Role::kMember;
  const bool calm = has_group && wanted_ == ReachGraph::kNone && !busy_ && now_us >= calm_from_us_;
  if (!std::exchange(calm_, calm) || calm) return;
  for (size_t i = 1; i < graph_.bound(); ++i) Disturb(i, now_us);
  next_check_us_ = std::min(next_check_us_, now_us + options_.heartbeat_ms * 500);
  next_wake_us_ = std::min(next_wake_us_, next_check_us_);
}

void Membership::Disturb(size_t i, int64_t now_us) {
  peers_[i].quiet_until_us = std::min(peers_[i].quiet_until_us, now_us);
  if (send_due_us_[i] == kNever) return;
  send_due_us_[i] = std::min(send_due_us_[i], now_us + options_.heartbeat_ms * 1000);
  next_wake_us_ = std::min(next_wake_us_, send_due_us_[i]);
}

// Whether both are members of one group, have each other's newest details, and are calm.
bool Membership::Calm(size_t i, int64_t now_us) const {
  // This node announces its calm to all of them first.
  const bool announced =
      body_ != nullptr && body_->calm && now_us >= calm_from_us_ + options_.heartbeat_ms * 2000;
  if (!calm_ || !announced || i == 0) return false;
  const Peer& peer = peers_[i];
  const HeartbeatBody& said = *peer.said;
  return said.calm && peer.state == ClusterView::State::kAlive && !peer.leaving &&
         now_us >= peer.lossy_until_us && graph_.Linked(0, i) && said.obeys == obeys(now_us) &&
         said.wants.is_nobody() && peer.has_my_details == details_version_ &&
         peer.details_version == said.details_version;
}

// Whether this node sends the requests of the calm pair, and peer `i` only answers.
bool Membership::SendsRequests(size_t i) const {
  if (role_ == Role::kCoordinator) return true;
  return obeyed_ != i && self_.id < graph_.id(i);
}

int64_t Membership::CalmUs(size_t i) const {
  const int64_t calm_us = options_.calm_ms * 1000;
  if (role_ == Role::kCoordinator || obeyed_ == i) return calm_us;
  const size_t group = peers_[obeyed_].said->group_size;
  return calm_us * static_cast<int64_t>(1 + (group - 1) / options_.calm_nodes);
}

// Called when each of the two has just seen that the other receives its messages.
void Membership::Rest(size_t i, int64_t now_us) {
  if (!Calm(i, now_us)) return;
  Peer& peer = peers_[i];
  const int64_t calm_us = CalmUs(i);
  peer.quiet_until_us = now_us + calm_us;
  if (SendsRequests(i)) {
    // To all peers at once, at another time than other nodes, so that few wakes serve many peers.
    const int64_t grid_us = options_.calm_ms * 1000;
    const auto phase_us = static_cast<int64_t>(self_.id.low % static_cast<uint64_t>(grid_us));
    const int64_t due_us = now_us + calm_us - phase_us;
    send_due_us_[i] = due_us - due_us % grid_us + phase_us;
  } else {
    const int64_t own_us = peer.dialled_us + 5 * calm_us;
    send_due_us_[i] = std::max(now_us, std::min(own_us, now_us + calm_us * 5 / 4));
  }
  // The wake was planned sooner, for the case of no answer.
  next_wake_us_ = std::min(next_check_us_, std::ranges::min(send_due_us_));
  if (obeys_until_us_ > now_us) next_wake_us_ = std::min(next_wake_us_, obeys_until_us_);
}

// When its silence began. A calm pair's quiet time does not count as silence.
int64_t Membership::HeardUs(const Peer& peer) const {
  return std::max(peer.last_heard_us, peer.quiet_until_us - options_.calm_ms * 1000);
}

int64_t Membership::SuspectAfterUs(const Peer& peer) const {
  const bool quiet = peer.said->calm || peer.quiet_until_us > peer.last_heard_us;
  return (options_.suspect_after_ms + (quiet ? options_.calm_ms / 2 : 0)) * 1000;
}

Heartbeat Membership::Probe(int64_t now_us) { return Make(0, Body(now_us), now_us); }

absl::StatusOr<Heartbeat> Membership::OnRequest(const Heartbeat& request, int64_t now_us) {
  if (request.body != nullptr && request.body->from == self_.id) return OnOwnId(request, now_us);
  const absl::StatusOr<size_t> i = Take(request, now_us);
  if (absl::IsAlreadyExists(i.status())) return Refusal(request, now_us);
  if (!i.ok()) return i.status();
  // A node that is heard, but not reached, is tried at once.
  const Peer& peer = peers_[*i];
  if (!graph_.reaches(0).Has(*i) && now_us - peer.last_sent_us > options_.heartbeat_ms * 400) {
    Hurry(*i, now_us);
  }
  const int64_t last_sent_us = peer.last_sent_us;
  UpdateCalm(now_us);
  // A new request shows that the last answer was received; and the peer answered a request lately.
  if (Calm(*i, now_us) && !SendsRequests(*i) && now_us - peer.dialled_us < 6 * CalmUs(*i)) {
    if (request.answers_us <= last_stamp_us_) {
      peers_[*i].answered_us = std::max(peer.answered_us, request.answers_us);
    }
    Rest(*i, now_us);
  }
  Heartbeat reply = Make(*i, Body(now_us), now_us);
  peers_[*i].last_sent_us = last_sent_us;
  reply.answers_us = request.sent_us;
  return reply;
}

absl::Status Membership::OnReply(const Heartbeat& reply, int64_t now_us) {
  if (reply.refused) {
    absl::Status status = Check(reply);
    Advance(now_us);
    if (status.ok() && reply.other != nullptr && IsToThisProcess(reply)) {
      TakeOther(*reply.other, now_us);
    }
    return status;
  }
  const absl::StatusOr<size_t> i = Take(reply, now_us);
  if (!i.ok()) return i.status();
  Peer& peer = peers_[*i];
  if (peer.other_version || reply.body->boot != peer.boot || reply.your_boot != self_.boot ||
      !IsToThisProcess(reply) || reply.answers_us > last_stamp_us_) {
    return absl::OkStatus();
  }
  peer.answered_us = std::max(peer.answered_us, reply.answers_us);
  peer.dialled_us = std::max(peer.dialled_us, reply.answers_us);
  if (now_us - peer.answered_us < options_.gone_after_ms * 1000 && !peer.leaving &&
      graph_.SetReaches(0, *i, true)) {
    details_stale_ = true;
    ++changes_;
  }
  UpdateCalm(now_us);
  Rest(*i, now_us);
  return absl::OkStatus();
}

absl::Status Membership::Check(const Heartbeat& message) const {
  if (message.body == nullptr || message.body->cluster == nullptr ||
      message.body->from.is_nobody()) {
    return absl::InvalidArgumentError("the heartbeat has no cluster or no sender");
  }
  const HeartbeatBody& body = *message.body;
  if (*body.cluster != self_.cluster) {
    return absl::NotFoundError(absl::StrCat("this node is in cluster ", self_.cluster));
  }
  if (!message.to.is_nobody() && message.to != self_.id) {
    return absl::NotFoundError(absl::StrCat("this node is ", self_.id.ToHex()));
  }
  if (body.from == self_.id && (body.nonce == self_.nonce || !message.refused)) {
    return absl::NotFoundError("this is the address of the sender itself");
  }
  if (body.protocol != self_.protocol) return absl::OkStatus();
  if (body.boot == 0 || body.boot >= kCounterMax || message.your_boot >= kCounterMax ||
      body.epoch.counter >= kCounterMax || body.floor.counter >= kCounterMax ||
      (message.details != nullptr &&
       message.details->desired->version.epoch.counter >= kCounterMax)) {
    return absl::InvalidArgumentError("a counter of the heartbeat is out of range");
  }
  return absl::OkStatus();
}

// Returns the sender's number.
absl::StatusOr<size_t> Membership::Take(const Heartbeat& message, int64_t now_us) {
  absl::Status status = Check(message);
  if (!status.ok()) return status;
  Advance(now_us);
  const HeartbeatBody& body = *message.body;
  const size_t i = AddPeer(body.from);
  if (i == ReachGraph::kNone) return absl::ResourceExhaustedError("too many nodes are known");
  Peer& peer = peers_[i];
  if ((body.nonce != peer.nonce || body.protocol != self_.protocol) &&
      HasPlace(i, &message, now_us)) {
    Challenge(i, OtherProcessOf(message), options_.gone_after_ms * 2000, now_us);
    return absl::AlreadyExistsError("another process has the place of this id");
  }
  if (body.protocol != self_.protocol) {
    if (!peer.other_version || records_[i] == nullptr) {
      NodeRecord record = records_[i] == nullptr ? NodeRecord() : *records_[i];
      if (message.details != nullptr) record = *message.details->record;
      record.id = body.from;
      record.cluster = self_.cluster;
      record.protocol = body.protocol;
      records_[i] = std::make_shared<const NodeRecord>(std::move(record));
      HasRecord(i);
      if (!peer.other_version) Restarted(i, now_us);
      peer.other_version = true;
      ++changes_;
    }
    peer.last_heard_us = now_us;
    return i;
  }
  if (body.nonce != peer.nonce) {
    if (peer.boot != 0) Restarted(i, now_us);
    peer.nonce = body.nonce;
    peer.challenger = nullptr;
  }
  if (body.boot < peer.boot) return i;  // the answer has the later boot in your_boot
  if (body.boot > peer.boot) {
    if (peer.boot != 0) Restarted(i, now_us);
    peer.boot = body.boot;
  }
  if (IsToThisProcess(message)) {
    if (message.your_boot > self_.boot) BeginBoot(message.your_boot + 1, now_us);
    if (message.your_boot == self_.boot && message.your_newest_us > last_stamp_us_) {
      StartOver(now_us);
    } else if (message.other != nullptr) {
      TakeOther(*message.other, now_us);
    }
  }
  peer.other_version = false;
  // Messages in flight when a process ends arrive soon after, if at all: so this one is alive.
  if (peer.first_refused_us != 0 && now_us - peer.first_refused_us >= options_.refused_ms * 1000) {
    peer.always_refuses = true;
  }
  peer.refused_us = 0;
  peer.ended = false;
  peer.last_heard_us = now_us;
  if (message.sent_us <= peer.heard_sent_us) return i;  // overtaken
  peer.heard_sent_us = message.sent_us;

  peer.leaving = body.leaving;
  if (peer.state != ClusterView::State::kAlive && !peer.leaving) {
    if (peer.state != ClusterView::State::kSuspected) peer.since_us = now_us;
    peer.state = ClusterView::State::kAlive;
    ++changes_;
  }
  if (message.details != nullptr) TakeDetails(i, message);
  heard_.Set(i, records_[i] != nullptr && !peer.leaving);
  if (peer.leaving) {
    next_check_us_ = next_wake_us_ = now_us;
    if (graph_.SetReaches(0, i, false)) details_stale_ = true;
  }
  if (peer.said != message.body) {
    if (peer.said->calm && !body.calm) Disturb(i, now_us);
    if (peer.said->obeys != body.obeys || peer.said->live_requests != body.live_requests) {
      ++changes_;
      member_requests_stale_ = true;
    }
    peer.said = message.body;
  }
  const bool to_this_boot = message.your_boot == self_.boot && IsToThisProcess(message);
  peer.has_my_details = to_this_boot ? message.your_details_version : 0;
  peer.welcomes_me = to_this_boot && message.welcome;
  for (const auto& record : message.known) TakeGossip(record, now_us);
  if (role_ == Role::kLeft) return i;
  if (to_this_boot) {
    TakeLease(i, message, now_us);
    TakeGrant(i, message, now_us);
  }
  TakeWants(i, now_us);
  FollowDesired(i, now_us);
  return i;
}

int64_t Membership::NextStamp(int64_t now_us) {
  return last_stamp_us_ = std::max(now_us, last_stamp_us_ + 1);
}

std::shared_ptr<const HeartbeatBody> Membership::Body(int64_t now_us) {
  HeartbeatBody body;
  body.protocol = self_.protocol;
  body.cluster = cluster_;
  body.from = self_.id;
  body.boot = self_.boot;
  body.nonce = self_.nonce;
  body.started_us = started_us_;
  body.leaving = role_ == Role::kLeft || out_;
  body.placed = Self(now_us).placed;
  body.contested = KnowsRival(now_us) && rival_.placed;
  body.calm = calm_;
  body.obeys = obeys(now_us);
  if (!body.obeys.is_nobody()) body.epoch = epoch_;
  if (wanted_ != ReachGraph::kNone) body.wants = graph_.id(wanted_);
  body.floor = floor_;
  body.live_requests = live_requests_;
  if (role_ == Role::kCoordinator) {
    const Rank rank = MyRank(now_us);
    body.group_requests = GroupRequests();
    body.group_size = rank.size;
    body.seniority = rank.seniority;
  }
  if (details_ == nullptr) RefreshDetails();
  body.details_version = details_version_;
  if (body_ == nullptr || *body_ != body) {
    body_ = std::make_shared<const HeartbeatBody>(std::move(body));
  }
  return body_;
}

// To peer `i`; 0: to any receiver.
Heartbeat Membership::Make(size_t i, std::shared_ptr<const HeartbeatBody> body, int64_t now_us) {
  Peer& peer = peers_[i];
  Heartbeat message;
  message.body = std::move(body);
  if (i != 0) message.to = graph_.id(i);
  message.your_boot = peer.boot;
  message.your_nonce = peer.nonce;
  message.your_newest_us = peer.heard_sent_us;
  if (peer.challenger != nullptr && BothLive(i, now_us)) {
    message.other = std::make_shared<const OtherProcess>(peer.challenger->process);
  }
  message.sent_us = NextStamp(now_us);
  message.answers_us = peer.heard_sent_us;
  message.your_details_version = peer.details_version;
  if (i == 0 || peer.has_my_details != details_version_) message.details = details_;
  FillLease(i, now_us, &message);
  AddKnown(i, &message);
  peer.last_sent_us = now_us;
  return message;
}

void Membership::AddKnown(size_t i, Heartbeat* message) {
  // A silent node's reports are old: it may receive this message and have started anew.
  const bool is_heard = heard_.Has(i);
  if (i == 0 || (is_heard && graph_.reaches(i).Contains(heard_))) return;
  // Round robin, so that a few nodes that it can never reach don't crowd out the rest.
  size_t& last = peers_[i].known_next;
  const auto next = [this](size_t k) { return k + 1 < graph_.bound() ? k + 1 : 1; };
  const size_t begin = next(last);
  const IndexView has = is_heard ? graph_.reaches(i) : nobody_;
  size_t room = options_.known_per_heartbeat;
  const bool all = heard_.view().ForEachMissing(has, begin, [&](size_t other) {
    if (room == 0) return false;
    if (other == i) return true;
    if (message->known.empty()) message->known.reserve(room);
    message->known.push_back(records_[other]);
    --room;
    last = other;
    return true;
  });
  if (all) last = begin;
}

void Membership::Hurry(size_t i, int64_t now_us) {
  send_due_us_[i] = now_us;
  next_wake_us_ = std::min(next_wake_us_, now_us);
}

void Membership::RefreshDetails() {
  if (!details_stale_ && details_ != nullptr) return;
  auto details = std::make_shared<HeartbeatDetails>();
  details->record = std::make_shared<const NodeRecord>(self_);
  // In order: then others find the differences at the least cost (TakeList).
  for (const size_t i : graph_.by_id()) {
    if (i != 0 && graph_.reaches(0).Has(i)) details->reaches.push_back(graph_.id(i));
    if (members_.Has(i)) details->members.push_back(graph_.id(i));
  }
  if (HasCoordinatorDesired()) {
    auto stored = std::make_shared<DesiredState>();
    stored->version = stored_;
    details->desired = std::move(stored);
  } else {
    details->desired = desired_;
  }
  details_ = std::move(details);
  ++details_version_;
  details_stale_ = false;
}

void Membership::Leave(int64_t now_us) {
  role_ = Role::kLeft;
  wanted_ = obeyed_ = ReachGraph::kNone;
  epoch_ = ClusterEpoch();
  members_.Clear();
  void_before_us_ = last_stamp_us_;
  details_stale_ = true;
  ++changes_;
  heard_.ForEach([&](size_t i) { Hurry(i, now_us); });
}

}  // namespace strata
