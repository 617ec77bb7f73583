// The role that one node of a cluster has: it plans, loads and unloads models, and serves texts.
// Every node has one of these, and it is idle on all but the node that membership made the
// coordinator. When the role goes, its models are unloaded, and its texts are handed over to
// whoever coordinates next. When it comes, models that the coordinator before had loaded to stay
// are loaded again, with the stages of theirs that it left behind; others are unloaded. A model
// that loses a stage is recovered: the layers are placed again on the nodes that are left, around
// the stages that they have, and its texts go on there. Models move to better plans beside their
// texts.
//
// Thread-safe, but for Tick(). What blocks says so; nothing of it is called on the loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/cluster/cluster_runtime.h"
#include "coordinator/generation/generation_call.h"
#include "coordinator/membership/flap_tracker.h"
#include "coordinator/membership/loss_detector.h"
#include "coordinator/models/deployment.h"
#include "coordinator/models/leader_role.h"
#include "coordinator/models/model_recovery.h"
#include "coordinator/models/model_table.h"
#include "coordinator/models/rebalancer.h"
#include "coordinator/models/reload_queue.h"
#include "coordinator/models/stage_reclaimer.h"
#include "proto/coordinator.pb.h"
#include "shard/weights/weight_fetcher.h"
#include "transport/base/event_loop.h"
#include "transport/base/printable_text.h"
#include "transport/base/steady_time.h"

namespace strata {

// Models that a cluster has at a time.
inline constexpr size_t kModelsMax = 16;
// Texts at a time that a model has room for, unless asked.
inline constexpr uint32_t kLoadSeqs = 4;

class Coordinator {
 public:
  struct Options {
    std::string node_id;      // of this node
    std::string listen_host;  // where links from last stages come in; with brackets if IPv6
    SelfTestFile* self_tests = nullptr;  // of this node; outlives this; null: none
    // Called on the loop when the group has more requests or models than before. May be empty.
    std::function<void()> on_more_work;
  };
  // All outlive it; the loop runs until Stop() has returned.
  Coordinator(EventLoop* loop, ClusterRuntime* cluster, WeightFetcher* fetcher, Options options);
  ~Coordinator();

  // Once the node listens: by which host:port it reaches itself. Loop thread, or before it runs.
  void Start(std::string self_address);

  // Calls that wait end soon with kUnavailable, and no new ones begin. Any number of times.
  void StopCalls();
  // The same, then ends what is under way and unloads all models, or hands them over where another
  // node is there to coordinate. Blocks until that is done; nodes that hang are given half a
  // minute. Once.
  void Stop();

  // Who coordinates, as this node sees it.
  struct Leadership {
    bool mine = false;
    bool settled = false;  // mine: and not about to become another's
    std::string address;   // host:port of another node that does; empty: none known
    std::string refused;   // ClusterRuntime::WhyRefused()
  };
  Leadership leadership();  // blocks until the loop answers
  absl::Status
  CheckLeadership();  // the same; where it is not mine, kUnavailable and AsLeaderChanged()

  // All that the cluster's nodes know, asked from here; on any node. `only` these ids, 16 bytes
  // each, if there are any. Blocks.
  absl::StatusOr<ClusterSnapshot> Report(const std::vector<std::string>& only = {});

