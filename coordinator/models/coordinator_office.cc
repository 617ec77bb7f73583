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
#include "coordinator/models/cluster_report.h"
#include "coordinator/models/coordinator.h"
#include "coordinator/request/request_status.h"
#include "transport/base/epoch.h"
#include "transport/base/steady_time.h"

namespace strata {
namespace {

// While texts run or a model is being mended, and else: what changes otherwise says so itself.
constexpr uint64_t kBusyTickMs = 200, kTickMs = 1'000;
// After what may have left stages behind; doubles with each sweep that finds none.
constexpr absl::Duration kSweepAfter = absl::Seconds(5), kSweepAfterMax = absl::Minutes(1);
// So long what was held at the coordinator before stays for who holds it.
constexpr absl::Duration kHeldTime = absl::Seconds(10);

absl::Status NotCoordinating() {
  return AsHandedOver(
      absl::UnavailableError("this node does not coordinate the cluster; try again"));
}

}  // namespace

template <typename T>
absl::StatusOr<T> Coordinator::AskLoop(std::function<T()> fn) {
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

Coordinator::Office Coordinator::office() {
  const auto office = AskLoop<Office>([this, cluster = cluster_] {
    {
      // What is loaded next must not fall to a tick's older look.
      absl::MutexLock lock(mu_);
      LookAtOffice();
    }
    const ClusterView& view = cluster->view();
    Office now;
    now.mine = view.is_coordinator;
    now.settled = view.settled;
    if (!now.mine && !view.coordinator.is_nobody())
      now.address = cluster->AddressOf(view.coordinator);
    now.refused = cluster->WhyRefused();
    return now;
  });
  return office.ok() ? *office : Office();
}

absl::Status Coordinator::CheckOffice() {
  return office().mine ? absl::OkStatus() : NotCoordinating();
}

bool Coordinator::IsGone(const std::string& node_id) {
  const absl::StatusOr<NodeId> id = NodeId::FromHex(node_id);
  if (!id.ok()) return false;
  const auto gone = AskLoop<bool>([cluster = cluster_, id = *id] {
    const ClusterView::Node* const node = cluster->view().Find(id);
    return node == nullptr || node->state == ClusterView::State::kGone;
  });
  return gone.ok() && *gone;
}

void Coordinator::LookAtOffice() {
  const bool mine = cluster_->view().is_coordinator;
  if (in_office_ && !mine) LeaveOffice();
  in_office_ = mine;
  settled_ = cluster_->view().settled;
  misses_ = cluster_->MissedNodes();
  // One that stops leaves the others, and is asked until its server ends.
  if (!stopping_) has_heirs_ = cluster_->view().members.size() > 1;
}

// Of what LeaveOffice() leaves.
bool Coordinator::IsEmpty() const {
  return adopts_ && held_.empty() && orphans_.empty() && models_.empty() && shares_.empty() &&
         stays_.empty();
}

void Coordinator::LeaveOffice() {
  adopts_ = true;
  held_.clear();
  refused_.clear();
  orphans_.clear();
  for (auto& [id, model] : models_) lost_.push_back(model);
  models_.clear();
  shares_.clear();
  stays_.clear();
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
  const bool members_changed = lost_members_.Look(view, SteadyTime::Now(), &losses_);
  // A group that has models loaded is not given up for one that has none.
  for (const auto& [id, model] : models_) {
    live += 1 + model->texts();
    // Those that could not be mended may be when a node has come.
    if (model->mending()) mend_due_ = true;
    busy = busy || model->mending() || model->texts() > 0;
  }
  // Nor for one that knows nothing of the models that this one is about to load again.
  live += static_cast<uint32_t>(orphans_.size());
  if (members_changed) {
    refused_.clear();
    retry_due_ = true;
    LookAgain();
  }
  work_ = live;
  for (const ClusterView::Node& node : view.nodes) {
    if (node.member && node.record.id != cluster_->id()) work_ += node.live_requests;
  }
  cluster_->membership()->SetLiveRequests(live);
  cluster_->membership()->SetBusy(busy);
  LookAtOffice();
  TellHeritage();
  if (members_changed) ++members_seen_;
  return busy;
}

// What is there to stay, and what this node has yet to load of what it has inherited itself. One
// that stops leaves what it had.
void Coordinator::TellHeritage() {
  if (stopping_) return;
  std::vector<std::string> heritage;
  if (in_office_) {
    for (const auto& [id, origin] : stays_) heritage.push_back(origin.SerializeAsString());
    for (const auto& [id, orphan] : orphans_) {
      if (!stays_.contains(id)) heritage.push_back(orphan.request.SerializeAsString());
    }
    if (adopts_) {
      const std::vector<std::string>& inherited = cluster_->membership()->heritage();
      heritage.insert(heritage.end(), inherited.begin(), inherited.end());
    }
  }
  cluster_->SetHeritage(std::move(heritage));
}

void Coordinator::TellHeritageNow() {
  // Unless the node is stopping.
  AskLoop<bool>([this] {
    absl::MutexLock lock(mu_);
    TellHeritage();
    return true;
  }).IgnoreError();
}

void Coordinator::Keep() {
  uint64_t swept = 0;
  uint64_t ended = 0;
  SteadyTime sweep_at = SteadyTime::InfinitePast();
  absl::Duration sweep_after = kSweepAfter;
  while (true) {
    std::vector<DeploymentPtr> lost;
    bool in_office = false;
    uint64_t seen = 0;
    {
      absl::MutexLock lock(mu_);
      const bool was_mine = in_office_ && settled_;
      const auto wanted = [&, this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
        const bool mine = in_office_ && settled_;
        return stopping_ || !lost_.empty() || mine != was_mine || (!in_office_ && !IsEmpty()) ||
               (mine && (members_seen_ != swept || ended_ != ended));
      };
      mu_.AwaitWithTimeout(absl::Condition(&wanted),
                           was_mine ? sweep_at - SteadyTime::Now() : absl::InfiniteDuration());
      if (stopping_) return;
      if (!was_mine) sweep_at = SteadyTime::InfinitePast();
      if (std::exchange(ended, ended_) != ended_) {
        sweep_after = kSweepAfter;
        sweep_at = std::min(sweep_at, SteadyTime::Now() + sweep_after);
      }
      in_office = in_office_ && settled_;
      seen = members_seen_;
      if (!in_office_) LeaveOffice();
      lost.swap(lost_);
    }
    ForEach(lost, [](Deployment* model) {
      LOG(WARNING) << "another node coordinates now: " << model->name() << " is unloaded";
      // Perhaps that one serves it, too.
      model->Unload(AsHandedOver(absl::UnavailableError(
          "another node coordinates the cluster now; load the model again")));
    });
    if (in_office && (seen != swept || SteadyTime::Now() >= sweep_at)) {
      if (std::exchange(swept, seen) != seen) sweep_after = kSweepAfter;
      const bool found_none = Sweep();
      sweep_at = SteadyTime::Now() + sweep_after;
      sweep_after = found_none ? std::min(2 * sweep_after, kSweepAfterMax) : kSweepAfter;
    }
  }
}

// Stages of plans that are no more hold memory for nothing. Those of programs that coordinate for
// themselves carry no node's id and are left alone.
bool Coordinator::Sweep() {
  auto report = Report();
  if (!report.ok()) return false;
  std::vector<wire::Epoch> known;
  std::set<std::string> kept;  // ids of models whose next plan may keep stages
  bool adopts = false;
  {
    absl::MutexLock lock(mu_);
    if (stopping_ || !in_office_ || !settled_) return false;
    adopts = adopts_;
    // A model is here before its first stage is.
    for (const auto& [id, model] : models_) {
      known.push_back(model->epoch());
      if (!model->serving()) kept.insert(id);
    }
    for (const auto& [id, orphan] : orphans_) kept.insert(id);
    kept.insert(loading_again_.begin(), loading_again_.end());
    std::erase_if(held_, [](const auto& held) { return held.second < SteadyTime::Now(); });
    for (const auto& [id, until] : held_) kept.insert(id);
    if (prepared_) known.push_back(*prepared_);
  }
  std::map<std::string, wire::LoadModelRequest> orphans;  // by id
  if (adopts) {
    const auto heritage = AskLoop<std::vector<std::string>>(
        [cluster = cluster_] { return cluster->membership()->heritage(); });
    if (!heritage.ok()) return false;
    for (const std::string& one : *heritage) {
      wire::LoadModelRequest origin;
      if (!origin.ParseFromString(one) || origin.model_id().empty()) continue;
      orphans[origin.model_id()] = std::move(origin);
    }
  }
  bool made_room = false, found_none = kept.empty();
  const auto may_go_on = [this] {
    absl::MutexLock lock(mu_);
    return !stopping_ && in_office_;
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
          orphans[origin.model_id()] = std::move(origin);
        }
      }
      if (stage.state() == wire::StageStatus::SERVING && stage.n_cpu_moe() == 0 &&
          (kept.contains(stage.model_id()) || orphans.contains(stage.model_id()))) {
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
  adopt_due_ = adopt_due_ || made_room;
  if (!adopts || !in_office_) return found_none;
  adopts_ = false;
  for (auto& [id, origin] : orphans) {
    if (models_.contains(id) || orphans_.size() >= kModelsMax) continue;
    orphans_[id] = {.request = std::move(origin)};
    retry_due_ = true;
  }
  return false;
}

absl::StatusOr<ClusterReport> Coordinator::Report(const std::vector<std::string>& only) {
  return CollectReport(self_address_, only);
}

absl::StatusOr<wire::Epoch> Coordinator::NextEpoch() {
  auto epoch = AskLoop<absl::StatusOr<wire::Epoch>>([this] { return cluster_->NextEpoch(); });
  if (!epoch.ok()) return epoch.status();
  return *std::move(epoch);
}

}  // namespace strata
