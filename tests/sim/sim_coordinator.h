// The role of a coordinator on a simulated node: when it plans, loads, recovers, reloads, unloads
// and hands over. A model of coordinator/models/coordinator.h, whose threads wait for what is
// answered over gRPC; here each wait is a call back. Its order of acts, its times and its
// conditions are kept, and what it works with is real: Deployment with GenerationEngine and
// Scheduler, NodeFlapTracker, CapacityLimitOf() and the planner, and the view of Membership. One
// model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "coordinator/generation/generation_call.h"
#include "coordinator/membership/flap_tracker.h"
#include "coordinator/membership/loss_detector.h"
#include "coordinator/models/deployment.h"
#include "tests/sim/sim_planning.h"
#include "transport/base/clock.h"

namespace strata {

class SimCoordinator {
 public:
  struct Options {
    SimCluster cluster;
    size_t node = 0;
    size_t nodes = 0;
    const SimModel* model = nullptr;
    GenerationEngineOptions texts;
    // Break the protocol, to show that it is noticed.
    bool forgets_pending_reloads = false;
    bool forgets_bounds = false;
  };
  explicit SimCoordinator(Options options) : options_(std::move(options)) {}
  // The process ends: nothing is told to anybody.
  ~SimCoordinator();

  void Start();
  // In order: texts and models are handed over.
  void Stop();

  bool is_leader() const;
  absl::Status Answers() const;
  bool MayReload() const;
  bool HasModel() const { return model_ != nullptr || pending_reload_.has_value(); }
  bool serving() const { return model_ != nullptr && model_->serving(); }
  void Generate(const wire::GenerateRequest& request, std::shared_ptr<GenerationCall> call);
  // Somebody on `source`'s node has the model loaded, to stay.
  void Load(size_t source);

  // Empty: every queue is within its bound.
  std::string OverBound() const;
  uint32_t recoveries() const { return recoveries_; }
  uint32_t adoptions() const { return adoptions_; }

 private:
  absl::Status WhyNot() const;                        // there is no model
  using DeploymentPtr = std::shared_ptr<Deployment>;  // shared with calls under way
  struct Times {
    int64_t since_us = 0;
    int64_t served_for_us = 0;
  };
  using Then = std::function<void(absl::Status)>;

  ClusterSim& cluster() const { return options_.cluster.processes->cluster(); }
  int64_t now_us() const { return cluster().LocalUs(options_.node); }
  void After(int64_t us, std::function<void()> fn);
  bool IsGone(size_t node) const;
  std::vector<size_t> Members() const;
  SteadyTime Now() const { return SteadyTime() + absl::Microseconds(now_us()); }

  void RefreshLeadership();
  void StepDown();
  void Tick();
  void PublishDesiredState();
  void RunLeadershipLoop();
  void ReclaimStaleStages();
  void OnSwept(const SimReport& report);
  void Reloaded(std::optional<wire::LoadModelRequest> pending_reload);

  void StartWork(std::function<void()> job);
  void NextWork();
  void EndWork();
  void AfterUnloads(std::function<void()> fn);

  void RunRecoveryLoop();
  void EndRecovery();
  bool WantsRoom() const;
  void Reload();
  void Recover(const DeploymentPtr& lost);
  void RecoverNow(const DeploymentPtr& lost, const Then& then);
  void PlaceAgain(const DeploymentPtr& lost, uint32_t in_a_row, bool healthy,
                  const absl::Status& why, SimReport report, const Then& then);
  void LoadNow(const wire::LoadModelRequest& request, bool skip_measurement_wait, const Then& then);
  void Deploy(SimPlanning planning, int plans, const wire::LoadModelRequest& request,
              const Then& then);
  using PlannedPtr = std::unique_ptr<PlannedModel>;
  void DeployNow(PlannedPtr* planned, const SimPlanning& planning, int plans,
                 const wire::LoadModelRequest& request, const Then& then);
  void TakeOver(PlannedPtr* planned, const DeploymentPtr& lost, uint32_t in_a_row,
                const std::vector<CapacityLimit>& caps, const Then& then);
  void UnloadStaleStages(const PlannedModel& planned, std::function<void()> then);
  absl::StatusOr<Deployment::Options> OptionsFor(const wire::LoadModelRequest& request);
  // Loads its stages, then the deployment.
  void Carry(const DeploymentPtr& deployment, bool stays, const Then& then);
  SimPlanning PlanningFor(const wire::LoadModelRequest& request, SimReport report) const;

  const Options options_;
  DeploymentPtr model_;
  std::vector<DeploymentPtr>
      lost_;  // of a leadership that has ended; RunLeadershipLoop() unloads them
  std::map<const Deployment*, Times> times_;
  // What the deployment that is built next becomes its pipeline by.
  absl::StatusOr<SimLoadPtr> loaded_ = absl::UnknownError("nothing is loaded");
  bool built_ = false;
  bool stopping_ = false;
  bool is_leader_ = false;
  bool settled_ = false;
  bool has_successors_ = false;
  uint64_t members_seen_ = 0;
  uint64_t swept_ = 0;
  int64_t sweep_at_us_ = 0;
  bool sweeping_ = false;
  bool recovery_due_ = false;
  bool retry_due_ = false;
  bool reloads_unseen_ = false;
  bool reload_untried_ = false;
  absl::Status reload_why_;  // it could not be loaded
  std::optional<wire::LoadModelRequest> pending_reload_;
  std::string pinned_;  // what loads the model again, once it was loaded
  NodeFlapTracker flap_tracker_;
  LossDetector lost_members_;
  uint32_t live_ = 0;

  bool recovering_ = false;  // the recovery thread is at it
  int64_t retry_at_us_ = 0;
  int64_t retry_after_us_ = 0;
  bool working_ = false;
  std::deque<std::function<void()>> waiting_;  // for their turn
  uint32_t unloads_ = 0;
  std::vector<std::function<void()>> after_unloads_;
  uint32_t recoveries_ = 0;
  uint32_t adoptions_ = 0;
};

}  // namespace strata
