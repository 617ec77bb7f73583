// The role that one node of a cluster has: it plans, loads and unloads models, and serves requests.
// Every node has one of these, and it is idle on all but the node that membership made the
// coordinator. When the node loses the role, its models are unloaded, and their requests are
// transferred to the next coordinator. When it gets the role, models that are to stay loaded are
// loaded again, with the stages that the previous coordinator left behind; other stages are
// unloaded. A model that loses a stage is recovered: the layers are placed again on the nodes that
// are left, around the stages that they have, and its requests go on there. Models move to better
// plans while they serve.
//
// Thread-safe, but for Tick(). Methods that block say so; none of these is called on the loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/cluster/cluster_runtime.h"
#include "coordinator/generation/generation_call.h"
#include "coordinator/membership/flap_tracker.h"
#include "coordinator/membership/loss_detector.h"
#include "coordinator/models/cluster_snapshot.h"
#include "coordinator/models/deployment.h"
#include "coordinator/models/desired_models.h"
#include "coordinator/models/desired_state_file.h"
#include "coordinator/models/leader_role.h"
#include "coordinator/models/model_recovery.h"
#include "coordinator/models/model_retention.h"
#include "coordinator/models/model_table.h"
#include "coordinator/models/node_drain.h"
#include "coordinator/models/rebalancer.h"
#include "coordinator/models/reload_queue.h"
#include "coordinator/models/stage_reclaimer.h"
#include "proto/coordinator.pb.h"
#include "shard/weights/weight_fetcher.h"
#include "transport/base/event_loop.h"
#include "transport/base/printable_text.h"
#include "transport/base/steady_time.h"

namespace strata {

// Models that a cluster has at a time, at most.
inline constexpr size_t kModelsMax = 16;
// Sequences that a model has room for at a time, unless the request says otherwise.
inline constexpr uint32_t kLoadSeqs = 4;

class Coordinator {
 public:
  struct Options {
    std::string node_id;      // of this node
    std::string listen_host;  // where links from last stages come in; with brackets if IPv6
    SelfTestFile* self_tests = nullptr;        // of this node; outlives this; null: none
    DesiredStateFile* desired_file = nullptr;  // the same; null: the node stores nothing
    // Called on the loop when the group has more requests or models than before. May be empty.
    std::function<void()> on_more_work;
    // What this node reports of itself and sees of the cluster, as its services answer GetInfo and
    // GetCluster. Called on the loop.
    std::function<OwnReport()> own_report;
  };
  // All outlive it; the loop runs until Stop() has returned.
  Coordinator(EventLoop* loop, ClusterRuntime* cluster, WeightFetcher* fetcher, Options options);
  ~Coordinator();

  // `self_address`: host:port by which the node reaches itself. REQUIRES: the node listens; on the
  // loop's thread, or before the loop runs.
  void Start(std::string self_address);

  // Calls that wait end soon with kUnavailable, and no new ones begin. Any number of times.
  void StopCalls();
  // The same, then ends operations in progress and unloads all models, or leaves them to the next
  // coordinator if there is another node. Blocks until that is done; nodes that hang are given half
  // a minute. Once.
  void Stop();

  // Which node coordinates, as this node sees it.
  struct Leadership {
    bool mine = false;
    bool settled = false;  // mine: and not about to become another's
    std::string address;   // host:port of another node that does; empty: none known
    std::string refused;   // ClusterRuntime::WhyRefused()
  };
  Leadership leadership();  // blocks until the loop answers
  // OK: it is this node's. kUnavailable: it is another's, or this node stops; AsLeaderChanged() if
  // another one has it or will.
  absl::Status CheckLeadership();

  // The report of all nodes, or of those with the ids in `only`, 16 bytes each, if there are any;
  // on any node. Blocks.
  absl::StatusOr<ClusterSnapshot> Report(const std::vector<std::string>& only = {});

