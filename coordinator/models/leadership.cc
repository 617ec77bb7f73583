// Whether this node coordinates, and what follows from it: models go with the role, and what a
// coordinator before has left behind goes when it comes.
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/log/log.h"
#include "absl/time/time.h"
#include "coordinator/models/cluster_snapshot.h"
#include "coordinator/models/coordinator.h"
#include "coordinator/request/request_status.h"
#include "transport/base/epoch.h"
#include "transport/base/steady_time.h"

namespace strata {
namespace {

// While texts run or a model is being recovered, and else: what changes otherwise says so itself.
constexpr uint64_t kBusyTickMs = 200, kTickMs = 1'000;
// After what may have left stages behind; doubles with each sweep that finds none.
constexpr absl::Duration kReclaimAfter = absl::Seconds(5), kReclaimAfterMax = absl::Minutes(1);
// So long what was held at the coordinator before stays for who holds it.
constexpr absl::Duration kHeldTime = absl::Seconds(10);

absl::Status NotCoordinating() {
  return AsLeaderChanged(
      absl::UnavailableError("this node does not coordinate the cluster; try again"));
}

}  // namespace

template <typename T>
absl::StatusOr<T> Coordinator::CallOnLoop(std::function<T()> fn) {
  struct Answer {
    absl::Mutex mu;
    std::optional<T> value ABSL_GUARDED_BY(mu);
  };
  const auto answer = std::make_shared<Answer>();  // shared with the loop
  loop_->Post([answer, fn = std::move(fn)] {
    T value = fn();
    absl::MutexLock lock(answer->mu);
    answer->value = std::move(value);
  });
  absl::MutexLock lock(answer->mu);
  const auto there = [&answer]() ABSL_SHARED_LOCKS_REQUIRED(answer->mu) {
    return answer->value.has_value();
  };
  while (!answer->mu.AwaitWithTimeout(absl::Condition(&there), kPoll)) {
    if (stopping()) return absl::UnavailableError("the node is stopping");
  }
  return *std::move(answer->value);
}

Coordinator::Leadership Coordinator::leadership() {
  const auto leadership = CallOnLoop<Leadership>([this, cluster = cluster_] {
    {
      // What is loaded next must not fall to a tick's older look.
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
  return leadership().mine ? absl::OkStatus() : NotCoordinating();
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
  const bool mine = cluster_->view().is_coordinator;
  if (is_leader_ && !mine) StepDown();
  is_leader_ = mine;
  settled_ = cluster_->view().settled;
  misses_ = cluster_->MissedNodes();
  // One that stops leaves the others, and is asked until its server ends.
  if (!stopping_) has_successors_ = cluster_->view().members.size() > 1;
}

// Of what StepDown() leaves.
bool Coordinator::IsEmpty() const {
  return reloads_unseen_ && held_.empty() && pending_reloads_.empty() && models_.empty() &&
         leases_.empty() && pinned_.empty();
}

void Coordinator::StepDown() {
  reloads_unseen_ = true;
  held_.clear();
  refused_.clear();
  pending_reloads_.clear();
  for (auto& [id, model] : models_) lost_.push_back(model);
  models_.clear();
  leases_.clear();
  pinned_.clear();
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
    for (const auto& [id, model] : models_) models.push_back(model);
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
  // A group that has models loaded is not given up for one that has none.
  for (const auto& [id, model] : models_) {
    live += 1 + model->texts();
    // Those that could not be recovered may be when a node has come.
    if (model->recovering()) recovery_due_ = true;
    busy = busy || model->recovering() || model->texts() > 0;
  }
  // Nor for one that knows nothing of the models that this one is about to load again.
  live += static_cast<uint32_t>(pending_reloads_.size());
  if (members_changed) {
    refused_.clear();
    retry_due_ = true;
    ScheduleRebalance();
  }
  work_ = live;
  for (const ClusterView::Node& node : view.nodes) {
    if (node.member && node.record.id != cluster_->id()) work_ += node.live_requests;
  }
  cluster_->membership()->SetLiveRequests(live);
  cluster_->membership()->SetBusy(busy);
  RefreshLeadership();
  PublishDesiredState();
  if (members_changed) ++members_seen_;
  return busy;
}

// What is there to stay, and what this node has yet to load of what it has inherited itself. One
// that stops leaves what it had.
void Coordinator::PublishDesiredState() {
  if (stopping_) return;
  std::vector<std::string> desired_state;
  if (is_leader_) {
    for (const auto& [id, origin] : pinned_) desired_state.push_back(origin.SerializeAsString());
    for (const auto& [id, pending_reload] : pending_reloads_) {
      if (!pinned_.contains(id))
        desired_state.push_back(pending_reload.request.SerializeAsString());
    }
    if (reloads_unseen_) {
      const std::vector<std::string>& inherited = cluster_->membership()->desired_state();
      desired_state.insert(desired_state.end(), inherited.begin(), inherited.end());
    }
  }
  cluster_->SetDesiredState(std::move(desired_state));
}

void Coordinator::PublishDesiredStateNow() {
  // Unless the node is stopping.
  CallOnLoop<bool>([this] {
    absl::MutexLock lock(mu_);
    PublishDesiredState();
    return true;
  }).IgnoreError();
}

void Coordinator::RunLeadershipLoop() {
  uint64_t swept = 0;
  uint64_t ended = 0;
  SteadyTime sweep_at = SteadyTime::InfinitePast();
  absl::Duration sweep_after = kReclaimAfter;
  while (true) {
    std::vector<DeploymentPtr> lost;
    bool is_leader = false;
    uint64_t seen = 0;
    {
      absl::MutexLock lock(mu_);
      const bool was_mine = is_leader_ && settled_;
      const auto wanted = [&, this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
        const bool mine = is_leader_ && settled_;
        return stopping_ || !lost_.empty() || mine != was_mine || (!is_leader_ && !IsEmpty()) ||
               (mine && (members_seen_ != swept || ended_ != ended));
      };
      mu_.AwaitWithTimeout(absl::Condition(&wanted),
                           was_mine ? sweep_at - SteadyTime::Now() : absl::InfiniteDuration());
      if (stopping_) return;
      if (!was_mine) sweep_at = SteadyTime::InfinitePast();
      if (std::exchange(ended, ended_) != ended_) {
        sweep_after = kReclaimAfter;
        sweep_at = std::min(sweep_at, SteadyTime::Now() + sweep_after);
      }
      is_leader = is_leader_ && settled_;
      seen = members_seen_;
      if (!is_leader_) StepDown();
      lost.swap(lost_);
    }
    ForEach(lost, [](Deployment* model) {
      LOG(WARNING) << "another node coordinates now: " << model->name() << " is unloaded";
      // Perhaps that one serves it, too.
      model->Unload(AsLeaderChanged(absl::UnavailableError(
          "another node coordinates the cluster now; load the model again")));
    });
    if (is_leader && (seen != swept || SteadyTime::Now() >= sweep_at)) {
      if (std::exchange(swept, seen) != seen) sweep_after = kReclaimAfter;
      const bool found_none = ReclaimStaleStages();
      sweep_at = SteadyTime::Now() + sweep_after;
      sweep_after = found_none ? std::min(2 * sweep_after, kReclaimAfterMax) : kReclaimAfter;
    }
  }
}

// Stages of plans that are no more hold memory for nothing. Those of programs that coordinate for
// themselves carry no node's id and are left alone.
bool Coordinator::ReclaimStaleStages() {
  auto report = Report();
  if (!report.ok()) return false;
  std::vector<wire::Epoch> known;
  std::set<std::string> kept;  // ids of models whose next plan may keep stages
  bool adopts = false;
  {
    absl::MutexLock lock(mu_);
    if (stopping_ || !is_leader_ || !settled_) return false;
    adopts = reloads_unseen_;
    // A model is here before its first stage is.
    for (const auto& [id, model] : models_) {
      known.push_back(model->epoch());
      if (!model->serving()) kept.insert(id);
    }
    for (const auto& [id, pending_reload] : pending_reloads_) kept.insert(id);
    kept.insert(loading_again_.begin(), loading_again_.end());
    std::erase_if(held_, [](const auto& held) { return held.second < SteadyTime::Now(); });
    for (const auto& [id, until] : held_) kept.insert(id);
    if (prepared_) known.push_back(*prepared_);
  }
  std::map<std::string, wire::LoadModelRequest> pending_reloads;  // by id
  if (adopts) {
    const auto desired_state = CallOnLoop<std::vector<std::string>>(
        [cluster = cluster_] { return cluster->membership()->desired_state(); });
    if (!desired_state.ok()) return false;
    for (const std::string& one : *desired_state) {
      wire::LoadModelRequest origin;
      if (!origin.ParseFromString(one) || origin.model_id().empty()) continue;
      pending_reloads[origin.model_id()] = std::move(origin);
    }
  }
  bool made_room = false, found_none = kept.empty();
  const auto may_go_on = [this] {
    absl::MutexLock lock(mu_);
    return !stopping_ && is_leader_;
  };
  for (const NodeReport& node : report->nodes) {
    if (!node.seen.member()) continue;
    if (node.client == nullptr) found_none = false;
    if (node.client == nullptr) continue;
    for (const wire::StageStatus& stage : node.info.stages()) {
      const bool wanted = absl::c_any_of(known, [&](const wire::Epoch& epoch) {
        return CompareEpochs(epoch, stage.epoch()) == 0;
      });
      if (wanted || !NodeId::FromHex(stage.epoch().coordinator_id()).ok()) continue;
      if (!may_go_on()) return false;
      found_none = false;
      // Later ones are left of what this node itself has unloaded, or failed to load.
      const bool was_served =
          stage.state() == wire::StageStatus::SERVING || stage.state() == wire::StageStatus::FAILED;
      wire::LoadModelRequest origin;
      if (adopts && was_served && !stage.origin().empty() &&
          origin.ParseFromString(stage.origin())) {
        if (origin.hold()) {
          absl::MutexLock lock(mu_);
          held_[stage.model_id()] = SteadyTime::Now() + kHeldTime;
          kept.insert(stage.model_id());
        } else {
          pending_reloads[origin.model_id()] = std::move(origin);
        }
      }
      if (stage.state() == wire::StageStatus::SERVING && stage.n_cpu_moe() == 0 &&
          (kept.contains(stage.model_id()) || pending_reloads.contains(stage.model_id()))) {
        continue;
      }
      LOG(WARNING) << node.name() << ": stage " << stage.stage() << " of epoch "
                   << EpochString(stage.epoch()) << " is left over and unloaded";
      wire::UnloadStageRequest request;
      *request.mutable_epoch() = stage.epoch();
      request.set_stage(stage.stage());
      // Tried again at the next sweep.
      const absl::Status gone = node.client->UnloadStage(
          request, [&] { return may_go_on() && !IsGone(node.client->id()); });
      // What failed took none; and a model that is tried in vain must not be what has it tried
      // again.
      made_room = made_room || (gone.ok() && stage.state() == wire::StageStatus::SERVING &&
                                !kept.contains(stage.model_id()));
    }
  }
  absl::MutexLock lock(mu_);
  reload_due_ = reload_due_ || made_room;
  if (!adopts || !is_leader_) return found_none;
  reloads_unseen_ = false;
  for (auto& [id, origin] : pending_reloads) {
    if (models_.contains(id) || pending_reloads_.size() >= kModelsMax) continue;
    pending_reloads_[id] = {.request = std::move(origin)};
    retry_due_ = true;
  }
  return false;
}

absl::StatusOr<ClusterSnapshot> Coordinator::Report(const std::vector<std::string>& only) {
  return CollectReport(self_address_, only);
}

absl::StatusOr<wire::Epoch> Coordinator::NextEpoch() {
  auto epoch = CallOnLoop<absl::StatusOr<wire::Epoch>>([this] { return cluster_->NextEpoch(); });
  if (!epoch.ok()) return epoch.status();
  return *std::move(epoch);
}

}  // namespace strata
