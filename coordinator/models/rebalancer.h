// Decides when to look for plans by which models would be faster, and which of these are carried
// out. State machines without I/O, thread or clock. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/models/deployment.h"
#include "coordinator/models/model_planner.h"
#include "coordinator/models/model_table.h"
#include "proto/coordinator.pb.h"
#include "transport/base/steady_time.h"

namespace strata {

// Looks some time after something has changed: nodes that have just come measure first, and those
// that come often do not come one by one.
class RebalanceSchedule {
 public:
  void OnChange(SteadyTime now) { at_ = now + kAfterChange; }
  SteadyTime at() const { return at_; }
  // A look begins: at these models. `may_act` as LeaderRole's.
  std::vector<ModelTable::DeploymentPtr> Begin(const ModelTable& models, bool may_act,
                                               SteadyTime now);
  // `again`: a plan may be better soon. `next_back`: when a node that is kept out now is taken
  // again.
  void End(bool again, SteadyTime next_back, SteadyTime now) {
    at_ = std::min(at_, next_back);
    if (again) at_ = std::min(at_, now + kAgainAfter);
  }

 private:
  static constexpr absl::Duration kAfterChange = absl::Seconds(5);
  static constexpr absl::Duration kAgainAfter = absl::Seconds(30);  // planning takes time of a node

  SteadyTime at_ = SteadyTime::InfiniteFuture();
};

// One look at a model: step() says what to do, and the caller reports how it ended.
//
//   kPlanAsAssigned ─▶ kPlanAsItIs ─▶ kPlanBetter ─▶ kMove ─▶ kEnd: each may also be the last
class ModelRebalance {
 public:
  enum class Step { kPlanAsAssigned, kPlanAsItIs, kPlanBetter, kMove, kEnd };
  explicit ModelRebalance(const Deployment& model);

  // kPlan…: plan the model by placement(), as planning() says; then OnPlanned(). kMove: carry
  // TakePlan() out, since reason().
  Step step() const { return step_; }
  PlanScope planning() const;
  const wire::PlacementOptions& placement() const { return placement_; }
  // `active_requests` of the model.
  void OnPlanned(absl::StatusOr<std::unique_ptr<PlannedModel>> planned, uint32_t active_requests);
  std::unique_ptr<PlannedModel> TakePlan() { return std::move(plan_); }
  const std::string& reason() const { return reason_; }
  bool looks_again() const { return looks_again_; }  // a plan may be better soon

 private:
  void Compare(std::unique_ptr<PlannedModel> better, uint32_t active_requests);
  void Move(std::unique_ptr<PlannedModel> plan, std::string reason);

  const size_t n_stages_;
  const uint32_t positions_;  // both plans are compared at these
  wire::PlacementOptions placement_;
  Step step_ = Step::kEnd;
  std::unique_ptr<PlannedModel> as_it_is_, plan_;
  std::string reason_;
  bool looks_again_ = false;
};

}  // namespace strata