  // Each returns kUnavailable where this node does not coordinate.
  //
  // What a call that takes long tells its caller, and asks of it; on the caller's thread or a
  // loading one, one call at a time. False ends the call (kCancelled).
  struct OperationContext {
    std::function<bool()> should_continue;
    std::function<bool(const std::string& note)> note;
    std::function<bool(const wire::ModelStatus& placed)> placed;              // LoadModel()
    std::function<bool(uint32_t stage, const wire::LoadProgress&)> progress;  // LoadModel()
    bool skip_measurement_wait = false;  // as of PlanningOptions
    bool ignore_assignment = false;      // layers assigned by hand go elsewhere for now
    bool is_recovery =
        false;  // on the recovery thread: waits for no other recovery, and gives up instead
  };
  // Blocks; errors of PlanModel().
  absl::StatusOr<wire::PlanExplained> Plan(const wire::PlanModelRequest& request,
                                           const OperationContext& caller);
  // Blocks. A model that is there already stays as it is. Where another model loses a stage, that
  // is recovered first, and the load begins again then. kFailedPrecondition: it is there, but not
  // as wished; kResourceExhausted: too many models; else of PlanModel() and Deployment::Load().
  struct Loaded {
    std::shared_ptr<Deployment> deployment;  // shared with this
    bool was_there = false;
    uint64_t lease = 0;  // with `hold`; 0: it stays
  };
  absl::StatusOr<Loaded> Load(const wire::LoadModelRequest& request,
                              const OperationContext& caller);
  // What another node had coordinated, with the stages that are left of it. Layers that were
  // assigned by hand go elsewhere where they cannot be had so. Otherwise as Load().
  absl::StatusOr<Loaded> Reload(const wire::LoadModelRequest& request, OperationContext caller);
  // By its name, path or the start of its id; empty: the only one. Blocks until its memory is free.
  // kNotFound, kInvalidArgument: none is meant, or several. Returns its name.
  absl::StatusOr<std::string> Unload(const std::string& model);
  // A model that is held goes with the last of its leases. Release() blocks as Unload(), and does
  // nothing when the lease is no more: the model was unloaded, or it stays now.
  bool HasLease(uint64_t lease);
  void Release(uint64_t lease);
  // Blocks for a few seconds where models of the coordinator before are being loaded again. Those
  // that are wanted and not placed have no stages, and say why. kUnavailable: it is not known yet
  // what there should be, or this node is alone and misses others that may know.
  absl::StatusOr<std::vector<wire::ModelStatus>> Models();
  // What cannot be served now, and why, a line each; on any node: of others, too, what only it
  // knows. Does not block.
  std::vector<std::string> Problems();
  // As Models() has it: by the name that no other has.
  wire::ModelStatus StatusOf(const std::shared_ptr<Deployment>& deployment);
  // What they do, for graphs; none where this node does not coordinate. Does not block.
  struct ModelStats {
    PrintableText name;  // as it is shown
    std::string id;      // bytes
    bool serving = false;
    size_t tokenizing = 0;  // texts whose prompts are not tokens yet
    std::vector<wire::ModelStage> stages;
    SchedulerStats scheduler;
  };
  std::vector<ModelStats> Stats();
  // Whether Generate() would find it at work, or soon, or failed; else why not. Does not block.
  absl::Status Answers(const std::string& model);
  // The role is new, and models of the coordinator before may be loaded again soon. On the loop.
  bool MayReload();
  static absl::Status Reloading();  // what texts end with meanwhile
  // Does not block. Errors go to the call's sink.
  void Generate(const wire::GenerateRequest& request, std::shared_ptr<GenerationCall> call);
  // Blocks until nothing is on the node any more: its layers go to others, while texts go on where
  // there is room for them beside what is loaded, else once those under way have ended. Errors of
  // Load(): when the others have no room, nothing has changed. kNotFound,
  // kInvalidArgument: no node is meant, or several.
  absl::Status Drain(const wire::DrainNodeRequest& request, const OperationContext& caller);

 private:
  static constexpr absl::Duration kPoll = absl::Milliseconds(50);
  using DeploymentPtr = std::shared_ptr<Deployment>;  // shared with calls under way

