// Carries out NodeDrain: the layers of a node move to others.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "coordinator/models/cluster_snapshot.h"
#include "coordinator/models/coordinator.h"
#include "coordinator/models/node_drain.h"
#include "coordinator/models/node_match.h"
#include "coordinator/request/request_status.h"

namespace strata {

absl::Status Coordinator::Drain(const wire::DrainNodeRequest& request,
                                const OperationContext& caller) {
  return Explain(DrainNow(request, UntilStopped(caller)));
}

absl::StatusOr<NodeReport> Coordinator::AnsweringNode(absl::string_view name) {
  auto report = Report();
  if (!report.ok()) return report.status();
  const absl::StatusOr<size_t> found = FindNode(name, report->cluster);
  if (!found.ok()) return found.status();
  NodeReport& node = report->nodes[*found];
  if (node.client != nullptr) return std::move(node);
  return absl::UnavailableError(absl::StrCat(node.name(), ": ", node.status.message()));
}

absl::Status Coordinator::DrainNow(const wire::DrainNodeRequest& request,
                                   const OperationContext& caller) {
  if (auto s = CheckLeadership(); !s.ok()) return s;
  auto node = AnsweringNode(request.node());
  if (!node.ok()) return node.status();
  if (request.undo()) {
    if (auto s = node->client->SetDraining(false); !s.ok()) return s;
  } else {
    const auto work = StartWork(caller);
    if (!work.ok()) return work.status();
    // Another drain of the node may have ended meanwhile, and taken its mark back.
    node = AnsweringNode(request.node());
    if (!node.ok()) return node.status();
    absl::Cleanup undo = [&] {
      if (!node->info.draining()) node->client->SetDraining(false).IgnoreError();
    };
    if (auto s = node->client->SetDraining(true); !s.ok()) return s;
    if (auto s = Evacuate(node->info.node_id(), caller); !s.ok()) return s;
    std::move(undo).Cancel();
  }
  absl::MutexLock lock(mu_);
  rebalance_.OnChange(SteadyTime::Now());
  return absl::OkStatus();
}

absl::Status Coordinator::Evacuate(const std::string& node_id, const OperationContext& caller) {
  NodeDrain drain = [&] {
    absl::MutexLock lock(mu_);
    return NodeDrain(node_id, models_);
  }();
  const auto next = [&](const absl::Status& may_go_on) {
    absl::MutexLock lock(mu_);
    return drain.Next(models_, may_go_on);
  };
  std::unique_ptr<PlannedModel> plan;
  uint32_t noted = 0;
  for (absl::Status may_go_on = MayGoOn(caller);; may_go_on.Update(MayGoOn(caller))) {
    const NodeDrain::Step step = next(may_go_on);
    switch (step) {
      case NodeDrain::Step::kPlanBeside:
      case NodeDrain::Step::kPlanAnew: {
        PlanningOptions planning = PlanningAgain(*drain.model(), drain.planning(), caller);
        if (step == NodeDrain::Step::kPlanAnew) planning.freed = drain.freed();
        auto planned =
            PlanModel(planning, drain.model()->planned().source, drain.request().placement());
        drain.OnPlanned(planned.status());
        if (planned.ok()) plan = *std::move(planned);
        break;
      }
      case NodeDrain::Step::kMigrate: {
        caller.note(absl::StrCat("Moving ", drain.model()->name(), " while its requests go on…"));
        OperationContext yielding = caller;
        yielding.should_continue = [this, &caller] {
          const bool should_continue = caller.should_continue();
          absl::MutexLock lock(mu_);
          return NodeDrain::MayMigrate(models_, should_continue);
        };
        const absl::Status moved =
            MigrateLive(drain.model(), std::exchange(plan, nullptr), drain.request(), yielding);
        may_go_on = MayGoOn(caller);
        absl::MutexLock lock(mu_);
        drain.OnMigrated(moved, models_, may_go_on);
        break;
      }
      case NodeDrain::Step::kAwaitRequests:
        may_go_on = AwaitRequests(*drain.model(), &noted, caller);
        break;
      case NodeDrain::Step::kReload: {
        const absl::Status moved = ReloadElsewhere(drain, std::exchange(plan, nullptr), caller);
        absl::MutexLock lock(mu_);
        reloads_.OnTried(drain.model()->model_id(), moved);
        // Else it was unloaded.
        const bool comes_back = reloads_.entries().contains(drain.model()->model_id());
        if (comes_back) recovery_.OnRoomMade();
        drain.OnReloaded(moved, comes_back);
        break;
      }
      case NodeDrain::Step::kEnd:
        return drain.status();
    }
  }
}

absl::Status Coordinator::AwaitRequests(const Deployment& model, uint32_t* noted,
                                        const OperationContext& caller) {
  const uint32_t active = model.active_requests();
  if (active != std::exchange(*noted, active) &&
      !caller.note(absl::StrCat("Waiting for ", active, " request", active == 1 ? "" : "s", " of ",
                                model.name(), " to end…"))) {
    return absl::CancelledError("interrupted");
  }
  // Requests end on threads of links, which must not wait for mu_: only recoveries are signalled.
  Wait(kPoll, [&model, active, this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return model.active_requests() != active || models_.AnyRecovering();
  });
  return absl::OkStatus();
}

absl::Status Coordinator::ReloadElsewhere(const NodeDrain& drain,
                                          std::unique_ptr<PlannedModel> plan,
                                          const OperationContext& caller) {
  const DeploymentPtr& from = drain.model();
  const wire::LoadModelRequest request = drain.request();
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
  PlanningOptions planning = PlanningAgain(*from, drain.planning(), caller);
  planning.should_continue = [this] { return !stopping(); };
  planning.note = resolute.note;
  return DeployWhereItFits(planning, std::move(plan), request, request.placement(), from, resolute)
      .status();
}

}  // namespace strata
