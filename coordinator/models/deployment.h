// A model that the coordinator has placed: its stages on the nodes, the pipeline through them, and
// the requests that it serves. Owned by coordinator/models/coordinator.h.
//
// When a stage is lost, the requests wait, and another deployment takes them over:
//
//   SERVING ─▶ RECOVERING ─ DisownStages(), TransferRequests() ─▶ the next one: LOADING ─▶ SERVING
//                 └──── Fail() ─▶ FAILED: it may be recovered later
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/generation/generation_call.h"
#include "coordinator/generation/generation_engine.h"
#include "coordinator/generation/pipeline.h"
#include "coordinator/generation/remote_tokenizer.h"
#include "coordinator/models/chat_templates.h"
#include "coordinator/models/model_planner.h"
#include "coordinator/models/self_test_file.h"
#include "proto/coordinator.pb.h"
#include "transport/base/printable_text.h"
#include "transport/base/steady_time.h"

namespace strata {

// Requests that wait while a model is recovered, beside those that have begun.
inline constexpr size_t kRequestsKeptMax = 256;

class Deployment final : public std::enable_shared_from_this<Deployment>,
                         private Pipeline::Listener {
 public:
  struct Options {
    wire::Epoch epoch;
    wire::LoadModelRequest request;  // for its placement and cache types
    std::string self_node;           // id of the node that coordinates
    std::string listen_host;         // for the link from the last stage; any interface: "[::]"
    std::function<bool(const std::string& node_id)> gone;  // as of PipelineOptions; may be null
    // A stage was lost, and the requests wait for another deployment. On a link's thread: must not
    // block. Null: the requests end.
    std::function<void()> broken;
    std::shared_ptr<GenerationEngine> inherited;  // another deployment's engine(); null: none
    uint32_t recoveries_in_a_row = 0;             // that led to this
    // Another deployment served the model before: requests wait while it loads, and where a load
    // fails, the stages that are loaded stay for the next plan to keep.
    bool requests_wait = false;
    // The self-test results of stages; outlives the deployment. Null: they are not kept.
    SelfTestFile* self_tests = nullptr;
    std::vector<CapacityLimit> limits;             // that it was planned with
    std::vector<std::vector<CacheSource>> caches;  // [stages], as of StagePlacement
    // For simulations: the clock, how a pipeline is built, and the engine's options where none is
    // inherited.
    std::function<SteadyTime()> now = SteadyTime::Now;
    std::function<absl::StatusOr<std::unique_ptr<Pipeline>>(PipelineOptions, Pipeline::Listener*,
                                                            Pipeline::Progress)>
        build = Pipeline::Build;
    GenerationEngineOptions engine;
  };
  // `stage`, bytes; false cancels the load.
  using Progress = std::function<bool(uint32_t stage, const wire::LoadProgress& progress)>;

  // Status() shows this plan while the stages load. Takes over the clients of `planned`.
  Deployment(Options options, std::unique_ptr<PlannedModel> planned);
  ~Deployment() override;

  // Once. Blocks until every stage is loaded and linked, or all is undone: errors of
  // Pipeline::Build(), or why it was unloaded meanwhile or before. `take_over` as of
  // PipelineOptions: the inherited engine goes on elsewhere until it returns OK, and if it never
  // does.
  using TakeOver = std::function<absl::StatusOr<bool>()>;
  absl::Status Load(Progress progress, TakeOver take_over = nullptr);
  // Ends all requests with `why`, and a load in progress; then unloads the stages. Blocks until
  // their memory is free, or their nodes do not answer. Any number of times; the first reason
  // counts.
  void Unload(const absl::Status& why);
  // The same for a deployment that failed to load and keeps its place for the next plan: requests
  // end with "it is being unloaded", and not with the reason of the failure.
  void UnloadForNextPlan(const absl::Status& why);
  // The same, but the stages stay on their nodes for the next coordinator, and the requests go on
  // there: `why` is marked as AsLeaderChanged().
  void AnnounceLeaderChange(const absl::Status& why);

  // Another deployment takes over: requests wait for it, the links end, and the stages stay, as
  // with DisownStages(). If `quiesces`, steps in flight end first, unless they take too long; true:
  // they have. kUnavailable: it does not serve any more; kCancelled: `should_continue` returned
  // false before they had ended, and serving resumes here. Blocks.
  absl::StatusOr<bool> YieldStages(bool quiesces, absl::FunctionRef<bool()> should_continue);
  // The stages that have the caches of these layers, in order, for the next deployment to take them
  // over. Empty: the caches will not be there.
  std::vector<CacheSource> CachesOf(LayerRange layers) const;
  // As they were loaded; none before Load() and where that failed.
  std::vector<wire::StageInfo> stages() const {
    absl::MutexLock lock(mu_);
    return infos_;
  }
  // The cache contents that came with its stages, after Load(); kAsBefore: and no sequence was fed
  // again.
  Pipeline::Carried carried() const;

  // The node has gone, which idle links do not notice: a stage that it has is lost. Any number of
  // times; does not block.
  void LoseNode(const std::string& node_id);

  // True the first time.
  bool BeginRecovery();
  // Ends the links; the requests wait on, and the stages stay where they are, for the next plan to
  // keep or to unload; stages with experts in the host's memory are unloaded here. REQUIRES: it is
  // RECOVERING or FAILED. Blocks.
  void DisownStages();
  const std::shared_ptr<GenerationEngine>& engine() const { return engine_; }
  // Another deployment owns the engine and ends its requests from now on. Returns the requests that
  // wait beside them; later ones are refused. REQUIRES: no other call is in progress.
  struct Request {
    wire::GenerateRequest request;
    std::shared_ptr<GenerationCall> call;
  };
  std::vector<Request> TransferRequests();
  // From now on this deployment owns the inherited engine; until then Unload() leaves it alone.
  void TakeRequests(std::vector<Request> requests);
  // It cannot be recovered now: its requests end with `why`. REQUIRES: it is RECOVERING or FAILED.
  void Fail(const absl::Status& why);
  // RECOVERING, or FAILED since it could not be recovered.
  bool lost_a_stage() const;
  bool recovering() const;
  absl::Status why() const;
  absl::Status why_not_serving() const;  // OK while it serves, loads, moves, or is being unloaded
  uint32_t recoveries_in_a_row() const { return options_.recoveries_in_a_row; }
  const std::vector<CapacityLimit>& limits() const { return options_.limits; }
  // How long it served until then, and how long ago that was.
  absl::Duration served_for() const;
  absl::Duration lost_for() const;

  // Does not block. Errors come as OnEnd() of the call's sink: kInvalidArgument, the request;
  // kResourceExhausted, too many wait; kUnavailable, the model is not served now; else the status
  // that the pipeline broke with.
  void Generate(const wire::GenerateRequest& request, std::shared_ptr<GenerationCall> call);

  // From now on, or no longer, requests are refused because the model moves.
  void SetMoving(bool moving);
  // Requests that run or wait, also for their tokens.
  uint32_t active_requests() const;

  const std::string& model_id() const { return planned_->model->id(); }
  const PrintableText& name() const { return name_; }
  const wire::LoadModelRequest& request() const { return options_.request; }
  // The request with which the next coordinator loads it again.
  wire::LoadModelRequest Origin() const;
  const PlannedModel& planned() const { return *planned_; }
  PlannedModel* mutable_planned() { return planned_.get(); }
  const wire::Epoch& epoch() const { return options_.epoch; }
  bool UsesNode(const std::string& node_id) const;
  SchedulerStats Stats() const { return engine_->Stats(); }
  // The context behind a row of a step, on average since the model was loaded; 0: there was none.
  uint32_t MeanPositions() const;
  // Requests whose prompts are not tokens yet.
  size_t tokenizing() const { return tokenizer_->size(); }
  // Where its stages are, in their order; empty sizes: they are not loaded yet.
  std::vector<wire::ModelStage> Stages() const;
  // Whether it may still serve; false once the pipeline broke or is unloaded.
  bool serving() const;
  bool answers() const;  // requests are accepted, or wait for its recovery, or get its failure
  // Blocks for a few seconds when the pipeline just broke, to learn why.
  wire::ModelStatus Status();

 private:
  void OnResult(wire::Result result) override { engine_->OnResult(std::move(result)); }
  void OnStepError(wire::StepError error) override { engine_->OnStepError(std::move(error)); }
  void OnWritable() override { engine_->OnWritable(); }
  void OnBroken(absl::Status status) override;
  void Diagnose();
  void End(const absl::Status& why, bool leave_stages);
  absl::Status Build(Progress progress, TakeOver take_over);
  // Results of this model that this node and the others keep. Blocks for as long as a node may take
  // to answer.
  std::vector<wire::SelfTest> EarlierSelfTests() const;
  bool StagesMayStay() const;
  void UnloadDisowned();
  std::vector<Request> TakeWaiting();
  bool unloading() const;
  // Keeps the request until the model is recovered; false: it is not being recovered. Then Watch()
  // it.
  bool Track(const wire::GenerateRequest& request, const std::shared_ptr<GenerationCall>& call)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A request that waits ends when its client cancels it.
  void Watch(const std::shared_ptr<GenerationCall>& call);
  absl::AnyInvocable<void() &&> Drop(const std::shared_ptr<GenerationCall>& call);
  void WatchWaiting();
  absl::Status CannotServe(const absl::Status& why) const;          // its requests end with it
  absl::Status NotServing() const ABSL_SHARED_LOCKS_REQUIRED(mu_);  // OK: it does
  // The caller keeps `call` until this returns: its callbacks may release all other references.
  void Add(GenerationRequest generation, const std::shared_ptr<GenerationCall>& call);

  const Options options_;
  const std::unique_ptr<PlannedModel> planned_;  // holds the clients of all nodes
  const PrintableText name_;
  const ChatTemplates chat_templates_;
  const std::string bos_text_, eos_text_;
  const std::optional<wire::FillInMiddle> fill_in_middle_;
  const std::shared_ptr<GenerationEngine> engine_;  // shared with its calls and the next deployment

  absl::Mutex load_mu_;                 // Load(), Unload…() and Diagnose(): one at a time
  std::unique_ptr<Pipeline> pipeline_;  // under load_mu_
  bool stages_disowned_ = false;        // under load_mu_: loaded, and no pipeline owns them
  std::shared_ptr<RemoteTokenizer>
      tokenizer_;  // of stage 0's node; constant; shared with its calls

  mutable absl::Mutex mu_;
  wire::ModelStatus::State state_ ABSL_GUARDED_BY(mu_) = wire::ModelStatus::LOADING;
  absl::Status why_ ABSL_GUARDED_BY(mu_);  // FAILED, RECOVERING
  bool lost_a_stage_ ABSL_GUARDED_BY(mu_) = false;
  bool recovery_begun_ ABSL_GUARDED_BY(mu_) = false;
  absl::Duration served_for_ ABSL_GUARDED_BY(mu_);
  bool has_requests_ ABSL_GUARDED_BY(mu_);  // it owns the engine
  bool transferred_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<Request> requests_ ABSL_GUARDED_BY(mu_);  // at most kRequestsKeptMax
  absl::Status unloaded_why_ ABSL_GUARDED_BY(mu_);      // OK: Unload() has not been called
  enum class Diagnosis { kDone, kPending, kInProgress };
  Diagnosis diagnosis_ ABSL_GUARDED_BY(mu_) = Diagnosis::kDone;
  SteadyTime since_ ABSL_GUARDED_BY(mu_);
  std::vector<wire::StageInfo> infos_ ABSL_GUARDED_BY(mu_);
  Pipeline::Carried carried_ ABSL_GUARDED_BY(mu_);
};

// The memory that the deployment's stages have, which an unload would free; none where it has no
// stages.
std::vector<PlanningOptions::FreedMemory> MemoryOf(const Deployment& model);

}  // namespace strata
