// Leadership of this node: when it loses the role, its models are unloaded; when it gets the role,
// stages that a previous coordinator left behind are reclaimed.
#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "coordinator/models/cluster_snapshot.h"
#include "coordinator/models/coordinator.h"
#include "coordinator/request/request_status.h"
#include "transport/base/epoch.h"
#include "transport/base/steady_time.h"

namespace strata {
namespace {

// While requests run or a model is being recovered, and else: other changes are signalled.
constexpr uint64_t kBusyTickMs = 200, kTickMs = 1'000;
// A change of the desired state waits so long until the present one is known, and for the disks.
constexpr absl::Duration kLearnTime = absl::Seconds(10), kStoreTime = absl::Seconds(2);
// How long the stages of models that were leased from the previous coordinator stay for the lease
// holders.
constexpr absl::Duration kHeldTime = absl::Seconds(10);

absl::Status NotCoordinating() {
  return AsLeaderChanged(
      absl::UnavailableError("this node does not coordinate the cluster; try again"));
}

}  // namespace

template <typename T>
absl::StatusOr<T> Coordinator::CallOnLoop(std::function<T()> fn) {
  struct Result {
    absl::Mutex mu;
    std::optional<T> value ABSL_GUARDED_BY(mu);
  };
  const auto result = std::make_shared<Result>();  // shared with the loop
  loop_->Post([result, fn = std::move(fn)] {
    T value = fn();
    absl::MutexLock lock(result->mu);
    result->value = std::move(value);
  });
  absl::MutexLock lock(result->mu);
  const auto has_value = [&result]() ABSL_SHARED_LOCKS_REQUIRED(result->mu) {
    return result->value.has_value();
  };
  while (!result->mu.AwaitWithTimeout(absl::Condition(&has_value), kPoll)) {
    if (stopping()) return absl::UnavailableError("the node is stopping");
  }
  return *std::move(result->value);
}

Coordinator::Leadership Coordinator::leadership() {
  const auto leadership = CallOnLoop<Leadership>([this, cluster = cluster_] {
    {
      // A model that is loaded next must not be dropped because of a tick's older view.
      absl::MutexLock lock(mu_);
      RefreshLeadership();
    }
    const ClusterView& view = cluster->view();
    Leadership now;
    now.mine = view.is_coordinator;
    now.settled = view.settled;
    if (!now.mine && !view.coordinator.is_nobody())
      now.address = cluster->AddressOf(view.coordinator);
    now.refused = cluster->WhyRefused();
    return now;
  });
  return leadership.ok() ? *leadership : Leadership();
}

absl::Status Coordinator::CheckLeadership() {
  if (!leadership().mine) return NotCoordinating();
  // Its models are gone before the others know that another node coordinates.
  absl::MutexLock lock(mu_);
  return stopping_ ? Stopping() : absl::OkStatus();
}

absl::Status Coordinator::MayGoOn(const OperationContext& caller) {
  if (!caller.should_continue()) return absl::CancelledError("interrupted");
  absl::MutexLock lock(mu_);
  return role_.is_leader() ? absl::OkStatus() : NotCoordinating();
}

bool Coordinator::IsGone(const std::string& node_id) {
  const absl::StatusOr<NodeId> id = NodeId::FromHex(node_id);
  if (!id.ok()) return false;
  const auto gone = CallOnLoop<bool>([cluster = cluster_, id = *id] {
    const ClusterView::Node* const node = cluster->view().Find(id);
    return node == nullptr || node->state == ClusterView::State::kGone;
  });
  return gone.ok() && *gone;
}

void Coordinator::RefreshLeadership() {
  if (role_.Refresh(cluster_->view(), cluster_->MissedNodes(), stopping_)) StepDown();
}

bool Coordinator::HasModelsOfAnother() const {
  return !role_.is_leader() && (!models_.is_empty() || !reloads_.entries().empty());
}

void Coordinator::StepDown() {
  reloads_.Forget();
  decisions_.Forget();
  excluded_devices_.clear();
  std::ranges::move(models_.Clear(), std::back_inserter(lost_));
  reclaimer_.OnMembersChanged();
}

void Coordinator::Tick() {
  const uint64_t work = work_;
  const uint64_t every_ms = Look() ? kBusyTickMs : kTickMs;
  if (work_ > work && options_.on_more_work) options_.on_more_work();
  if (std::exchange(tick_ms_, every_ms) == every_ms) return;
  timer_ = loop_->StartTimer({.delay_ms = every_ms, .repeat_ms = every_ms}, [this] { Tick(); });
}

void Coordinator::LoseNodes(const ClusterView& view) {
  std::vector<DeploymentPtr> models;
  {
    absl::MutexLock lock(mu_);
    for (const auto& [id, model] : models_.models()) models.push_back(model);
  }
  for (const ClusterView::Node& node : view.nodes) {
    if (node.state != ClusterView::State::kGone || models.empty()) continue;
    const std::string id = node.record.id.ToHex();
    for (const DeploymentPtr& model : models) model->LoseNode(id);
  }
}

bool Coordinator::Look() {
  const ClusterView& view = cluster_->view();
  LoseNodes(view);
  uint32_t live = 0;
  bool busy = false;
  absl::MutexLock lock(mu_);
  const bool members_changed = lost_members_.Look(view, SteadyTime::Now(), &flap_tracker_);
  // A group that has models loaded does not join one that has none.
  for (const auto& [id, model] : models_.models()) {
    live += 1 + model->active_requests();
    // A node that has come may make the recovery possible.
    if (model->recovering()) recovery_.OnLost();
    busy = busy || model->recovering() || model->active_requests() > 0;
  }
  // Nor one that does not know the models that this group is about to load again.
  live += static_cast<uint32_t>(reloads_.entries().size());
  if (members_changed) {
    excluded_devices_.clear();
    recovery_.OnMembersChanged();
    rebalance_.OnChange(SteadyTime::Now());
    replicate_at_ = SteadyTime::Now() + kReplicateAfter;
    reclaimer_.OnMembersChanged();
  }
  retention_.Observe(models_, SteadyTime::Now());
  work_ = live;
  for (const ClusterView::Node& node : view.nodes) {
    if (node.member && node.record.id != cluster_->id()) work_ += node.live_requests;
  }
  cluster_->membership()->SetLiveRequests(live);
  cluster_->membership()->SetBusy(busy);
  RefreshLeadership();
  FollowDesired();
  return busy;
}

void Coordinator::FollowDesired() {
  Membership& membership = *cluster_->membership();
  const auto keep = [&] {
    if (options_.desired_file != nullptr) {
      options_.desired_file->Keep(membership.desired(), cluster_->OwnerLine());
    } else {
      cluster_->OnDesiredStored(membership.desired()->version);
    }
  };
  keep();
  if (!role_.is_leader() || stopping_) {
    if (followed_ != nullptr && *followed_ < *membership.desired()) {
      LogReplacedDesired(*membership.desired());
      followed_ = nullptr;
    }
    return;
  }
  knows_members_desired_ = membership.KnowsMembersDesired();
  if (reloads_.is_unknown()) {
    followed_ = nullptr;
    return;
  }
  if (auto next = decisions_.Next(*membership.desired())) {
    cluster_->ChangeDesired(*std::move(next)).IgnoreError();  // this node coordinates
    keep();
    followed_ = membership.desired();
  }
  if (membership.IsDesiredStored()) decisions_.OnStored();
  // Another group has these models.
  if (followed_ == membership.desired() || cluster_->LeavesDesiredToAnother()) return;
  if (followed_ != nullptr) LogReplacedDesired(*membership.desired());
  followed_ = membership.desired();
  DesiredModels::Followed now = decisions_.Follow(*followed_, kModelsMax, &models_, &reloads_);
  for (DeploymentPtr& model : now.unloads) {
    unlisted_.push_back(std::move(model));
    ++unloads_;
  }
  if (now.reloads) recovery_.OnMembersChanged();
}

// Of two lists that were changed apart from each other, one is lost.
void Coordinator::LogReplacedDesired(const DesiredState& by) {
  const std::map<std::string, wire::LoadModelRequest> before = ModelsOf(*followed_);
  const std::map<std::string, wire::LoadModelRequest> now = ModelsOf(by);
  const auto log = [&](const auto& from, const auto& other, const char* what) {
    for (const auto& [id, origin] : from) {
      if (other.contains(id)) continue;
      LOG(WARNING) << PrintableText::From(origin.name()) << ' ' << what
                   << " to stay loaded: so it was decided through node "
                   << by.version.epoch.coordinator.ToHex() << " (epoch " << by.version.epoch.counter
                   << "), later than what was decided here, which is lost";
    }
  };
  log(before, now, "is no longer");
  log(now, before, "is");
}

void Coordinator::AwaitDesired() {
  uint64_t decided = 0;
  {
    const auto may_change = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !WaitsForDesired(); };
    absl::MutexLock lock(mu_);
    decided = decisions_.decided();
    if (decided == decisions_.stored()) return;
    mu_.AwaitWithTimeout(absl::Condition(&may_change), kLearnTime);
  }
  // Unless the node is stopping.
  CallOnLoop<bool>([this] {
    absl::MutexLock lock(mu_);
    FollowDesired();
    return true;
  }).IgnoreError();
  const auto is_stored = [this, decided]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return stopping_ || !role_.is_leader() || decisions_.stored() >= decided;
  };
  absl::MutexLock lock(mu_);
  mu_.AwaitWithTimeout(absl::Condition(&is_stored), kStoreTime);
}