  // Each of these returns kUnavailable where this node does not coordinate.
  //
  // Callbacks and options of a long operation. The callbacks run on the caller's thread or a
  // loading one, one at a time. False ends the operation (kCancelled).
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
  // Blocks. A model that is loaded already stays as it is. Where another model loses a stage, it is
  // recovered first, and the load begins again then. Where there is no room, idle models are
  // unloaded as ModelRetention::Evictable() says. kFailedPrecondition: it is loaded with other
  // options; kResourceExhausted: too many models; else errors of PlanModel() and
  // Deployment::Load().
  struct LoadResult {
    std::shared_ptr<Deployment> deployment;  // shared with this
    bool was_there = false;
    uint64_t lease = 0;  // with `hold`; 0: it stays
  };
  absl::StatusOr<LoadResult> Load(const wire::LoadModelRequest& request,
                                  const OperationContext& caller);
  // Loads a model of another coordinator again, with the stages that are left of it. Layers that
  // were assigned by hand go elsewhere if they cannot be placed so. Otherwise as Load().
  absl::StatusOr<LoadResult> Reload(const wire::LoadModelRequest& request, OperationContext caller);
  // `model`: name, path or the start of an id; empty: the only one. Blocks until its memory is
  // free. kNotFound, kInvalidArgument: none matches, or several. Returns its name.
  absl::StatusOr<std::string> Unload(const std::string& model);
  // Has the stages of a loaded model, or of all where `model_id` is empty, forget the prompts that
  // no request uses; those that are not there at present do so when they are. Blocks.
  void ForgetKept(const std::string& model_id);
  // A model that is held by leases is unloaded with the last of them. Release() blocks as Unload(),
  // and does nothing when the lease does not exist any more: the model was unloaded, or is pinned
  // now.
  bool HasLease(uint64_t lease);
  void Release(uint64_t lease);
  // Blocks for a few seconds while models of the previous coordinator are being loaded again.
  // Models that are to be loaded and are not placed have no stages, and the reason as their status.
  // kUnavailable: the desired models are not known yet, or this node is alone and misses others
  // that may know them.
  absl::StatusOr<std::vector<wire::ModelStatus>> Models();
  // The models that cannot be served now, and why, a line each. Empty where this node does not
  // coordinate. Does not block.
  std::vector<std::string> Problems();
  // As Models() has it, with its unique shown name.
  wire::ModelStatus StatusOf(const std::shared_ptr<Deployment>& deployment);
  // Load figures of the models, for metrics; none where this node does not coordinate. Does not
  // block.
  struct ModelStats {
    PrintableText name;  // as it is shown
    std::string id;      // bytes
    bool serving = false;
    size_t tokenizing = 0;  // requests whose prompts are not tokens yet
    std::vector<wire::ModelStage> stages;
    SchedulerStats scheduler;
  };
  std::vector<ModelStats> Stats();
  // OK: Generate() would find the model serving, being recovered, or failed; else why not. Does not
  // block.
  absl::Status Answers(const std::string& model);
  // The role is new, and models of the previous coordinator may be loaded again soon. On the loop.
  bool MayReload();
  static absl::Status Reloading();  // for requests until then
  // Does not block. Errors go to the call's sink.
  void Generate(const wire::GenerateRequest& request, std::shared_ptr<GenerationCall> call);
  // Blocks until the node has no stages any more: its layers go to others, while requests go on if
  // there is room beside the loaded stages, else once the running requests have ended. Errors of
  // Load(): when the others have no room, nothing has changed. kNotFound, kInvalidArgument: no node
  // matches, or several.
  absl::Status Drain(const wire::DrainNodeRequest& request, const OperationContext& caller);

 private:
  // How often a caller's own end is looked at, which nobody signals: its client has gone.
  static constexpr absl::Duration kPoll = absl::Milliseconds(50);
  // From a change of the stages or members until Replicate().
  static constexpr absl::Duration kReplicateAfter = absl::Seconds(2);
  using DeploymentPtr = std::shared_ptr<Deployment>;  // shared with calls in progress
  struct EndWork {
    void operator()(Coordinator* coordinator) const { coordinator->NextWork(); }
  };
  using Work = std::unique_ptr<Coordinator, EndWork>;  // the turn to change what is loaded

