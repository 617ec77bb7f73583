// Processes that share an id: the decision which of them has the node's place.
#include <algorithm>
#include <memory>
#include <utility>

#include "coordinator/membership/membership.h"

namespace strata {
namespace {

// Reported running times differ by the time that messages take.
constexpr int64_t kSameAgeUs = 1'000'000;
// A process that answered at an address is probed there again within this time.
constexpr int64_t kReprobeUs = 25'000'000;

// splitmix64
uint64_t Mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Empty: none is known.
std::string FirstAddress(const NodeRecord* record) {
  return record == nullptr || record->addresses.empty() ? "" : record->addresses.front();
}

}  // namespace

OtherProcess OtherProcessOf(const Heartbeat& message) {
  const HeartbeatBody& body = *message.body;
  OtherProcess process = {.nonce = body.nonce};
  if (!body.leaving) {
    process.placed = body.placed;
    if (body.started_us >= 0 && message.sent_us > body.started_us) {
      process.running_us = std::min(message.sent_us - body.started_us, kRunningUsMax);
    }
  }
  if (message.details != nullptr) process.address = FirstAddress(&*message.details->record);
  return process;
}

// Whether the process that has the place of node `i` is alive, as far as is known.
bool Membership::HasPlace(size_t i, const Heartbeat* challenge, int64_t now_us) const {
  const Peer& peer = peers_[i];
  if (peer.boot == 0 || peer.leaving || peer.ended || peer.other_version) return false;
  // One machine has one process: a message of a new one shows that the one before has ended.
  const bool same_machine = challenge != nullptr && challenge->details != nullptr &&
                            records_[i] != nullptr && !records_[i]->addresses.empty() &&
                            challenge->details->record->addresses == records_[i]->addresses;
  // After a stall, unread messages may be from the process that has the place.
  if (same_machine) {
    const int64_t since_us = std::max({peer.last_heard_us, peer.quiet_until_us, awake_since_us_});
    return now_us - since_us < options_.silent_ms * 1000;
  }
  return now_us - std::max(HeardUs(peer), awake_since_us_) < options_.gone_after_ms * 1000;
}

void Membership::Challenge(size_t i, OtherProcess process, int64_t lasts_us, int64_t now_us) {
  std::unique_ptr<Challenger>& challenger = peers_[i].challenger;
  if (challenger != nullptr && challenger->process.nonce != process.nonce &&
      now_us - challenger->last_us < options_.gone_after_ms * 1000) {
    return;
  }
  if (challenger == nullptr || challenger->process.nonce != process.nonce) {
    challenger = std::make_unique<Challenger>();
    challenger->first_us = now_us;
  }
  // For people: one address suffices, and stays the same.
  if (!challenger->process.address.empty()) process.address = challenger->process.address;
  challenger->process = std::move(process);
  challenger->last_us = now_us;
  challenger->until_us = std::max(challenger->until_us, now_us + lasts_us);
  Disturb(i, now_us);  // so that the process that has the place is heard soon
  UpdateChallenger(i, now_us);
}

// Whether the challenger and the process that has the place were both heard for a while. Otherwise
// the challenger may be a restart, and the other's messages its last ones.
bool Membership::BothLive(size_t i, int64_t now_us) const {
  const Peer& peer = peers_[i];
  return peer.challenger != nullptr && now_us < peer.challenger->until_us &&
         HasPlace(i, nullptr, now_us) &&
         peer.challenger->last_us - peer.challenger->first_us >= options_.silent_ms * 500 &&
         peer.last_heard_us - peer.challenger->first_us >= options_.silent_ms * 500;
}

void Membership::UpdateChallenger(size_t i, int64_t now_us) {
  std::unique_ptr<Challenger>& challenger = peers_[i].challenger;
  if (challenger == nullptr) return;
  const bool shown = BothLive(i, now_us);
  if (shown != std::exchange(challenger->shown, shown)) ++changes_;
  if (now_us >= challenger->until_us) challenger = nullptr;
}

bool Membership::IsToThisProcess(const Heartbeat& message) const {
  return message.your_nonce == 0 || message.your_nonce == self_.nonce;
}

// The answer to a process whose place another process has.
Heartbeat Membership::Refusal(const Heartbeat& request, int64_t now_us) {
  Heartbeat reply;
  reply.body = Body(now_us);
  reply.to = request.body->from;
  reply.your_nonce = request.body->nonce;
  reply.sent_us = NextStamp(now_us);
  reply.answers_us = request.sent_us;
  reply.refused = true;
  const size_t i = graph_.Find(request.body->from);
  if (i == 0) {
    auto self = Self(now_us);
    self.address = FirstAddress(&self_);
    reply.other = std::make_shared<const OtherProcess>(std::move(self));
  } else if (i != ReachGraph::kNone && BothLive(i, now_us)) {
    const Peer& peer = peers_[i];
    OtherProcess holder = {.nonce = peer.nonce, .placed = peer.said->placed};
    const int64_t ran_us = peer.heard_sent_us - std::max<int64_t>(peer.said->started_us, 0);
    holder.running_us =
        std::clamp<int64_t>(ran_us, 0, kRunningUsMax) + (now_us - peer.last_heard_us);
    holder.address = FirstAddress(records_[i].get());
    reply.other = std::make_shared<const OtherProcess>(std::move(holder));
  }
  return reply;
}

// A request from a process with this node's id.
absl::StatusOr<Heartbeat> Membership::OnOwnId(const Heartbeat& request, int64_t now_us) {
  absl::Status status = Check(request);
  const HeartbeatBody& body = *request.body;
  const bool another = body.cluster != nullptr && *body.cluster == self_.cluster &&
                       body.protocol == self_.protocol && body.nonce != self_.nonce &&
                       body.nonce != 0;
  if (!another) return status;
  Advance(now_us);
  TakeOther(OtherProcessOf(request), now_us);
  if (out_ || role_ == Role::kLeft) {
    return absl::UnavailableError("the process here has the same id and is in no cluster");
  }
  return Refusal(request, now_us);
}

void Membership::OnProcess(const NodeId& node, const OtherProcess& process, int64_t now_us) {
  Advance(now_us);
  if (process.nonce == 0) return;
  if (node == self_.id) return TakeOther(process, now_us);
  const size_t i = graph_.Find(node);
  if (i == ReachGraph::kNone || peers_[i].nonce == process.nonce || !HasPlace(i, nullptr, now_us))
    return;
  Challenge(i, process, kReprobeUs, now_us);
}

OtherProcess Membership::Self(int64_t now_us) const {
  OtherProcess self = {.nonce = self_.nonce};
  if (out_) return self;
  self.running_us = std::max<int64_t>(0, now_us - started_us_);
  self.placed = InGroup() || now_us < placed_until_us_;
  return self;
}

// A peer reports that another live process has this node's id.
void Membership::TakeOther(const OtherProcess& other, int64_t now_us) {
  if (other.nonce == 0 || other.nonce == self_.nonce || role_ == Role::kLeft) return;
  const bool loses = Loses(other, now_us);
  const bool known = KnowsRival(now_us);
  if (known && rival_.nonce != other.nonce && !loses) return;  // keep one of several
  if (!known || rival_.nonce != other.nonce) {
    rival_since_us_ = now_us;
    ++changes_;
  }
  const std::string shown = rival_.nonce == other.nonce ? rival_.address : "";
  rival_ = other;
  if (!shown.empty()) rival_.address = shown;
  if (rival_.address != shown) ++changes_;
  rival_reported_us_ = now_us;
  if (out_) {
    obeys_until_us_ = now_us + obedience_us_;
  } else if (loses) {
    const bool at_once = !Self(now_us).placed;
    const bool long_enough = now_us - rival_since_us_ >= options_.gone_after_ms * 1000;
    if (at_once || (long_enough && !InContestedGroup(now_us))) StepOut(now_us);
  }
}

bool Membership::KnowsRival(int64_t now_us) const {
  return rival_reported_us_ != 0 && now_us - rival_reported_us_ < options_.gone_after_ms * 2000;
}

// The rule of "Shared ids": the same order on both sides.
bool Membership::Loses(const OtherProcess& other, int64_t now_us) const {
  const OtherProcess self = Self(now_us);
  if (self.placed != other.placed) return other.placed;
  const int64_t older_us = other.running_us - self.running_us;
  if (older_us > kSameAgeUs || older_us < -kSameAgeUs) return older_us > 0;
  return other.nonce < self_.nonce;
}

bool Membership::InGroup() const {
  return role_ == Role::kMember || (role_ == Role::kCoordinator && members_.Count() > 1);
}

// Whether most nodes of the group share their ids: then it is a cluster of its own.
bool Membership::InContestedGroup(int64_t now_us) const {
  if (!InGroup()) return false;
  const IndexSet& members = role_ == Role::kCoordinator ? members_ : peers_[obeyed_].members;
  size_t contested = KnowsRival(now_us) && rival_.placed ? 1 : 0, n = 1;
  members.ForEach([&](size_t i) {
    if (i == 0) return;
    ++n;
    contested += peers_[i].said->contested ? 1 : 0;
  });
  return n > 1 && 2 * contested > n;
}

// Another process has the place: leaves the cluster. Peers take it as a good-bye.
void Membership::StepOut(int64_t now_us) {
  heard_.ForEach([&](size_t i) { Hurry(i, now_us); });
  members_.ForEach([&](size_t i) { peers_[i].lease_until_us = 0; });
  BeginBoot(self_.boot, now_us);
  obeys_until_us_ = now_us + obedience_us_;
  placed_until_us_ = 0;
  out_ = true;
  next_check_us_ = next_wake_us_ = now_us;
}

// This process was set back to an old snapshot, and may run on elsewhere, too: its state of groups
// is out of date.
void Membership::StartOver(int64_t now_us) {
  self_.nonce = Mixed(self_.nonce ^ Mixed(static_cast<uint64_t>(now_us)));
  started_us_ = now_us;
  placed_until_us_ = 0;
  BeginBoot(self_.boot + 1, now_us);
  heard_.ForEach([&](size_t i) { Hurry(i, now_us); });
  next_check_us_ = next_wake_us_ = now_us;
}

void Membership::AddSharedIds(ClusterView* view) const {
  const std::string own = FirstAddress(&self_);
  if (out_ || KnowsRival(now_us_)) {
    view->shared_ids.push_back({.id = self_.id,
                                .taken_address = out_ ? rival_.address : own,
                                .refused_address = out_ ? own : rival_.address,
                                .since_us = rival_since_us_,
                                .this_is_refused = out_});
  }
  for (size_t i = 1; i < graph_.bound(); ++i) {
    if (peers_[i].challenger == nullptr || !BothLive(i, now_us_)) continue;
    const Challenger& challenger = *peers_[i].challenger;
    view->shared_ids.push_back({.id = graph_.id(i),
                                .taken_address = FirstAddress(records_[i].get()),
                                .refused_address = challenger.process.address,
                                .since_us = challenger.first_us});
  }
}

}  // namespace strata
