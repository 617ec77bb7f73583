// Leadership, requests, and stale stages. sim_coordinator_load.cc has loads and recoveries.
#include "tests/sim/sim_coordinator.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "coordinator/models/coordinator.h"
#include "coordinator/request/request_status.h"
#include "transport/base/epoch.h"

namespace strata {
namespace {

// How often the product looks, where it is not woken.
constexpr int64_t kTickUs = 200'000;
constexpr int64_t kLeadershipUs = 200'000;
constexpr int64_t kUnloadTimeoutUs = 1'000'000;
constexpr absl::Duration kHeldTime = absl::Seconds(10);  // as in coordinator_leadership.cc

}  // namespace

// No two coordinators give out the same lease.
SimCoordinator::SimCoordinator(Options options)
    : options_(std::move(options)),
      models_(static_cast<uint64_t>(cluster().now_us()) * options_.nodes + options_.node) {}

SimCoordinator::~SimCoordinator() {
  std::ranges::move(models_.Clear(), std::back_inserter(lost_));
  for (const DeploymentPtr& model : lost_) {
    model->Unload(absl::CancelledError("the process has ended"));
  }
}

void SimCoordinator::After(int64_t us, std::function<void()> fn) {
  options_.cluster.processes->After(options_.node, us, std::move(fn));
}

void SimCoordinator::Start() {
  reloads_.Forget();
  Tick();
  RunLeadershipLoop();
}

void SimCoordinator::Stop() {
  stopping_ = true;
  std::ranges::move(models_.Clear(), std::back_inserter(lost_));
  const absl::Status why = absl::UnavailableError("the node that coordinates is stopping");
  for (const DeploymentPtr& model : std::exchange(lost_, {})) {
    if (role_.has_successors()) {
      model->AnnounceLeaderChange(why);
    } else {
      model->Unload(why);
    }
  }
}

bool SimCoordinator::is_leader() const { return cluster().View(options_.node).is_coordinator; }
absl::Status SimCoordinator::Answers() const {
  if (model() == nullptr) return WhyNot();
  return model()->answers() ? absl::OkStatus() : Coordinator::Reloading();
}
absl::Status SimCoordinator::WhyNot() const {
  if (!reloads_.entries().empty() || reloads_.is_unknown()) return Coordinator::Reloading();
  return absl::NotFoundError("no model is loaded");
}
bool SimCoordinator::MayReload() {
  RefreshLeadership();  // the last tick may be older than the caller's view
  return role_.is_leader() && reloads_.MayLoadSoon();
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
  if (model() != nullptr) return model()->Generate(request, std::move(call));
  call->Refuse(WhyNot());
}

void SimCoordinator::RefreshLeadership() {
  if (role_.Refresh(cluster().View(options_.node), "", stopping_)) StepDown();
}

void SimCoordinator::StepDown() {
  reloads_.Forget();
  std::ranges::move(models_.Clear(), std::back_inserter(lost_));
  reclaimer_.OnMembersChanged();
}

void SimCoordinator::Tick() {
  After(kTickUs, [this] { Tick(); });
  if (stopping_) return;
  const ClusterView& view = cluster().View(options_.node);
  const bool members_changed = lost_members_.Look(view, Now(), &flap_tracker_);
  uint32_t live = static_cast<uint32_t>(reloads_.entries().size());
  if (const DeploymentPtr there = model(); there != nullptr) {
    live += 1 + there->active_requests();
    if (there->recovering()) recovery_.OnLost();
  }
  if (members_changed) {
    recovery_.OnMembersChanged();
    rebalance_.OnChange(Now());
    reclaimer_.OnMembersChanged();
  }
  if (live != live_) cluster().SetLive(options_.node, live_ = live);
  RefreshLeadership();
  PublishDesiredState();
  RunRecoveryLoop();
}

void SimCoordinator::PublishDesiredState() {
  Membership& membership = cluster().membership(options_.node);
  membership.SetDesiredState(role_.is_leader()
                                 ? reloads_.DesiredState(models_, membership.desired_state())
                                 : std::vector<std::string>(),
                             now_us());
  cluster().Touch(options_.node);
}

void SimCoordinator::RunLeadershipLoop() {
  After(kLeadershipUs, [this] { RunLeadershipLoop(); });
  if (stopping_) return;
  if (!role_.is_leader() && HasModel()) StepDown();
  for (const DeploymentPtr& lost : std::exchange(lost_, {})) {
    lost->Unload(AsLeaderChanged(
        absl::UnavailableError("another node coordinates the cluster now; load the model again")));
  }
  if (role_.may_act() && !could_act_) reclaimer_.OnMayAct();
  could_act_ = role_.may_act();
  if (could_act_ && !reclaiming_ && Now() >= reclaimer_.due_at()) {
    reclaiming_ = true;
    reclaimer_.Begin();
    ReclaimStaleStages();
  }
}

void SimCoordinator::ReclaimStaleStages() {
  const std::vector<size_t> members = Members();
  CollectSimReport(options_.cluster, options_.node, members,
                   [this, n_members = members.size()](const SimReport& report) {
                     OnReclaimReport(report, /*all_reply=*/report.nodes.size() == n_members);
                   });
}

void SimCoordinator::OnReclaimReport(const SimReport& report, bool all_reply) {
  if (stopping_ || !role_.may_act()) return EndReclaim({}, /*learns=*/false, /*made_room=*/false);
  StageInventory loaded;
  loaded.learns = reloads_.is_unknown();
  loaded.desired_state = cluster().membership(options_.node).desired_state();
  loaded.kept = reloads_.KeptIds(Now());
  if (const DeploymentPtr there = model(); there != nullptr) {
    loaded.known.push_back(there->epoch());
    if (!there->serving()) loaded.kept.insert(there->model_id());
  }
  if (prepared_) loaded.known.push_back(*prepared_);
  for (const SimReport::Node& node : report.nodes) loaded.nodes.push_back(node.stages);
  StaleStages stale = FindStaleStages(loaded);
  stale.found_none = stale.found_none && all_reply;
  if (options_.forgets_pending_reloads) stale.reloads.clear();
  if (options_.forgets_stale_stages) stale.stages.clear();
  for (const std::string& id : stale.held) reloads_.Hold(id, Now() + kHeldTime);
  if (stale.stages.empty()) {
    return EndReclaim(std::move(stale), loaded.learns, /*made_room=*/false);
  }
  struct Unloads {
    size_t left = 0;
    bool made_room = false;
  };
  const auto unloads = std::make_shared<Unloads>();  // shared by the calls
  unloads->left = stale.stages.size();
  for (const StaleStages::Stage& each : stale.stages) {
    const wire::StageStatus& stage = loaded.nodes[each.node][each.stage];
    const SimStaleStage one = {report.nodes[each.node].node,
                               StageKeyOf(stage.epoch(), stage.stage())};
    SimCall(
        options_.cluster.processes, options_.node, one.node, kUnloadTimeoutUs,
        [cluster = options_.cluster, one](const SimReply& reply) {
          cluster.host_of(one.node)->Unload(one.key);
          reply([] {});
        },
        [this, unloads, stale, learns = loaded.learns, each](bool replied) {
          unloads->made_room = unloads->made_room || (replied && each.makes_room);
          if (--unloads->left == 0) EndReclaim(stale, learns, unloads->made_room);
        },
        /*repeatable=*/true);
  }
}

void SimCoordinator::EndReclaim(StaleStages stale, bool learns, bool made_room) {
  reclaiming_ = false;
  if (made_room) recovery_.OnRoomMade();
  reclaimer_.End(stale.found_none && !learns, Now());
  if (!learns || !role_.is_leader()) return;
  if (reloads_.Learn(std::move(stale.reloads), models_, kModelsMax)) {
    recovery_.OnMembersChanged();
  }
}

bool SimCoordinator::Wants(const wire::StageStatus& stage) const {
  const DeploymentPtr there = model();
  if (!reloads_.entries().empty() || (there != nullptr && !there->serving())) return true;
  return there != nullptr && CompareEpochs(there->epoch(), stage.epoch()) == 0;
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
  const DeploymentPtr there = model();
  if (there == nullptr) return "";
  const SchedulerStats stats = there->Stats();
  const auto over = [](const char* what, uint64_t is, uint64_t bound) {
    return is > bound ? absl::StrCat(what, ": ", is, " of ", bound) : std::string();
  };
  const CacheShape& cache = there->planned().inputs.request.cache;
  const uint64_t stages = stats.stages.size();
  // Preempted requests wait beside those in the queue.
  for (const std::string& wrong :
       {over("requests that wait", stats.waiting, options_.engine.policy.queue_max + cache.n_seqs),
        over("requests that run", stats.running, cache.n_seqs),
        over("steps in flight", stats.steps_in_flight, stages + 1),
        over("cells", stats.kv_cells_used, stats.kv_cells)}) {
    if (!wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace strata
