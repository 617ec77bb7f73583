// Decides how the models that have stages on a node leave it (`strata drain`), one after the other.
// A state machine without I/O, thread or clock: Next() says what to do, and the caller reports how
// it ended. Not thread-safe.
//
//   kPlanBeside ─ there is room ─▶ kMigrate ─▶ the next model; after the last one kEnd
//        └─ or not ─▶ kPlanAnew ─▶ kAwaitRequests ─▶ kReload ─▶ the same
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/models/deployment.h"
#include "coordinator/models/model_planner.h"
#include "coordinator/models/model_table.h"
#include "proto/coordinator.pb.h"

namespace strata {

class NodeDrain {
 public:
  using DeploymentPtr = ModelTable::DeploymentPtr;
  enum class Step {
    kPlanBeside,     // plan model() as planning() says; then OnPlanned()
    kMigrate,        // carry that plan out while the requests go on; then OnMigrated()
    kPlanAnew,       // plan it as if freed() were free; then OnPlanned()
    kAwaitRequests,  // it takes no new requests: ask again once the present ones have ended
    kReload,         // unload it and carry the plan out, whatever happens; then OnReloaded()
    kEnd,            // as status() says
  };

  // Of the models that have stages on the node. REQUIRES: the node is marked as draining, so that
  // no plan takes it, and nothing else plans until kEnd.
  NodeDrain(const std::string& node_id, const ModelTable& models);

  // `may_go_on`: OK, or why the drain is to end: this node does not coordinate any more, or the
  // caller has gone. From kReload on it does not count.
  Step Next(const ModelTable& models, const absl::Status& may_go_on);
  // A migration stops where this is false: a model that serves and lost a stage comes first.
  static bool MayMigrate(const ModelTable& models, bool should_continue) {
    return should_continue && !models.AnyRecovering();
  }
  void OnPlanned(const absl::Status& status);
  // `may_go_on` as of Next().
  void OnMigrated(const absl::Status& status, const ModelTable& models,
                  const absl::Status& may_go_on);
  // `comes_back`: it could not be loaded, and is loaded again by itself.
  void OnReloaded(const absl::Status& status, bool comes_back);

  // Between Next() and the report of how that ended.
  const DeploymentPtr& model() const { return models_[at_]; }
  PlanScope planning() const;
  // The request of the model, free to go to any node.
  wire::LoadModelRequest request() const;
  std::vector<PlanningOptions::FreedMemory> freed() const { return MemoryOf(*model()); }

  // At kEnd. OK: the node has no stages any more. Else the mark is to be taken back.
  const absl::Status& status() const { return status_; }

 private:
  bool has_ended() const { return at_ == models_.size(); }
  void Begin(const ModelTable& models);
  void NextModel();
  void End(const absl::Status& status);

  // All of them until it goes: a deployment's end blocks, and the callers hold locks.
  std::vector<DeploymentPtr> models_;
  size_t at_ = 0;
  bool has_begun_ = false;  // with model()
  Step step_ = Step::kEnd;
  absl::Status status_;
};

}  // namespace strata
