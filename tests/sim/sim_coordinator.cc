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
constexpr int64_t kStoreUs = 2'000'000, kStorePollUs = 20'000;
constexpr int64_t kWriteUsMax = 40'000, kWriteAgainUs = 60'000'000;
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
  SimStateDisk& disk = *options_.state_disk;
  const auto opened = store_.Open(disk.file, cluster().IdOf(options_.node).ToHex());
  if (!opened.ok()) {
    cluster().Note(absl::StrCat("node ", options_.node, " sets its list aside"));
    store_.OnSetAside(opened.status(), std::string("aside"));
    disk.file = absl::NotFoundError("no file");
  } else if (*opened != nullptr) {
    cluster().membership(options_.node).OpenDesired(*opened);
  }
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
  decisions_.Forget();
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
  FollowDesired();
  RunRecoveryLoop();
}

void SimCoordinator::FollowDesired() {
  Membership& membership = cluster().membership(options_.node);
  KeepDesired();
  if (!role_.is_leader() || stopping_) return;
  knows_members_desired_ = membership.KnowsMembersDesired();
  if (reloads_.is_unknown()) {
    followed_ = nullptr;
    return;
  }
  if (auto next = decisions_.Next(*membership.desired())) {
    (void)membership.ChangeDesired(*std::move(next), now_us());
    cluster().Touch(options_.node);
    KeepDesired();
    followed_ = membership.desired();
    cluster().Note(absl::StrCat("node ", options_.node,
                                " changes the list: ", followed_->models.size(), " models, epoch ",
                                followed_->version.epoch.counter));
  }
  if (membership.IsDesiredStored()) decisions_.OnStored();
  if (followed_ == membership.desired() || membership.LeavesDesiredToAnother(now_us())) return;
  followed_ = membership.desired();
  if (options_.forgets_pending_reloads) return;
  DesiredModels::Followed now = decisions_.Follow(*followed_, kModelsMax, &models_, &reloads_);
  for (const DeploymentPtr& model : now.unloads) {
    cluster().Note("a newer list does not have the model");
    reclaimer_.OnDeploymentEnded(Now());
    model->Unload(absl::UnavailableError("the model was unloaded"));
    recovery_.OnRoomMade();
  }
  if (now.reloads) recovery_.OnMembersChanged();
}

// As DesiredStateFile.
void SimCoordinator::KeepDesired() {
  Membership& membership = cluster().membership(options_.node);
  store_.Keep(membership.desired(), cluster().IdOf(options_.node).ToHex());
  if (!store_.is_due()) return;
  options_.state_disk->being_written = store_.BeginWrite();
  After(static_cast<int64_t>(cluster().Random(kWriteUsMax)), [this] {
    SimStateDisk& disk = *options_.state_disk;
    std::string bytes = std::exchange(disk.being_written, "");
    disk.has_failed = disk.has_failed || disk.fails;
    if (disk.fails) {
      store_.EndWrite(absl::ResourceExhaustedError("no space left"));
      After(kWriteAgainUs, [this] { store_.TryAgain(); });
    } else {
      if (!options_.forgets_to_write) disk.file = std::move(bytes);
      store_.EndWrite(absl::OkStatus());
    }
    cluster().membership(options_.node).OnDesiredStored(store_.settled(), now_us());
    cluster().Touch(options_.node);
    FollowDesired();
  });
}

void SimCoordinator::AwaitDesired(std::function<void(bool stored)> then) {
  FollowDesired();
  AwaitStored(decisions_.decided(), now_us() + kStoreUs, std::move(then));
}

void SimCoordinator::AwaitStored(uint64_t decided, int64_t until_us,
                                 std::function<void(bool stored)> then) {
  const bool over = stopping_ || !role_.is_leader();
  if (!over && reloads_.is_unknown()) until_us = now_us() + kStoreUs;
  const bool stored = !over && decisions_.stored() >= decided &&
                      cluster().membership(options_.node).IsDesiredStored();
  if (stored || over || now_us() >= until_us) return then(stored);
  After(kStorePollUs, [this, decided, until_us, then = std::move(then)]() mutable {
    AwaitStored(decided, until_us, std::move(then));
  });
}

