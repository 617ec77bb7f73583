// The stages of one plan, loaded and linked, as the coordinator sees them: steps go in at the first
// stage, results come back from the last. Several steps may be in flight.
//
//   coordinator ──▶ stage 0 ──▶ stage 1 ──▶ … ──▶ stage n-1 ──▶ coordinator
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "coordinator/generation/node_client.h"
#include "coordinator/scheduler/scheduler_types.h"
#include "proto/frame.pb.h"
#include "shard/model/architecture.h"
#include "transport/base/printable_text.h"

namespace strata {

// Result frames that may wait in the coordinator; the credits it grants to the last stage.
inline constexpr uint32_t kResultsMax = 64;
inline constexpr uint32_t kResultsRelease = kResultsMax / 2;  // told free together

inline constexpr int kWeightPeersMax = 7;

// What a stage of an earlier plan has of its sequences' caches.
struct CacheSource {
  wire::KeptStage stage;
  std::string address;  // of its links
  std::string node_id;
  LayerRange layers;
};

// One stage of a pipeline.
struct StagePlacement {
  LayerRange layers;
  NodeClient* node = nullptr;  // holds them; outlives the pipeline
  std::string device = {};     // as ggml names it; empty: the node's CPU
  uint32_t n_cpu_moe = 0;      // as of StageSpec
  // By which it sends to the next stage; the last one's is not read.
  wire::ActivationRule sends = {};
  // The stage of an earlier plan that becomes this one, where it is there; nothing: it is loaded.
  std::optional<wire::KeptStage> kept = {};
  // Caches move with the stages: one of `kept` keeps its own, and every other one takes over what
  // these stages have, which together have its layers, in order. Empty for all stages: all begin
  // with nothing.
  std::vector<CacheSource> caches = {};
  // Nodes that may have blocks of its weights, the likeliest first; outlive the pipeline. The
  // stage's node asks kWeightPeersMax of them at most, and the source; itself only where
  // `from_caches`.
  std::vector<NodeClient*> weight_peers = {};
};

struct PipelineOptions {
  std::string
      model_path;  // on `source`; other nodes use a file of the same path if it is the model
  PrintableText model_name;  // for people; empty: that of the file
  std::string model_id;
  wire::Epoch epoch;
  std::vector<StagePlacement> stages;  // in order; at least one
  // The other nodes get their weights from it; null: all have the file, or `from_caches`.
  NodeClient* source = nullptr;
  bool from_caches = false;  // no node has the file: all weights come from the stages' weight_peers
  uint32_t n_ctx = 512;      // positions per sequence
  uint32_t n_seq_max = 1;
  uint32_t n_batch = 512;
  uint32_t n_threads = 0;  // per stage; 0: the node's default
  // Called once all other stages are loaded, before those that are kept are taken from the plan
  // that has them: it is to let go of them. True: with no step under way, so that caches are worth
  // having. Not OK ends the load. Null: they are nobody's.
  std::function<absl::StatusOr<bool>()> take_over;
  // What stages of the model computed earlier, of all nodes that can be asked; a stage that
  // computes otherwise is unloaded and refused (coordinator/generation/self_tests.h). Called beside
  // the loads; may block. Null: nothing is known.
  std::function<std::vector<wire::SelfTest>()> self_tests;
  bool leave_on_error = false;  // Build() unloads nothing: the next plan keeps what is loaded
  wire::CacheSpec cache;
  std::string origin;  // as of StageSpec
  bool unverified = false;
  bool use_mmap = true;
  bool allow_mixed_versions = false;
  std::string listen_host = "127.0.0.1";  // where the last stage reaches the coordinator
  std::string coordinator_node;           // id of the node that it runs on, and then listen_host
                                          // is all interfaces, "[::]"; empty: none
  // Whether the node of that id is known to be gone: it is not waited for while stages are
  // unloaded. Asked often, on threads of the pipeline's; may be null.
  std::function<bool(const std::string& node_id)> gone;
};

// Why `stage` of the plan of `epoch` fails as its node tells; OK where it does not.
absl::Status FailureOf(const wire::GetInfoResponse& info, const wire::Epoch& epoch, size_t stage);

class Pipeline {
 public:
  // Called on links' threads, possibly several at once; must not block.
  class Listener {
   public:
    virtual ~Listener() = default;
    // Results come in the order of their steps; Pipeline takes them as consumed when this returns.
    virtual void OnResult(wire::Result result) = 0;
    // The step failed in a stage; the links go on.
    virtual void OnStepError(wire::StepError error) = 0;
    // Submit() has room again.
    virtual void OnWritable() = 0;
    // Once: a link broke, no step will come back any more. Diagnose() may know more.
    virtual void OnBroken(absl::Status status) = 0;
  };

  // Called on the loading threads, one at a time. False cancels the load.
  using Progress = absl::AnyInvocable<bool(size_t stage, const wire::LoadProgress&)>;

  // Loads all stages at once, each on its node, then links them. Blocks. On an error everything
  // loaded is unloaded again, unless it is to be left, and the status says which stage on which
  // node. kDataLoss with HasWrongNumbers(): that stage failed its self-test.
  static absl::StatusOr<std::unique_ptr<Pipeline>> Build(PipelineOptions options,
                                                         Listener* listener, Progress progress);
  // Closes the links and unloads the stages. Blocks.
  virtual ~Pipeline() = default;
  // The destructor leaves the stages where they are: whoever coordinates next learns from them what
  // was served.
  virtual void DisownStages() {}

  // Fills in model, epoch and step id, and sends the step. Any thread, never blocks.
  // kResourceExhausted: the first stage has no room, wait for OnWritable(); kInvalidArgument: no
  // stage takes such a step, which has had its id. Returns the step's id.
  virtual absl::StatusOr<uint64_t> Submit(wire::Step step) = 0;

  // Asks the nodes why the pipeline broke: the status of a stage that failed, with its worker's
  // last words; else `broken`. Blocks for a few seconds at most.
  virtual absl::Status Diagnose(const absl::Status& broken) = 0;

  virtual const std::vector<wire::StageInfo>& stages() const = 0;

  struct Carried {
    SlotContents contents = SlotContents::kNothing;
    uint64_t bytes_before = 0;  // of caches that moved before take_over()
    uint64_t bytes_after = 0;
  };
  virtual Carried carried() const { return {}; }

  // Of frames that came back from the last stage. Any thread.
  virtual uint64_t bytes_returned() const { return 0; }
};

}  // namespace strata