void Coordinator::UnloadUnlisted(const std::vector<DeploymentPtr>& models) {
  ForEach(models, [this](Deployment* model) {
    UnloadCounted(model);
    absl::MutexLock lock(mu_);
    reclaimer_.OnDeploymentEnded(SteadyTime::Now());
  });
}

bool Coordinator::WaitsForDesired() const {
  return !stopping_ && role_.is_leader() && reloads_.is_unknown();
}

bool Coordinator::MayReclaim() const {
  return role_.may_act() && (!reloads_.is_unknown() || knows_members_desired_);
}

void Coordinator::RunLeadershipLoop() {
  while (true) {
    std::vector<DeploymentPtr> lost, unlisted;
    bool reclaims = false;
    {
      absl::MutexLock lock(mu_);
      const bool could_act = MayReclaim();
      const auto next_at = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
        return std::min(reclaimer_.due_at(), retention_.next_at(models_));
      };
      const SteadyTime due_at = could_act ? next_at() : SteadyTime::InfiniteFuture();
      const auto changed = [&, this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
        return stopping_ || !lost_.empty() || !unlisted_.empty() || MayReclaim() != could_act ||
               (could_act && next_at() < due_at) || HasModelsOfAnother();
      };
      mu_.AwaitWithTimeout(absl::Condition(&changed), due_at - SteadyTime::Now());
      if (stopping_) return;
      if (MayReclaim() && !could_act) reclaimer_.OnMayAct();
      if (HasModelsOfAnother()) StepDown();  // a load may have ended after the role went
      lost.swap(lost_);
      unlisted.swap(unlisted_);
      reclaims = MayReclaim() && SteadyTime::Now() >= reclaimer_.due_at();
      if (reclaims) reclaimer_.Begin();
    }
    ForEach(lost, [](Deployment* model) {
      LOG(WARNING) << "another node coordinates now: " << model->name() << " is unloaded";
      // That node may serve the model, too.
      model->Unload(AsLeaderChanged(absl::UnavailableError(
          "another node coordinates the cluster now; load the model again")));
    });
    UnloadUnlisted(unlisted);
    UnloadExpired();
    if (!reclaims) continue;
    const bool found_none = ReclaimStaleStages();
    absl::MutexLock lock(mu_);
    reclaimer_.End(found_none, SteadyTime::Now());
  }
}

