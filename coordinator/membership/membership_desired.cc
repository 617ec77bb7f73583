// The desired state: what is to stay loaded, and whose list of that is the newest.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/membership/membership.h"

namespace strata {

void Membership::OpenDesired(DesiredStatePtr desired) {
  stored_ = desired->version;
  desired_ = std::move(desired);
}

// If it is newer.
void Membership::TakeDesired(const DesiredStatePtr& desired) {
  if (desired == desired_ || *desired <= *desired_) return;
  desired_ = desired;
  ++changes_;
}

void Membership::OnDesiredStored(const DesiredVersion& version, int64_t now_us) {
  if (version <= stored_) return;
  stored_ = version;
  ++changes_;
  AnnounceDesired(now_us);
}

absl::Status Membership::ChangeDesired(std::vector<std::string> models, int64_t now_us) {
  Advance(now_us);
  if (role_ != Role::kCoordinator) {
    return absl::FailedPreconditionError("this node does not coordinate");
  }
  std::erase_if(models, [](const std::string& one) { return one.size() > kDesiredStateBytesMax; });
  if (models.size() > kDesiredStatesMax) models.resize(kDesiredStatesMax);
  const DesiredVersion before = desired_->version;
  if (epoch_.counter == 0 || epoch_ < before.epoch) ClaimEpochAbove(before.epoch.counter);
  auto changed = std::make_shared<DesiredState>();
  changed->version.epoch = epoch_;
  changed->version.change = epoch_ == before.epoch ? before.change + 1 : 1;
  changed->models = std::move(models);
  TakeDesired(std::move(changed));
  AnnounceDesired(now_us);
  return absl::OkStatus();
}

// Whether the details that this node has of it are those of its newest message.
bool Membership::HasDetails(size_t i) const {
  const Peer& peer = peers_[i];
  return peer.details != nullptr && peer.details_version == peer.said->details_version;
}

// Whether this node is a member, and its coordinator's list is as new as its own.
bool Membership::HasCoordinatorDesired() const {
  return role_ == Role::kMember && HasDetails(obeyed_) &&
         peers_[obeyed_].said->obeys == graph_.id(obeyed_) &&
         (peers_[obeyed_].details->desired == desired_ ||
          *desired_ <= *peers_[obeyed_].details->desired);
}

bool Membership::KnowsMembersDesired() const {
  bool knows = role_ == Role::kCoordinator;
  members_.ForEach([&](size_t i) { knows = knows && (i == 0 || HasDetails(i)); });
  return knows;
}

bool Membership::IsDesiredStored() const {
  bool have = KnowsMembersDesired() && stored_ >= desired_->version;
  members_.ForEach([&](size_t i) {
    have = have && (i == 0 || peers_[i].details->desired->version >= desired_->version);
  });
  return have;
}

bool Membership::LeavesDesiredToAnother(int64_t now_us) const {
  if (role_ != Role::kCoordinator) return false;
  for (size_t i = 1; i < graph_.bound(); ++i) {
    if (!members_.Has(i) && IsCoordinator(i) && Fresh(peers_[i], now_us) && graph_.Linked(0, i) &&
        HasDetails(i) && peers_[i].details->desired->version >= desired_->version &&
        MyRank(now_us) < RankOf(i)) {
      return true;
    }
  }
  return false;
}

// After each message of peer `i`.
void Membership::FollowDesired(size_t i, int64_t now_us) {
  const NodeId& obeys = peers_[i].said->obeys;
  const bool leads = role_ == Role::kMember && obeyed_ == i && obeys == graph_.id(i);
  const bool follows = role_ == Role::kCoordinator && members_.Has(i) && obeys == self_.id;
  if (!(leads || follows) || !HasDetails(i)) return;
  TakeDesired(peers_[i].details->desired);
  AnnounceDesired(now_us);
}

// If the details do not say so yet. At once, so that no message has older ones.
void Membership::AnnounceDesired(int64_t now_us) {
  const bool omits = HasCoordinatorDesired();
  const DesiredVersion& version = omits ? stored_ : desired_->version;
  if (details_ != nullptr && details_->desired->version == version &&
      omits == (details_->desired != desired_)) {
    return;
  }
  details_stale_ = true;
  RefreshDetails();
  next_check_us_ = next_wake_us_ = now_us;
  if (role_ == Role::kMember) Hurry(obeyed_, now_us);
  if (role_ != Role::kCoordinator) return;
  members_.ForEach([&](size_t i) {
    if (i != 0) Hurry(i, now_us);
  });
}

}  // namespace strata
