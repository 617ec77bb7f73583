// A model that the coordinator has placed: its stages on the nodes, the pipeline through them, and
// the texts that it writes. Owned by coordinator/models/coordinator.h.
//
// When a stage is lost, the texts wait, and another deployment takes them over:
//
//   SERVING ─▶ RECOVERING ─ DisownStages(), TransferRequests() ─▶ the next one: LOADING ─▶ SERVING
//                 └──── Fail() ─▶ FAILED: it may be recovered later
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
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
#include "coordinator/models/model_planner.h"
#include "coordinator/models/self_test_file.h"
#include "proto/coordinator.pb.h"
#include "transport/base/printable_text.h"
#include "transport/base/steady_time.h"

namespace strata {

// Requests that wait while a model is recovered, beside the texts that have begun.
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
    // A stage was lost, and the texts wait for another deployment. On a link's thread: must not
    // block. Null: they end.
    std::function<void()> broken;
    std::shared_ptr<GenerationEngine> inherited;  // another deployment's engine(); null: none
    uint32_t recoveries_in_a_row = 0;             // that led to this
    // For it, since others had served it: requests wait while it loads, and what is loaded when a
    // load fails stays, for the next plan to keep.
    bool requests_wait = false;
    // What stages computed of the self-test; outlives the deployment. Null: is not kept.
    SelfTestFile* self_tests = nullptr;
    std::vector<CapacityLimit> caps;               // that it was planned with
    std::vector<std::vector<CacheSource>> caches;  // [stages], as of StagePlacement
    // For simulations: the time, how a pipeline is built, and what requests are served with where
    // nothing is inherited.
    std::function<SteadyTime()> now = SteadyTime::Now;
    std::function<absl::StatusOr<std::unique_ptr<Pipeline>>(PipelineOptions, Pipeline::Listener*,
                                                            Pipeline::Progress)>
        build = Pipeline::Build;
    GenerationEngineOptions texts;
  };
  // `stage`, bytes; false cancels the load.
  using Progress = std::function<bool(uint32_t stage, const wire::LoadProgress& progress)>;

  // What status() says while the stages load. `planned` gives up its clients.
  Deployment(Options options, std::unique_ptr<PlannedModel> planned);
  ~Deployment() override;

  // Once. Blocks until every stage is loaded and linked, or all is undone: errors of
  // Pipeline::Build(), or why it was unloaded meanwhile or before. `take_over` as of
  // PipelineOptions: the inherited engine goes on elsewhere until it returns OK, and if it never
  // does.
  using TakeOver = std::function<absl::StatusOr<bool>()>;
  absl::Status Load(Progress progress, TakeOver take_over = nullptr);
  // Ends all texts with `why`, and a load; then unloads the stages. Blocks until their memory is
  // free, or their nodes do not answer. Any number of times; the first reason counts.
  void Unload(const absl::Status& why);
  // The same for one that failed to load, while it keeps the place of what is planned next: texts
  // are told that it is not there, and not why it failed.
  void UnloadForNextPlan(const absl::Status& why);
  // The same, but the stages stay on their nodes, for whoever coordinates next to find, and texts
  // go on there: `why` is marked as AsLeaderChanged().
  void AnnounceLeaderChange(const absl::Status& why);

  // Another deployment takes over: requests wait for it, the links end, and the stages stay, as
  // with DisownStages(). Where it is to come to rest, steps under way end first, unless they take
  // too long; true: they have. kUnavailable: it does not serve any more; kCancelled: `wanted` said
  // no before they had ended, and all goes on here. Blocks.
  absl::StatusOr<bool> YieldStages(bool quiesces, absl::FunctionRef<bool()> wanted);
  // For the next deployment's stages of these layers to take over caches: the stages that have
  // them, in order; none: they will not be there.
  std::vector<CacheSource> CachesOf(LayerRange layers) const;
  // As they were loaded; none before Load() and where that failed.
  std::vector<wire::StageInfo> stages() const {
    absl::MutexLock lock(mu_);
    return infos_;
  }
  // What came with its stages, after Load(); kAsBefore: and no text was fed again.
  Pipeline::Carried carried() const;

  // That node has gone, which links that nobody sends over do not notice: where it has a stage, the
  // stage is lost. Any number of times; does not block.
  void LoseNode(const std::string& node_id);

  // True the first time.
  bool BeginRecovery();
  // Once it is RECOVERING or FAILED: ends the links; the texts wait on, and the stages stay where
  // they are, for the next plan to keep or to unload; with experts in the host's memory they are
  // unloaded here. Blocks.
  void DisownStages();
  const std::shared_ptr<GenerationEngine>& engine() const { return texts_; }
  // The texts are another's now, which ends them. Returns the requests that wait beside them; later
  // ones are refused. Not while another call is under way.
  struct Request {
    wire::GenerateRequest request;
    std::shared_ptr<GenerationCall> call;
  };
  std::vector<Request> TransferRequests();
  // With them the inherited engine is this one's; until then Unload() leaves it alone.
  void TakeRequests(std::vector<Request> requests);
  // It cannot be recovered now: its texts end with `why`. Once it is RECOVERING or FAILED.
  void Fail(const absl::Status& why);
  // RECOVERING, or FAILED since it could not be recovered.
  bool lost_a_stage() const;
  bool recovering() const;
  absl::Status why() const;
  absl::Status why_not_serving() const;  // OK while it serves, loads, moves, or is being unloaded
  uint32_t recoveries_in_a_row() const { return options_.recoveries_in_a_row; }
  const std::vector<CapacityLimit>& caps() const { return options_.caps; }
  // How long it served until then, and how long ago that was.
  absl::Duration served_for() const;
  absl::Duration lost_for() const;

  // Does not block. What is wrong comes as OnEnd() of the call's sink: kInvalidArgument, the
  // request; kResourceExhausted, too many wait; kUnavailable, the model is not served now; else
  // what the pipeline broke with.
  void Generate(const wire::GenerateRequest& request, std::shared_ptr<GenerationCall> call);

  // From now on, or no longer, texts are refused because the model moves.
  void SetMoving(bool moving);
  // Texts that run or wait, for their tokens, too.
  uint32_t texts() const;

  const std::string& model_id() const { return planned_->model->id(); }
  const PrintableText& name() const { return name_; }
  const wire::LoadModelRequest& request() const { return options_.request; }
  // What whoever coordinates next needs to load it again.
  wire::LoadModelRequest Origin() const;
  const PlannedModel& planned() const { return *planned_; }
  PlannedModel* mutable_planned() { return planned_.get(); }
  const wire::Epoch& epoch() const { return options_.epoch; }
  bool UsesNode(const std::string& node_id) const;
  SchedulerStats Stats() const { return texts_->Stats(); }
  // Texts whose prompts are not tokens yet.
  size_t tokenizing() const { return tokenizer_->size(); }
  // Where its stages are, in their order; empty sizes: they are not loaded yet.
  std::vector<wire::ModelStage> Stages() const;
  // Whether it may still serve; false once the pipeline broke or is unloaded.
  bool serving() const;
  bool answers() const;  // texts are taken, or kept until it is recovered, or told why it failed
  // Blocks for a few seconds when the pipeline just broke, to learn why.
  wire::ModelStatus Status();

 private:
  void OnResult(wire::Result result) override { texts_->OnResult(std::move(result)); }
  void OnStepError(wire::StepError error) override { texts_->OnStepError(std::move(error)); }
  void OnWritable() override { texts_->OnWritable(); }
  void OnBroken(absl::Status status) override;
  void Diagnose();
  void End(const absl::Status& why, bool leave_stages);
  absl::Status Build(Progress progress, TakeOver take_over);
  // Of this model: what this node and the others keep. Blocks for as long as one may take to
  // answer.
  std::vector<wire::SelfTest> EarlierSelfTests() const;
  bool StagesMayStay() const;
  void UnloadLeft();
  std::vector<Request> TakeKept();
  bool unloading() const;
  // Keeps it until the model is recovered; false: it is not being recovered. Then Watch() it.
  bool Track(const wire::GenerateRequest& request, const std::shared_ptr<GenerationCall>& call)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What is kept ends when nobody wants it any more.
  void Watch(const std::shared_ptr<GenerationCall>& call);
  absl::AnyInvocable<void() &&> Drop(const std::shared_ptr<GenerationCall>& call);
  void WatchKept();
  absl::Status CannotServe(const absl::Status& why) const;          // what its texts end with
  absl::Status NotServing() const ABSL_SHARED_LOCKS_REQUIRED(mu_);  // OK: it does
  // The caller keeps `call` until it returns: what it tells may let go of all others.
  void Add(GenerationRequest text, const std::shared_ptr<GenerationCall>& call);

  const Options options_;
  const std::unique_ptr<PlannedModel> planned_;  // holds the clients of all nodes
  const PrintableText name_;
  const std::string chat_template_, bos_text_, eos_text_;
  const std::shared_ptr<GenerationEngine> texts_;  // shared with its calls and the next deployment

  std::mutex load_mu_;                  // Load(), Unload…() and Diagnose(): one at a time
  std::unique_ptr<Pipeline> pipeline_;  // under load_mu_
  bool stages_disowned_ = false;        // under load_mu_: loaded, and no pipeline's
  std::shared_ptr<RemoteTokenizer>
      tokenizer_;  // of stage 0's node; constant; shared with its calls

  mutable absl::Mutex mu_;
  wire::ModelStatus::State state_ ABSL_GUARDED_BY(mu_) = wire::ModelStatus::LOADING;
  absl::Status why_ ABSL_GUARDED_BY(mu_);  // FAILED, RECOVERING
  bool lost_a_stage_ ABSL_GUARDED_BY(mu_) = false;
  bool recovery_begun_ ABSL_GUARDED_BY(mu_) = false;
  absl::Duration served_for_ ABSL_GUARDED_BY(mu_);
  bool has_requests_ ABSL_GUARDED_BY(mu_);  // ends them
  bool bequeathed_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<Request> requests_ ABSL_GUARDED_BY(mu_);  // at most kRequestsKeptMax
  absl::Status unloaded_why_ ABSL_GUARDED_BY(mu_);      // OK: Unload() has not been called
  enum class Diagnosis { kDone, kWanted, kUnderWay };
  Diagnosis diagnosis_ ABSL_GUARDED_BY(mu_) = Diagnosis::kDone;
  SteadyTime since_ ABSL_GUARDED_BY(mu_);
  std::vector<wire::StageInfo> infos_ ABSL_GUARDED_BY(mu_);
  Pipeline::Carried carried_ ABSL_GUARDED_BY(mu_);
};

}  // namespace strata
