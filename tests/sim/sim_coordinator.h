// The coordinator of a simulated node. Its decisions are the product's: LeaderRole, ModelTable,
// ReloadQueue, DesiredModels, DesiredStore, RecoverySchedule, DecideRecovery(), LoadRetries,
// StageReclaimer, NodeDrain, RebalanceSchedule, ModelRebalance, LiveMigration, Deployment with
// GenerationEngine and Scheduler, the planner, and Membership's view. Their execution is simulated:
// where coordinator/models/coordinator.h waits on a thread for a response over gRPC, this gets a
// callback. One model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/generation/generation_call.h"
#include "coordinator/membership/flap_tracker.h"
#include "coordinator/membership/loss_detector.h"
#include "coordinator/models/deployment.h"
#include "coordinator/models/desired_models.h"
#include "coordinator/models/desired_store.h"
#include "coordinator/models/leader_role.h"
#include "coordinator/models/live_migration.h"
#include "coordinator/models/load_retries.h"
#include "coordinator/models/model_recovery.h"
#include "coordinator/models/model_table.h"
#include "coordinator/models/node_drain.h"
#include "coordinator/models/rebalancer.h"
#include "coordinator/models/reload_queue.h"
#include "coordinator/models/stage_reclaimer.h"
#include "tests/sim/sim_planning.h"
#include "transport/base/clock.h"

namespace strata {

// The disk on which a node keeps the desired state. Outlives its process.
struct SimStateDisk {
  absl::StatusOr<std::string> file = absl::NotFoundError("no file");
  std::string being_written;  // empty: nothing is
  bool fails = false;         // it takes no more
  bool has_failed = false;    // to take some
};

class SimCoordinator {
 public:
  struct Options {
    SimCluster cluster;
    size_t node = 0;
    size_t nodes = 0;
    const SimModel* model = nullptr;
    GenerationEngineOptions engine;
    SimStateDisk* state_disk = nullptr;
    // Break the protocol, to show that it is noticed.
    bool forgets_pending_reloads = false;
    bool forgets_bounds = false;
    bool forgets_leases = false;
    bool forgets_stale_stages = false;
    bool forgets_to_write = false;
    bool forgets_unloads = false;
  };
  explicit SimCoordinator(Options options);
  // The process ends without a message to any node.
  ~SimCoordinator();

  void Start();
  // An orderly end: requests and models are transferred.
  void Stop();

  bool is_leader() const;
  absl::Status Answers() const;
  bool MayReload();
  bool HasModel() const { return !models_.models().empty() || !reloads_.entries().empty(); }
  bool serving() const { return model() != nullptr && model()->serving(); }
  void Generate(const wire::GenerateRequest& request, std::shared_ptr<GenerationCall> call);
  // A person on `source`'s node loads the model: to stay, or with a lease, which `then` gets; 0: it
  // stays.
  void Load(size_t source, bool hold, std::function<void(absl::StatusOr<uint64_t>)> then);
  // A person unloads the model. `stored` of these two: all disks have the decision.
  void Unload(std::function<void(bool stored)> then);
  void AwaitDesired(std::function<void(bool stored)> then);
  // The model is to stay: it is loaded, or is tried.
  bool KeepsModel() const { return !models_.pins().empty() || !reloads_.entries().empty(); }
  bool HasLease(uint64_t lease) const { return models_.HasLease(lease); }
  void Release(uint64_t lease);
  // A person drains the node. `done` may never be called where a process ends.
  void Drain(size_t node, std::function<void(absl::Status)> done);
  // Whether the model has stages on the node with that id, in hex.
  bool UsesNode(const std::string& id) const { return model() != nullptr && model()->UsesNode(id); }
  // Whether a stage is the model's, or may be kept by its next plan.
  bool Wants(const wire::StageStatus& stage) const;

  // Empty: every queue is within its bound.
  std::string OverBound() const;
  uint32_t recoveries() const { return recoveries_; }
  uint32_t reload_count() const { return reload_count_; }
  uint32_t moves() const { return moves_; }  // while it served
  uint32_t moves_by_reload() const { return moves_by_reload_; }
  uint32_t drains() const { return drains_; }

 private:
  absl::Status WhyNot() const;                        // there is no model
  using DeploymentPtr = std::shared_ptr<Deployment>;  // shared with calls in progress
  using Then = std::function<void(absl::Status)>;
  using LeaseThen = std::function<void(absl::StatusOr<uint64_t>)>;
  using PlannedPtr = std::unique_ptr<PlannedModel>;
  // A load. Shared by its steps.
  struct Loading {
    SimPlanning planning;
    LoadRetries retries;
    wire::LoadModelRequest request;
    DeploymentPtr instead_of;  // that it replaces; null: none
    // Null: the model was unloaded meanwhile.
    std::function<void(absl::StatusOr<DeploymentPtr>)> then;
    PlannedPtr plan;
  };
  using LoadingPtr = std::shared_ptr<Loading>;
  // A drain, or a look at a model, with its present plan. Shared by its steps.
  struct Draining {
    NodeDrain drain;
    Then end;
    PlannedPtr plan;
  };
  using DrainingPtr = std::shared_ptr<Draining>;
  struct Rebalancing {
    ModelRebalance rebalance;
    DeploymentPtr model;
    std::function<void(bool again)> end;
  };
  using RebalancingPtr = std::shared_ptr<Rebalancing>;

