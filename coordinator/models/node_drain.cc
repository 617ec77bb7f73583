#include "coordinator/models/node_drain.h"

#include "absl/strings/str_cat.h"
#include "coordinator/request/request_status.h"

namespace strata {
namespace {

absl::Status BeingRecovered(const Deployment& model) {
  return absl::UnavailableError(absl::StrCat("a stage was lost, and its layers are placed again; ",
                                             model.name(), " stays for now: drain the node again"));
}

}  // namespace

NodeDrain::NodeDrain(const std::string& node_id, const ModelTable& models) {
  for (const auto& [id, model] : models.models()) {
    if (model->UsesNode(node_id)) models_.push_back(model);
  }
}

void NodeDrain::NextModel() {
  ++at_;
  has_begun_ = false;
}

void NodeDrain::End(const absl::Status& status) {
  if (step_ == Step::kAwaitRequests) model()->SetMoving(false);
  at_ = models_.size();
  status_ = status;
}

void NodeDrain::Begin(const ModelTable& models) {
  while (!has_ended() && !models.Has(model())) ++at_;  // it was unloaded meanwhile
  if (has_ended()) return;
  has_begun_ = true;
  step_ = model()->serving() ? Step::kPlanBeside : Step::kPlanAnew;
  if (model()->recovering()) End(BeingRecovered(*model()));
}

NodeDrain::Step NodeDrain::Next(const ModelTable& models, const absl::Status& may_go_on) {
  if (!has_ended() && !may_go_on.ok()) End(may_go_on);
  if (!has_begun_) Begin(models);
  if (has_ended()) return Step::kEnd;
  if (step_ != Step::kAwaitRequests) return step_;
  if (model()->active_requests() == 0) return Step::kReload;
  if (!models.AnyRecovering()) return step_;
  // A recovery, of this model or another one, waits for this drain, and its requests for the
  // recovery.
  End(BeingRecovered(*model()));
  return Step::kEnd;
}

void NodeDrain::OnPlanned(const absl::Status& status) {
  if (step_ == Step::kPlanBeside) {
    step_ = status.ok() ? Step::kMigrate : Step::kPlanAnew;
  } else if (status.ok()) {
    step_ = Step::kAwaitRequests;
    model()->SetMoving(true);
  } else {
    End(status);
  }
}

void NodeDrain::OnMigrated(const absl::Status& status, const ModelTable& models,
                           const absl::Status& may_go_on) {
  if (status.ok()) return NextModel();
  if (!absl::IsCancelled(status)) return End(status);
  if (!may_go_on.ok()) return End(may_go_on);
  End(models.AnyRecovering() ? BeingRecovered(*model()) : status);
}

void NodeDrain::OnReloaded(const absl::Status& status, bool comes_back) {
  if (status.ok()) return NextModel();
  const absl::Status why(
      status.code(),
      absl::StrCat(model()->name(), " could not be loaded elsewhere: ", status.message(),
                   comes_back ? "; it is loaded again as soon as there is room for it"
                              : absl::StrCat("; it is unloaded now: strata load ",
                                             model()->planned().source.path())));
  End(IsLeaderChanged(status) ? AsLeaderChanged(why) : why);
}

PlanScope NodeDrain::planning() const {
  if (step_ != Step::kPlanBeside) return {};
  return {.reuse = PlanningOptions::Reuse::kAround, .beside = true};
}

wire::LoadModelRequest NodeDrain::request() const {
  wire::LoadModelRequest request = model()->request();
  request.mutable_placement()->clear_assign();  // it may name the node
  request.mutable_placement()->set_n_ctx(model()->planned().inputs.request.cache.n_ctx);
  return request;
}

}  // namespace strata