bool Coordinator::ReclaimStaleStages() {
  auto report = Report();
  if (!report.ok()) return false;
  StageInventory loaded;
  {
    absl::MutexLock lock(mu_);
    if (stopping_ || !role_.may_act()) return false;
    loaded.learns = reloads_.is_unknown();
    loaded.kept = reloads_.KeptIds(SteadyTime::Now());
    // A model is in the table before its first stage is loaded.
    for (const auto& [id, model] : models_.models()) {
      loaded.known.push_back(model->epoch());
      if (!model->serving()) loaded.kept.insert(id);
    }
    if (prepared_) loaded.known.push_back(*prepared_);
  }
  DesiredStatePtr desired = NoDesiredState();
  if (loaded.learns) {
    const auto known = CallOnLoop<DesiredStatePtr>([cluster = cluster_] {
      return cluster->LeavesDesiredToAnother() ? NoDesiredState()
                                               : cluster->membership()->desired();
    });
    if (!known.ok()) return false;
    desired = *known;
    for (const auto& [id, origin] : ModelsOf(*desired)) loaded.kept.insert(id);
  }
  bool all_answer = true;
  for (const NodeReport& node : report->nodes) {
    std::vector<wire::StageStatus>& stages = loaded.nodes.emplace_back();
    if (!node.seen.member()) continue;
    all_answer = all_answer && node.client != nullptr;
    if (node.client != nullptr) stages.assign(node.info.stages().begin(), node.info.stages().end());
  }
  StaleStages stale = FindStaleStages(loaded);
  const auto may_go_on = [this] {
    absl::MutexLock lock(mu_);
    return !stopping_ && role_.is_leader();
  };
  bool made_room = false;
  {
    absl::MutexLock lock(mu_);
    if (!role_.is_leader()) return false;
    for (const std::string& id : stale.held) reloads_.Hold(id, SteadyTime::Now() + kHeldTime);
  }
  for (const StaleStages::Stage& one : stale.stages) {
    if (!may_go_on()) return false;
    const NodeReport& node = report->nodes[one.node];
    const wire::StageStatus& stage = loaded.nodes[one.node][one.stage];
    LOG(WARNING) << node.name() << ": stage " << stage.stage() << " of epoch "
                 << EpochString(stage.epoch()) << " is stale and is unloaded";
    wire::UnloadStageRequest request;
    *request.mutable_epoch() = stage.epoch();
    request.set_stage(stage.stage());
    // Where it fails, the next round tries again.
    const absl::Status gone = node.client->UnloadStage(
        request, [&] { return may_go_on() && !IsGone(node.client->id()); });
    made_room = made_room || (gone.ok() && one.makes_room);
  }
  absl::MutexLock lock(mu_);
  if (made_room) recovery_.OnRoomMade();
  if (!loaded.learns || !role_.is_leader()) return stale.found_none && all_answer;
  if (reloads_.Learn(ModelsOf(*desired), models_, kModelsMax)) recovery_.OnMembersChanged();
  return false;
}

absl::StatusOr<ClusterSnapshot> Coordinator::Report(const std::vector<std::string>& only) {
  auto own = CallOnLoop<OwnReport>(options_.own_report);
  if (!own.ok()) return own.status();
  return CollectReport(*std::move(own), self_address_, only,
                       [this](absl::Duration time) { Wait(time, [] { return false; }); });
}

absl::StatusOr<wire::Epoch> Coordinator::NextEpoch() {
  auto epoch = CallOnLoop<absl::StatusOr<wire::Epoch>>([this] { return cluster_->NextEpoch(); });
  if (!epoch.ok()) return epoch.status();
  return *std::move(epoch);
}

}  // namespace strata