  DeploymentPtr model() const {
    return models_.models().empty() ? nullptr : models_.models().begin()->second;
  }

  ClusterSim& cluster() const { return options_.cluster.processes->cluster(); }
  int64_t now_us() const { return cluster().LocalUs(options_.node); }
  void After(int64_t us, std::function<void()> fn);
  bool IsGone(size_t node) const;
  std::vector<size_t> Members() const;
  SteadyTime Now() const { return SteadyTime() + absl::Microseconds(now_us()); }

  void RefreshLeadership();
  void StepDown();
  void Tick();
  void FollowDesired();
  void KeepDesired();
  void AwaitStored(uint64_t decided, int64_t until_us, std::function<void(bool stored)> then);
  bool MayReclaim() const {
    return role_.may_act() && (!reloads_.is_unknown() || knows_members_desired_);
  }
  void RunLeadershipLoop();
  void ReclaimStaleStages();
  void OnReclaimReport(const SimReport& report, bool all_reply);
  void EndReclaim(const StaleStages& stale, const DesiredStatePtr& learnt, bool made_room);

  void StartWork(std::function<void()> job);
  void NextWork();
  void EndWork();
  void AfterUnloads(std::function<void()> fn);

  void RunRecoveryLoop();
  void EndRecovery(bool deferred);
  void ReloadNext(std::vector<std::string> ids, const std::function<void(bool deferred)>& then);
  void Recover(const DeploymentPtr& lost, std::function<void()> then);
  void RecoverNow(const DeploymentPtr& lost, const Then& then);
  void PlaceAgain(const DeploymentPtr& lost, const RecoveryDecision& decision, SimReport report,
                  const Then& then);
  void LoadNow(const wire::LoadModelRequest& request, bool is_recovery, LeaseThen then);
  bool RequeueReload(const std::string& id, const absl::Status& why);
  // Plans and loads; Carry() of what it planned, and so again where it does not fit.
  void PlanAndDeploy(const LoadingPtr& loading);
  void Deploy(const LoadingPtr& loading);
  void OnDeployed(const LoadingPtr& loading, const DeploymentPtr& deployment,
                  const absl::Status& status);
  void GiveUp(const LoadingPtr& loading, const absl::Status& why);
  void TakeOver(PlannedPtr* planned, const DeploymentPtr& lost, const RecoveryDecision& decision,
                const Then& then);
  void UnloadStaleStages(const PlannedModel& planned, std::function<void()> then);
  absl::StatusOr<Deployment::Options> OptionsFor(const wire::LoadModelRequest& request);
  // Loads its stages, then the deployment. With `take_over` as of Deployment::Load().
  void Carry(const DeploymentPtr& deployment, bool stays, const Then& then,
             const Deployment::TakeOver& take_over = nullptr);
  SimPlanning PlanningFor(const wire::LoadModelRequest& request, SimReport report) const;
  void CollectReport(std::function<void(SimReport)> done) {
    CollectSimReport(options_.cluster, options_.node, Members(), std::move(done));
  }

  // sim_coordinator_move.cc
  absl::Status MayGoOn() const;
  void DrainNext(const DrainingPtr& draining);
  void ReloadElsewhere(const DrainingPtr& draining);
  void Rebalance(const std::function<void()>& then);
  void RebalanceNext(const RebalancingPtr& rebalancing);
  void MigrateLive(const DeploymentPtr& from, PlannedPtr planned,
                   const wire::LoadModelRequest& request,
                   const std::function<bool()>& should_continue, const Then& then);

  const Options options_;
  ModelTable models_;
  ReloadQueue reloads_;
  DesiredModels decisions_;
  DesiredStore store_;
  DesiredStatePtr followed_;  // as the product's, as the next
  bool knows_members_desired_ = false;
  LeaderRole role_;
  RecoverySchedule recovery_;
  RebalanceSchedule rebalance_;
  StageReclaimer reclaimer_;
  std::optional<wire::Epoch> prepared_;  // of a plan that takes over soon
  NodeFlapTracker flap_tracker_;
  LossDetector lost_members_;
  std::vector<DeploymentPtr> lost_;  // of a leadership that has ended
  // The load that becomes the pipeline of the deployment that is built next.
  absl::StatusOr<SimLoadPtr> loaded_ = absl::UnknownError("nothing is loaded");
  bool built_ = false;
  bool has_taken_over_ = false;  // and then it knows whether the take-over succeeded
  bool stopping_ = false;
  bool could_act_ = false;   // at the last look
  bool reclaiming_ = false;  // as the product's thread, which looks once at a time
  uint32_t live_ = 0;

  bool recovering_ = false;  // as the recovery thread: a round is in progress
  bool working_ = false;
  std::deque<std::function<void()>> waiting_;  // for their turn
  uint32_t unloads_ = 0;
  std::vector<std::function<void()>> after_unloads_;
  uint32_t recoveries_ = 0;
  uint32_t reload_count_ = 0;
  uint32_t moves_ = 0;
  uint32_t moves_by_reload_ = 0;
  uint32_t drains_ = 0;
};

}  // namespace strata
