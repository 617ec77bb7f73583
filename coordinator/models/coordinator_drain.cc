// Draining a node: its layers move to others.
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "coordinator/models/cluster_snapshot.h"
#include "coordinator/models/coordinator.h"
#include "coordinator/models/node_match.h"
#include "coordinator/request/request_status.h"

namespace strata {
namespace {

absl::Status BeingRecovered(const Deployment& model) {
  return absl::UnavailableError(absl::StrCat("a stage was lost, and its layers are placed again; ",
                                             model.name(), " stays for now: drain the node again"));
}

}  // namespace

absl::Status Coordinator::Drain(const wire::DrainNodeRequest& request,
                                const OperationContext& caller) {
  return Explain(DrainNow(request, UntilStopped(caller)));
}

absl::Status Coordinator::DrainNow(const wire::DrainNodeRequest& request,
                                   const OperationContext& caller) {
  if (auto s = CheckLeadership(); !s.ok()) return s;
  auto report = Report();
  if (!report.ok()) return report.status();
  const absl::StatusOr<size_t> found = FindNode(request.node(), report->cluster);
  if (!found.ok()) return found.status();
  const NodeReport* const node = &report->nodes[*found];
  if (node->client == nullptr) {
    return absl::UnavailableError(absl::StrCat(node->name(), ": ", node->status.message()));
  }
  if (auto s = node->client->SetDraining(!request.undo()); !s.ok()) return s;
  if (request.undo()) {
    absl::MutexLock lock(mu_);
    rebalance_.OnChange(SteadyTime::Now());
    return absl::OkStatus();
  }
  absl::Cleanup undo = [&] {
    if (!node->info.draining()) node->client->SetDraining(false).IgnoreError();
  };
  const auto work = StartWork(caller);
  if (!work.ok()) return work.status();
  std::vector<DeploymentPtr> models;
  {
    absl::MutexLock lock(mu_);
    for (const auto& [id, model] : models_.models()) {
      if (model->UsesNode(node->info.node_id())) models.push_back(model);
    }
  }
  for (const DeploymentPtr& model : models) {
    if (auto s = EvacuateModel(model, caller); !s.ok()) return s;
  }
  std::move(undo).Cancel();
  absl::MutexLock lock(mu_);
  rebalance_.OnChange(SteadyTime::Now());
  return absl::OkStatus();
}

absl::Status Coordinator::EvacuateModel(const DeploymentPtr& from, const OperationContext& caller) {
  if (from->recovering()) return BeingRecovered(*from);
  PlanningOptions planning = PlanningFor(caller);
  const PlannedModel& now = from->planned();
  planning.known = now.model;
  planning.model_id = now.model->id();
  planning.limits = ExcludedDevices(planning.model_id);
  wire::LoadModelRequest request = from->request();
  request.mutable_placement()->clear_assign();  // it may name the node
  request.mutable_placement()->set_n_ctx(now.inputs.request.cache.n_ctx);
  if (from->serving()) {
    PlanningOptions beside = planning;
    beside.reuse = PlanningOptions::Reuse::kAround;
    beside.beside = true;
    auto planned = PlanModel(beside, now.source, request.placement());
    if (planned.ok()) {
      caller.note(absl::StrCat("Moving ", from->name(), " while its requests go on…"));
      OperationContext yielding = caller;
      yielding.should_continue = [this, &caller] {
        return caller.should_continue() && !AnyRecovering();
      };
      const absl::Status moved = MigrateLive(from, *std::move(planned), request, yielding);
      const bool yielded = absl::IsCancelled(moved) && caller.should_continue() && AnyRecovering();
      return yielded ? BeingRecovered(*from) : moved;
    }
  }
  if (from->serving()) {  // else it has no stages
    for (const PlannedStage& stage : now.plan.stages) {
      planning.freed.push_back({.node_id = now.NodeOf(stage).info.node_id(),
                                .device = now.inputs.request.devices[stage.device].name,
                                .bytes = stage.memory_bytes()});
      if (const PlanDevice* const cpu = now.CpuOf(stage); stage.host_bytes > 0 && cpu != nullptr) {
        planning.freed.push_back({.node_id = now.NodeOf(stage).info.node_id(),
                                  .device = cpu->name,
                                  .bytes = stage.host_bytes});
      }
    }
  }
  auto planned = PlanModel(planning, now.source, request.placement());
  if (!planned.ok()) return planned.status();
  from->SetMoving(true);
  absl::Cleanup stay = [&from] { from->SetMoving(false); };
  for (uint32_t noted = 0, active = from->active_requests(); active > 0;
       active = from->active_requests()) {
    if (active != noted &&
        !caller.note(absl::StrCat("Waiting for ", active, " request", active == 1 ? "" : "s",
                                  " of ", from->name(), " to end…"))) {
      return absl::CancelledError("interrupted");
    }
    noted = active;
    // A recovery, of this model or another one, waits for this operation, and its requests for the
    // recovery.
    if (AnyRecovering()) return BeingRecovered(*from);
    if (!caller.should_continue()) return absl::CancelledError("interrupted");
    // Requests end on threads of links, which must not wait for mu_: only recoveries are signalled.
    Wait(kPoll, [&from, active, this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return from->active_requests() != active || models_.AnyRecovering();
    });
  }
  std::move(stay).Cancel();
  caller.note(absl::StrCat("Moving ", from->name(), "…"));
  {
    absl::MutexLock lock(mu_);
    RequeueReload(from->model_id(), absl::UnavailableError("it moves to other nodes"));
  }
  // Requests that came at the last moment go on there.
  from->Unload(AsLeaderChanged(absl::UnavailableError("the model moves")));
  // From here on the move is not cancelled: half a move is of no use.
  OperationContext resolute = caller;
  resolute.should_continue = [] { return true; };
  resolute.note = [&caller](const std::string& note) {
    caller.note(note);
    return true;
  };
  resolute.placed = nullptr;
  resolute.progress = nullptr;
  planning.freed.clear();  // the nodes report it as free by now
  planning.should_continue = [this] { return !stopping(); };
  planning.note = resolute.note;
  const auto moved = DeployWhereItFits(planning, *std::move(planned), request, request.placement(),
                                       from, resolute);
  absl::MutexLock lock(mu_);
  reloads_.OnTried(from->model_id(), moved.status());
  if (moved.ok()) return absl::OkStatus();
  const bool comes_back = reloads_.entries().contains(from->model_id());  // else it was unloaded
  if (comes_back) recovery_.OnRoomMade();
  const absl::Status why(
      moved.status().code(),
      absl::StrCat(from->name(), " could not be loaded elsewhere: ", moved.status().message(),
                   comes_back
                       ? "; it is loaded again as soon as there is room for it"
                       : absl::StrCat("; it is unloaded now: strata load ", now.source.path())));
  return IsLeaderChanged(moved.status()) ? AsLeaderChanged(why) : why;
}

}  // namespace strata