  template <typename T>
  absl::StatusOr<T> CallOnLoop(std::function<T()> fn);
  absl::StatusOr<wire::Epoch> NextEpoch();
  bool IsGone(const std::string& node_id);                      // as membership says; in hex
  void RefreshLeadership() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);  // loop
  // `asked`, which also ends when this stops.
  OperationContext UntilStopped(const OperationContext& asked);
  absl::Status Explain(const absl::Status& status);
  // Waits for its turn to change what is loaded. kCancelled.
  absl::StatusOr<std::unique_lock<absl::Mutex>> StartWork(const OperationContext& caller);
  absl::StatusOr<Loaded> LoadNow(const wire::LoadModelRequest& request,
                                 const OperationContext& caller);
  absl::Status DrainNow(const wire::DrainNodeRequest& request, const OperationContext& caller);
  PlanningOptions PlanningFor(const OperationContext& caller);
  // Remembers the device where `why` says that a load of `deployment` computed wrong numbers: plans
  // that nobody asked for leave it alone until the members change.
  void Refuse(const Deployment& deployment, const absl::Status& why);
  std::vector<CapacityLimit> Refused(const std::string& model_id);
  absl::StatusOr<DeploymentPtr> Find(const std::string& model);
  // The same; kNotFound only where nobody can have or want such a model.
  absl::StatusOr<DeploymentPtr> FindOrWhyNot(const std::string& model);
  // Why a load failed that nobody ended.
  struct Failure {
    std::optional<CapacityLimit> cap;  // for want of memory or disk, or of right numbers
    bool is_unavailable = false;       // most often a connection that broke
    // It took the place of another one and has it still, for the next try.
    DeploymentPtr in_place;
  };
  // `instead_of`, if any, is still there, or nothing is done: null.
  absl::StatusOr<DeploymentPtr> Deploy(std::unique_ptr<PlannedModel> planned,
                                       const wire::LoadModelRequest& request,
                                       const DeploymentPtr& instead_of,
                                       const OperationContext& caller, Failure* failure);
  // Deploy(); where there is less memory or disk than was planned, plans with what there is and
  // tries again, as load_retries.h says. `planning` and `placement`, which may be fewer than the
  // request's, made `planned`. Null: `instead_of`, or what took its place, is not there any more.
  absl::StatusOr<DeploymentPtr> DeployWhereItFits(PlanningOptions planning,
                                                  std::unique_ptr<PlannedModel> planned,
                                                  const wire::LoadModelRequest& request,
                                                  const wire::PlacementOptions& placement,
                                                  DeploymentPtr instead_of,
                                                  const OperationContext& caller);
  absl::Status EvacuateModel(const DeploymentPtr& from, const OperationContext& caller);
  // With the work begun. Not OK: `from` serves as before, or it is being
  // recovered.
  absl::Status MigrateLive(const DeploymentPtr& from, std::unique_ptr<PlannedModel> planned,
                           const wire::LoadModelRequest& request, const OperationContext& caller);
  void Move(const DeploymentPtr& model, std::unique_ptr<PlannedModel> planned,
            const OperationContext& caller);
  void Rebalance();
  bool RebalanceOne(const DeploymentPtr& model);
  absl::StatusOr<Deployment::Options> OptionsFor(const wire::LoadModelRequest& request);
  void RunRecoveryLoop();  // thread
  void Recover(const DeploymentPtr& lost);
  // False: something else had to be recovered first.
  bool ReloadOne(const std::string& id, const wire::LoadModelRequest& pending_reload);
  bool AnyRecovering();
  // Blocks until their memory is free, or their nodes have gone.
  void UnloadStaleStages(PlannedModel* planned);
  // With the stages on their nodes and the work begun.
  absl::Status RecoverNow(const DeploymentPtr& lost, const OperationContext& caller);
  bool IsThere(const DeploymentPtr& deployment);
  // Takes it out of the table; false: it was not there. Remove() unloads it then, in any case.
  bool TakeOut(const DeploymentPtr& deployment) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Remove(const DeploymentPtr& deployment, const absl::Status& why);
  // The same, but what is loaded of it stays on its nodes, for the next plan to keep.
  bool Leave(const DeploymentPtr& deployment, const absl::Status& why);
  // What failed goes, since it is loaded again by hand; where that fails, it comes back by itself
  // as it would have. True: it would have.
  bool GiveUp(const DeploymentPtr& failed);
  // It was loaded to stay, and is loaded again as soon as it can be, until somebody unloads it.
  // False: it was not.
  bool RequeueReload(const std::string& id, const absl::Status& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // One that is not loaded again yet, and now will not be. Returns its path; none, or several, are
  // meant: nothing.
  std::optional<std::string> ForgetPendingReload(const std::string& model);

  void Tick();                                                    // loop
  bool Look();                                                    // loop; true: look again soon
  void LoseNodes(const ClusterView& view);                        // loop
  void PublishDesiredState() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);  // loop
  // Not on the loop: before the caller that asked for a change hears that it is made.
  void PublishDesiredStateNow();
  // For all at once, each on its thread.
  static void ForEach(const std::vector<DeploymentPtr>& models,
                      absl::FunctionRef<void(Deployment*)> call);
  // What is loaded from now on is another leadership's.
  void StepDown() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // This node does not coordinate, and has models nevertheless.
  bool HasModelsOfAnother() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  void RunLeadershipLoop();   // thread: takes and leaves leadership
  bool ReclaimStaleStages();  // true: it has seen all, and nothing was left over
  bool stopping();
  absl::Status Stopping() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status WhyNotHere(const std::string& model) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Misses() const ABSL_SHARED_LOCKS_REQUIRED(mu_);  // OK: no other node

  EventLoop* const loop_;
  ClusterRuntime* const cluster_;
  WeightFetcher* const fetcher_;
  const Options options_;
  std::string self_address_;  // constant after Start()

  absl::Mutex work_mu_;  // held while a plan is made and carried out: one at a time

  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  ModelTable models_ ABSL_GUARDED_BY(mu_);
  ReloadQueue reloads_ ABSL_GUARDED_BY(mu_);
  LeaderRole role_ ABSL_GUARDED_BY(mu_);  // as last looked at
  RecoverySchedule recovery_ ABSL_GUARDED_BY(mu_);
  RebalanceSchedule rebalance_ ABSL_GUARDED_BY(mu_);
  StageReclaimer reclaimer_ ABSL_GUARDED_BY(mu_);
  uint32_t unloads_ ABSL_GUARDED_BY(mu_) = 0;  // under way: memory that comes back
  // Of a leadership that has ended; RunLeadershipLoop() unloads them.
  std::vector<DeploymentPtr> lost_ ABSL_GUARDED_BY(mu_);
  std::optional<wire::Epoch> prepared_ ABSL_GUARDED_BY(mu_);  // of a plan that takes over soon
  NodeFlapTracker flap_tracker_ ABSL_GUARDED_BY(mu_);
  // By model id, at most kModelsMax; of each, kCapacityLimitsMax at most.
  std::map<std::string, std::vector<CapacityLimit>> refused_ ABSL_GUARDED_BY(mu_);
  LossDetector lost_members_;                 // loop
  std::unique_ptr<EventLoop::Handle> timer_;  // loop
  uint64_t tick_ms_ = 0;                      // loop
  uint64_t work_ = 0;  // loop: requests and models of the group, as last seen
  std::thread leadership_thread_, recovery_thread_;
};

}  // namespace strata