void SimCoordinator::Unload(std::function<void(bool stored)> then) {
  RefreshLeadership();
  if (!is_leader() || reloads_.is_unknown()) return then(false);
  const std::string id = options_.model->file->id();
  if (!options_.forgets_unloads) decisions_.Drop(id);
  reloads_.Remove(id);
  if (const DeploymentPtr there = model(); there != nullptr) {
    models_.Remove(there);
    cluster().Note("a person unloads the model");
    there->Unload(absl::UnavailableError("the model was unloaded"));
    recovery_.OnRoomMade();
  }
  reclaimer_.OnDeploymentEnded(Now());
  AwaitDesired(std::move(then));
}

void SimCoordinator::RunLeadershipLoop() {
  After(kLeadershipUs, [this] { RunLeadershipLoop(); });
  if (stopping_) return;
  if (!role_.is_leader() && HasModel()) StepDown();
  for (const DeploymentPtr& lost : std::exchange(lost_, {})) {
    lost->Unload(AsLeaderChanged(
        absl::UnavailableError("another node coordinates the cluster now; load the model again")));
  }
  if (MayReclaim() && !could_act_) reclaimer_.OnMayAct();
  could_act_ = MayReclaim();
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
  if (stopping_ || !role_.may_act()) return EndReclaim({}, nullptr, /*made_room=*/false);
  StageInventory loaded;
  loaded.learns = reloads_.is_unknown();
  loaded.kept = reloads_.KeptIds(Now());
  DesiredStatePtr learnt;
  if (loaded.learns) {
    const Membership& membership = cluster().membership(options_.node);
    learnt = membership.desired();
    if (options_.forgets_pending_reloads || membership.LeavesDesiredToAnother(now_us())) {
      learnt = NoDesiredState();
    }
    for (const auto& [id, origin] : ModelsOf(*learnt)) loaded.kept.insert(id);
  }
  if (const DeploymentPtr there = model(); there != nullptr) {
    loaded.known.push_back(there->epoch());
    if (!there->serving()) loaded.kept.insert(there->model_id());
  }
  if (prepared_) loaded.known.push_back(*prepared_);
  for (const SimReport::Node& node : report.nodes) loaded.nodes.push_back(node.stages);
  StaleStages stale = FindStaleStages(loaded);
  stale.found_none = stale.found_none && all_reply;
  if (options_.forgets_stale_stages) stale.stages.clear();
  for (const std::string& id : stale.held) reloads_.Hold(id, Now() + kHeldTime);
  if (stale.stages.empty()) {
    return EndReclaim(stale, learnt, /*made_room=*/false);
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
        [this, unloads, stale, learnt, each](bool replied) {
          unloads->made_room = unloads->made_room || (replied && each.makes_room);
          if (--unloads->left == 0) EndReclaim(stale, learnt, unloads->made_room);
        },
        /*repeatable=*/true);
  }
}

void SimCoordinator::EndReclaim(const StaleStages& stale, const DesiredStatePtr& learnt,
                                bool made_room) {
  reclaiming_ = false;
  if (made_room) recovery_.OnRoomMade();
  reclaimer_.End(stale.found_none && learnt == nullptr, Now());
  if (learnt == nullptr || !role_.is_leader()) return;
  if (reloads_.Learn(ModelsOf(*learnt), models_, kModelsMax)) recovery_.OnMembersChanged();
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
        over("steps in flight", stats.steps_in_flight - stats.drafts_in_flight, stages + 1),
        over("drafts in flight", stats.drafts_in_flight, kDraftsInFlightMax),
        over("cells", stats.kv_cells_used, stats.kv_cells)}) {
    if (!wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace strata