  template <typename T>
  absl::StatusOr<T> CallOnLoop(std::function<T()> fn);
  absl::StatusOr<wire::Epoch> NextEpoch();
  bool IsGone(const std::string& node_id);                      // as membership says; in hex
  void RefreshLeadership() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);  // loop
  // `caller`, whose operation also ends when this stops.
  OperationContext UntilStopped(const OperationContext& caller);
  absl::Status Explain(const absl::Status& status);
  // Waits for its turn to change what is loaded, which ends with the result. kCancelled.
  absl::StatusOr<Work> StartWork(const OperationContext& caller);
  void NextWork();
  // Unloads models that are idle, for a plan that `planning` and `source` could not find room for.
  // OK: plan again. kResourceExhausted: why that would not help, and what a person can do; `why`
  // was the planner's reason.
  absl::Status MakeRoom(PlanningOptions planning, const wire::ModelSource& source,
                        const wire::PlacementOptions& placement, bool by_hand,
                        const absl::Status& why, const OperationContext& caller);
  // Takes out and unloads it if it may still go to make room; false: it is in use now.
  bool Evict(const DeploymentPtr& model, bool by_hand);
  void UnloadExpired();
  std::string WhatToUnload();
  // Waits until `due`, which reads what mu_ guards, holds; for `limit` at most, and not when this
  // stops.
  void Wait(absl::Duration limit, absl::FunctionRef<bool()> due);
  // OK, or why an operation is to end: kCancelled, or another node coordinates.
  absl::Status MayGoOn(const OperationContext& caller);
  absl::StatusOr<LoadResult> LoadNow(const wire::LoadModelRequest& request,
                                     const OperationContext& caller);
  // The report of the node that `name` means, if it answers.
  absl::StatusOr<NodeReport> AnsweringNode(absl::string_view name);
  absl::Status DrainNow(const wire::DrainNodeRequest& request, const OperationContext& caller);
  PlanningOptions PlanningFor(const OperationContext& caller);
  // The same, for another plan of a model that is loaded.
  PlanningOptions PlanningAgain(const Deployment& model, const PlanScope& scope,
                                const OperationContext& caller);
  // Where `why` says that a device computed wrong numbers in a load of `deployment`: excludes that
  // device from plans that no person requested, until the members change.
  void ExcludeDevice(const Deployment& deployment, const absl::Status& why);
  std::vector<CapacityLimit> ExcludedDevices(const std::string& model_id);
  absl::StatusOr<DeploymentPtr> Find(const std::string& model);
  // The same; kNotFound only where the model is neither loaded nor to be loaded.
  absl::StatusOr<DeploymentPtr> FindOrWhyNot(const std::string& model);
  // Why a load failed that was not cancelled.
  struct LoadFailure {
    std::optional<CapacityLimit> limit;  // for want of memory or disk, or of right numbers
    bool is_unavailable = false;         // most often a connection that broke
    // The failed deployment, which has replaced another one and keeps its place for the next try.
    DeploymentPtr in_place;
  };
  // Replaces `instead_of`, if not null. Returns null if `instead_of` is not in the table any more.
  absl::StatusOr<DeploymentPtr> Deploy(std::unique_ptr<PlannedModel> planned,
                                       const wire::LoadModelRequest& request,
                                       const DeploymentPtr& instead_of,
                                       const OperationContext& caller, LoadFailure* failure);
  // Deploy(); where there is less memory or disk than was planned, plans with what there is and
  // tries again, as load_retries.h says. `planned` was made from `planning` and `placement`, which
  // may have fewer constraints than the request's. Null: `instead_of`, or its replacement, is not
  // in the table any more.
  absl::StatusOr<DeploymentPtr> DeployWhereItFits(PlanningOptions planning,
                                                  std::unique_ptr<PlannedModel> planned,
                                                  const wire::LoadModelRequest& request,
                                                  const wire::PlacementOptions& placement,
                                                  DeploymentPtr instead_of,
                                                  const OperationContext& caller);
  // Moves all stages of a node to others. REQUIRES: StartWork(); the node is marked as draining.
  absl::Status Evacuate(const std::string& node_id, const OperationContext& caller);
  // Waits until requests have ended or a recovery is needed, a moment at most. kCancelled.
  absl::Status AwaitRequests(const Deployment& model, uint32_t* noted,
                             const OperationContext& caller);
  // Unloads the model of the drain and loads it by `plan`.
  absl::Status ReloadElsewhere(const NodeDrain& drain, std::unique_ptr<PlannedModel> plan,
                               const OperationContext& caller);
  // Not OK: `from` serves as before, or is being recovered. REQUIRES: StartWork().
  absl::Status MigrateLive(const DeploymentPtr& from, std::unique_ptr<PlannedModel> planned,
                           const wire::LoadModelRequest& request, const OperationContext& caller);
  void Rebalance();
  bool RebalanceOne(const DeploymentPtr& model);
  // A look at a model that serves goes on while it does.
  OperationContext WhileItServes(const DeploymentPtr& model);
  // Tells the stages which nodes are to have copies of their KV blocks (replica_targets.h).
  void Replicate();
  void ReplicateSoon();                           // stages or members have changed
  bool ReplicateOne(const DeploymentPtr& model);  // false: not all stages know
  absl::StatusOr<Deployment::Options> OptionsFor(const wire::LoadModelRequest& request);
  // Of the draft model of `model`, by name or id; empty: none.
  MakeModelDrafter DrafterFor(const std::string& draft,
                              const std::shared_ptr<const ModelFile>& model);
  void RunRecoveryLoop();  // thread
  void Recover(const DeploymentPtr& lost);
  // False: a model that serves had to be recovered first.
  bool ReloadOne(const std::string& id, const wire::LoadModelRequest& pending_reload);
  bool AnyRecovering();
  // Blocks until their memory is free, or their nodes have gone.
  void UnloadStaleStages(PlannedModel* planned);
  // REQUIRES: StartWork(); the stages are still on their nodes.
  absl::Status RecoverNow(const DeploymentPtr& lost, const OperationContext& caller);
  bool IsThere(const DeploymentPtr& deployment);
  // Takes it out of the table; false: it was not there. Remove() then unloads it in either case.
  bool TakeOut(const DeploymentPtr& deployment) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Remove(const DeploymentPtr& deployment, const absl::Status& why);
  // The same, but its loaded stages stay on their nodes, for the next plan to keep.
  bool Leave(const DeploymentPtr& deployment, const absl::Status& why);
  // Removes a failed model, since a person loads it again; where that load fails, it is retried by
  // itself as before. True: it would have been retried.
  bool GiveUp(const DeploymentPtr& failed);
  // A person has loaded it to stay, if it is pinned.
  void KeepPinned(const std::string& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // One that was taken out just now does not come back; UnloadCounted() follows.
  void StopKeeping(const std::string& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Queues a pinned model, which is loaded again as soon as possible, until somebody unloads it.
  // False: it is not pinned.
  bool RequeueReload(const std::string& id, const absl::Status& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gives up a pending reload for good. Returns its path; nothing: none matches, or several.
  std::optional<std::string> ForgetPendingReload(const std::string& model);

  void Tick();                                              // loop
  bool Look();                                              // loop; true: look again soon
  void LoseNodes(const ClusterView& view);                  // loop
  void FollowDesired() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);  // loop
  void LogReplacedDesired(const DesiredState& by);          // loop
  // Blocks until all disks have what was decided, for a moment at most. Not on the loop: called
  // before the requester of a change gets its result.
  void AwaitDesired();
  // Calls `call` for all models at once, each on its thread.
  static void ForEach(const std::vector<DeploymentPtr>& models,
                      absl::FunctionRef<void(Deployment*)> call);
  // Drops all models: deployments from now on belong to another leadership.
  void StepDown() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // This node does not coordinate, and has models nevertheless.
  bool HasModelsOfAnother() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // This node coordinates, and does not know the desired state yet.
  bool WaitsForDesired() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // The desired state is known, or can be learnt.
  bool MayReclaim() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // One that was taken out and counted in `unloads_`; blocks until its memory is free.
  void UnloadCounted(Deployment* deployment);
  void UnloadUnlisted(const std::vector<DeploymentPtr>& models);
  void RunLeadershipLoop();   // thread: what follows from a change of the role
  bool ReclaimStaleStages();  // true: all nodes answered, and no stage was stale
  bool stopping();
  absl::Status Stopping() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status WhyNotHere(const std::string& model) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Misses() const ABSL_SHARED_LOCKS_REQUIRED(mu_);  // OK: no other node

  EventLoop* const loop_;
  ClusterRuntime* const cluster_;
  WeightFetcher* const fetcher_;
  const Options options_;
  std::string self_address_;  // constant after Start()

  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool working_ ABSL_GUARDED_BY(mu_) = false;  // a plan is made and carried out: one at a time
  ModelTable models_ ABSL_GUARDED_BY(mu_);
  ModelRetention retention_ ABSL_GUARDED_BY(mu_);
  ReloadQueue reloads_ ABSL_GUARDED_BY(mu_);
  DesiredModels decisions_ ABSL_GUARDED_BY(mu_);
  bool knows_members_desired_ ABSL_GUARDED_BY(mu_) = false;  // as of the last look
  LeaderRole role_ ABSL_GUARDED_BY(mu_);                     // as of the last RefreshLeadership()
  RecoverySchedule recovery_ ABSL_GUARDED_BY(mu_);
  RebalanceSchedule rebalance_ ABSL_GUARDED_BY(mu_);
  SteadyTime replicate_at_ ABSL_GUARDED_BY(mu_) = SteadyTime::InfiniteFuture();
  StageReclaimer reclaimer_ ABSL_GUARDED_BY(mu_);
  uint32_t unloads_ ABSL_GUARDED_BY(mu_) = 0;  // in progress: memory that will be free
  // Of a leadership that has ended; RunLeadershipLoop() unloads them.
  std::vector<DeploymentPtr> lost_ ABSL_GUARDED_BY(mu_);
  // That a newer desired state has not; the same.
  std::vector<DeploymentPtr> unlisted_ ABSL_GUARDED_BY(mu_);
  std::optional<wire::Epoch> prepared_ ABSL_GUARDED_BY(mu_);  // of a plan that takes over soon
  NodeFlapTracker flap_tracker_ ABSL_GUARDED_BY(mu_);
  // By model id, at most kModelsMax; of each, kCapacityLimitsMax at most.
  std::map<std::string, std::vector<CapacityLimit>> excluded_devices_ ABSL_GUARDED_BY(mu_);
  LossDetector lost_members_;  // loop
  // Loop: what was followed last while this node coordinated; null: nothing yet.
  DesiredStatePtr followed_;
  std::unique_ptr<EventLoop::Handle> timer_;  // loop
  uint64_t tick_ms_ = 0;                      // loop
  uint64_t work_ = 0;  // loop: requests and models of the group, as last seen
  std::thread leadership_thread_, recovery_thread_;
};

}  // namespace strata
