// The role: what coordinator/models/coordinator.cc and leadership.cc do.
// sim_coordinator_mend.cc has what takes a plan.
#include "tests/sim/sim_coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "coordinator/models/coordinator.h"
#include "coordinator/request/request_status.h"
#include "transport/base/epoch.h"

namespace strata {
namespace {

// As in coordinator/models/coordinator.cc and leadership.cc.
constexpr int64_t kTickUs = 200'000;
constexpr int64_t kLeadershipUs = 200'000;
constexpr int64_t kReclaimUs = 5'000'000;
constexpr int64_t kUnloadTimeoutUs = 1'000'000;

}  // namespace

SimCoordinator::~SimCoordinator() {
  if (model_ != nullptr) lost_.push_back(std::move(model_));
  for (const DeploymentPtr& model : lost_) {
    model->Unload(absl::CancelledError("the process has ended"));
  }
}

void SimCoordinator::After(int64_t us, std::function<void()> fn) {
  options_.cluster.processes->After(options_.node, us, std::move(fn));
}

void SimCoordinator::Start() {
  Tick();
  RunLeadershipLoop();
}

void SimCoordinator::Stop() {
  stopping_ = true;
  if (model_ != nullptr) lost_.push_back(std::exchange(model_, nullptr));
  const absl::Status why = absl::UnavailableError("the node that coordinates is stopping");
  for (const DeploymentPtr& model : std::exchange(lost_, {})) {
    if (has_successors_) {
      model->AnnounceLeaderChange(why);
    } else {
      model->Unload(why);
    }
  }
}

bool SimCoordinator::is_leader() const { return cluster().View(options_.node).is_coordinator; }
absl::Status SimCoordinator::Answers() const {
  if (model_ == nullptr) return WhyNot();
  return model_->answers() ? absl::OkStatus() : Coordinator::LoadingAgain();
}
absl::Status SimCoordinator::WhyNot() const {
  if (pending_reload_.has_value() || reloads_unseen_) return Coordinator::LoadingAgain();
  return absl::NotFoundError("no model is loaded");
}
bool SimCoordinator::MayReload() const {
  return is_leader_ && (reloads_unseen_ || reload_untried_);
}

bool SimCoordinator::IsGone(size_t node) const {
  const ClusterView& view = cluster().View(options_.node);
  const ClusterView::Node* const seen = view.Find(cluster().IdOf(node));
  return seen == nullptr || seen->state == ClusterView::State::kGone;
}

std::vector<size_t> SimCoordinator::Members() const {
  std::vector<size_t> members;
  for (const NodeId& id : cluster().View(options_.node).members) {
    members.push_back(cluster().NumberOf(id));
  }
  return members;
}

void SimCoordinator::Generate(const wire::GenerateRequest& request,
                              std::shared_ptr<GenerationCall> call) {
  if (model_ != nullptr) return model_->Generate(request, std::move(call));
  call->Refuse(WhyNot());
}

void SimCoordinator::RefreshLeadership() {
  const ClusterView& view = cluster().View(options_.node);
  if (is_leader_ && !view.is_coordinator) StepDown();
  is_leader_ = view.is_coordinator;
  settled_ = view.settled;
  has_successors_ = view.members.size() > 1;
}

void SimCoordinator::StepDown() {
  reloads_unseen_ = true;
  pending_reload_.reset();
  reload_untried_ = false;
  pinned_.clear();
  if (model_ != nullptr) lost_.push_back(std::exchange(model_, nullptr));
}

void SimCoordinator::Tick() {
  After(kTickUs, [this] { Tick(); });
  if (stopping_) return;
  const ClusterView& view = cluster().View(options_.node);
  const bool members_changed = lost_members_.Look(view, Now(), &flap_tracker_);
  uint32_t live = pending_reload_.has_value() ? 1 : 0;
  if (model_ != nullptr) {
    live += 1 + model_->texts();
    if (model_->recovering()) recovery_due_ = true;
  }
  if (members_changed) retry_due_ = true;
  if (live != live_) cluster().SetLive(options_.node, live_ = live);
  RefreshLeadership();
  PublishDesiredState();
  if (members_changed) ++members_seen_;
  RunRecoveryLoop();
}

void SimCoordinator::PublishDesiredState() {
  std::vector<std::string> desired_state;
  if (is_leader_) {
    if (model_ == nullptr) pinned_.clear();
    if (serving()) pinned_ = model_->Origin().SerializeAsString();
    if (!pinned_.empty()) desired_state.push_back(pinned_);
    if (pending_reload_.has_value() && pinned_.empty())
      desired_state.push_back(pending_reload_->SerializeAsString());
    const auto& inherited = cluster().membership(options_.node).desired_state();
    if (reloads_unseen_)
      desired_state.insert(desired_state.end(), inherited.begin(), inherited.end());
  }
  cluster().membership(options_.node).SetDesiredState(std::move(desired_state), now_us());
  cluster().Touch(options_.node);
}

void SimCoordinator::RunLeadershipLoop() {
  After(kLeadershipUs, [this] { RunLeadershipLoop(); });
  if (stopping_) return;
  const bool is_leader = is_leader_ && settled_;
  if (!is_leader_) StepDown();
  for (const DeploymentPtr& lost : std::exchange(lost_, {})) {
    lost->Unload(AsLeaderChanged(
        absl::UnavailableError("another node coordinates the cluster now; load the model again")));
  }
  if (is_leader && !sweeping_ && (members_seen_ != swept_ || now_us() >= sweep_at_us_)) {
    swept_ = members_seen_;
    sweep_at_us_ = now_us() + kReclaimUs;
    ReclaimStaleStages();
  }
}

void SimCoordinator::ReclaimStaleStages() {
  sweeping_ = true;
  CollectSimReport(options_.cluster, options_.node, Members(),
                   [this](const SimReport& report) { OnSwept(report); });
}

void SimCoordinator::OnSwept(const SimReport& report) {
  sweeping_ = false;
  if (stopping_ || !is_leader_ || !settled_) return;
  const bool adopts = reloads_unseen_;
  std::optional<wire::LoadModelRequest> pending_reload;
  std::vector<SimStaleStage> leftovers;
  if (adopts) {
    for (const std::string& one : cluster().membership(options_.node).desired_state()) {
      wire::LoadModelRequest origin;
      if (origin.ParseFromString(one)) pending_reload = std::move(origin);
    }
  }
  for (const SimReport::Node& node : report.nodes) {
    for (const wire::StageStatus& stage : node.stages) {
      if (model_ != nullptr && CompareEpochs(model_->epoch(), stage.epoch()) == 0) continue;
      const bool was_served =
          stage.state() == wire::StageStatus::SERVING || stage.state() == wire::StageStatus::FAILED;
      wire::LoadModelRequest origin;
      if (adopts && was_served && !stage.origin().empty() &&
          origin.ParseFromString(stage.origin())) {
        pending_reload = std::move(origin);
      }
      // The next plan may keep it.
      const bool is_lost = model_ != nullptr && !model_->serving();
      if (stage.state() == wire::StageStatus::SERVING &&
          (is_lost || pending_reload_.has_value() || pending_reload.has_value())) {
        continue;
      }
      leftovers.push_back({node.node, StageKeyOf(stage.epoch(), stage.stage())});
    }
  }
  if (options_.forgets_pending_reloads) pending_reload.reset();
  if (leftovers.empty()) return Reloaded(std::move(pending_reload));
  sweeping_ = true;
  const auto left = std::make_shared<size_t>(leftovers.size());  // shared by the calls
  for (const SimStaleStage& one : leftovers) {
    SimAsk(
        options_.cluster.processes, options_.node, one.node, kUnloadTimeoutUs,
        [cluster = options_.cluster, one](const SimAnswer& answer) {
          cluster.host_of(one.node)->Unload(one.key);
          answer([] {});
        },
        [this, left, pending_reload](bool) {
          if (--*left > 0) return;
          sweeping_ = false;
          Reloaded(pending_reload);
        });
  }
}

void SimCoordinator::Reloaded(std::optional<wire::LoadModelRequest> pending_reload) {
  if (!reloads_unseen_ || !is_leader_) return;
  reloads_unseen_ = false;
  if (pending_reload.has_value() && model_ == nullptr) {
    pending_reload_ = std::move(pending_reload);
    retry_due_ = true;
  }
  reload_untried_ = pending_reload_.has_value();
}

void SimCoordinator::StartWork(std::function<void()> job) {
  waiting_.push_back(std::move(job));
  NextWork();
}

void SimCoordinator::NextWork() {
  if (working_ || unloads_ > 0 || waiting_.empty()) return;
  working_ = true;
  const std::function<void()> job = std::move(waiting_.front());
  waiting_.pop_front();
  job();
}

void SimCoordinator::EndWork() {
  working_ = false;
  After(0, [this] { NextWork(); });
}

void SimCoordinator::AfterUnloads(std::function<void()> fn) {
  if (unloads_ == 0) return fn();
  after_unloads_.push_back(std::move(fn));
}

std::string SimCoordinator::OverBound() const {
  if (model_ == nullptr) return "";
  const SchedulerStats stats = model_->Stats();
  const auto over = [](const char* what, uint64_t is, uint64_t bound) {
    return is > bound ? absl::StrCat(what, ": ", is, " of ", bound) : std::string();
  };
  const CacheShape& cache = model_->planned().inputs.request.cache;
  const uint64_t stages = stats.stages.size();
  // Texts that have lost their slots wait beside those in the queue.
  for (const std::string& wrong :
       {over("texts that wait", stats.waiting, options_.texts.policy.queue_max + cache.n_seqs),
        over("texts that run", stats.running, cache.n_seqs),
        over("steps in flight", stats.steps_in_flight, stages + 1),
        over("cells", stats.kv_cells_used, stats.kv_cells)}) {
    if (!wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace strata
