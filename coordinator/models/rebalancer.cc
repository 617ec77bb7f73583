#include "coordinator/models/rebalancer.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"

namespace strata {

std::vector<ModelTable::DeploymentPtr> RebalanceSchedule::Begin(const ModelTable& models,
                                                                bool may_act, SteadyTime now) {
  at_ = SteadyTime::InfiniteFuture();
  std::vector<ModelTable::DeploymentPtr> looked_at;
  if (!may_act) return looked_at;
  if (models.AnyRecovering()) {  // which comes first
    OnChange(now);
    return looked_at;
  }
  for (const auto& [id, model] : models.models()) {
    if (model->serving()) looked_at.push_back(model);
  }
  return looked_at;
}

ModelRebalance::ModelRebalance(const Deployment& model)
    : n_stages_(model.planned().plan.stages.size()),
      positions_(model.MeanPositions()),
      placement_(model.request().placement()) {
  placement_.set_n_ctx(model.planned().inputs.request.cache.n_ctx);
  // Stages with experts on a CPU are not kept (coordinator/models/reusable_stages.h), and would be
  // loaded again and again.
  const bool may_move = absl::c_all_of(
      model.planned().plan.stages, [](const PlannedStage& stage) { return stage.n_cpu_moe == 0; });
  if (!may_move || !model.serving()) return;
  step_ = placement_.assign().empty() ? Step::kPlanAsItIs : Step::kPlanAsAssigned;
}

PlanScope ModelRebalance::planning() const {
  using Reuse = PlanningOptions::Reuse;
  return {.reuse = step_ == Step::kPlanBetter ? Reuse::kMatched : Reuse::kAround,
          .beside = step_ != Step::kPlanAsItIs,
          .positions = positions_};
}

void ModelRebalance::OnPlanned(absl::StatusOr<std::unique_ptr<PlannedModel>> planned,
                               uint32_t active_requests) {
  const Step step = std::exchange(step_, Step::kEnd);
  if (step == Step::kPlanAsAssigned && !planned.ok()) {
    placement_.clear_assign();  // a node that it names has gone
    step_ = Step::kPlanAsItIs;
  }
  if (!planned.ok()) return;
  std::unique_ptr<PlannedModel> plan = *std::move(planned);
  if (step == Step::kPlanBetter) return Compare(std::move(plan), active_requests);
  if (step == Step::kPlanAsAssigned) {
    if (!plan->IsAllKept()) Move(std::move(plan), " moves to where its layers were assigned");
    return;
  }
  looks_again_ = plan->report.measuring();
  if (looks_again_) return;
  as_it_is_ = std::move(plan);
  step_ = Step::kPlanBetter;
}

void ModelRebalance::Compare(std::unique_ptr<PlannedModel> better, uint32_t active_requests) {
  const double gain = GainOf(as_it_is_->plan, better->plan);
  const bool idle = active_requests == 0;
  const MoveBenefit benefit = BenefitOf(gain, better->plan.stages.size() < n_stages_);
  looks_again_ = benefit == MoveBenefit::kMovingIdle && !idle;
  if (looks_again_ || benefit == MoveBenefit::kNothing) return;
  Move(std::move(better),
       absl::StrFormat(" moves: a step takes %.0f %% less%s", gain * 100,
                       idle ? " then, and it is idle" : " with the nodes there are now"));
}

void ModelRebalance::Move(std::unique_ptr<PlannedModel> plan, std::string reason) {
  plan_ = std::move(plan);
  reason_ = std::move(reason);
  step_ = Step::kMove;
}

}  // namespace strata
