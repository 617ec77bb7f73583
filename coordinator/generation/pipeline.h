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
#include "absl/types/span.h"
#include "coordinator/generation/node_client.h"
#include "coordinator/scheduler/scheduler_types.h"
#include "proto/frame.pb.h"
#include "shard/model/architecture.h"
#include "transport/base/printable_text.h"

namespace strata {

// Result frames that may wait in the coordinator; the credits it grants to the last stage.
inline constexpr uint32_t kResultsMax = 64;
inline constexpr uint32_t kResultsRelease = kResultsMax / 2;  // credits returned together

inline constexpr int kWeightPeersMax = 7;

// The nodes that a stage's weights come from, as PipelineOptions and StagePlacement have them.
struct WeightSources {
  const NodeClient* source = nullptr;
  bool from_caches = false;
  const wire::RemoteModel& remote;
  absl::Span<NodeClient* const> peers;
};
// Fills them in for a stage on the node with the id `self`.
void AddWeightSources(const WeightSources& sources, const std::string& self, wire::StageSpec* spec);

// A stage of an earlier plan whose caches another stage takes over.
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
  // How it encodes activations for the next stage; not read for the last stage.
  wire::ActivationRule sends = {};
  // The stage of an earlier plan that becomes this one, where present; nullopt: this one is loaded.
  std::optional<wire::KeptStage> kept = {};
  // Caches move with the stages: a kept stage keeps its own, and every other one takes over the
  // caches of these stages, which together have its layers, in order. Empty for all stages: all
  // begin with empty caches.
  std::vector<CacheSource> caches = {};
  // Nodes that may have blocks of its weights, the likeliest first; outlive the pipeline. The
  // stage's node queries kWeightPeersMax of them at most, and the source; itself only with
  // `from_caches`.
  std::vector<NodeClient*> weight_peers = {};
};

struct PipelineOptions {
  std::string
      model_path;  // on `source`; other nodes use a file at the same path if it is the model
  PrintableText model_name;  // for people; empty: that of the file
  std::string model_id;
  wire::Epoch epoch;
  std::vector<StagePlacement> stages;  // in order; at least one
  // The node that the others get their weights from; null: all have the file, or `from_caches`.
  NodeClient* source = nullptr;
  bool from_caches = false;  // no node has the file: all weights come from the stages' weight_peers
  wire::RemoteModel remote;  // and from here what none of them has; no parts: from nowhere
  uint32_t n_ctx = 512;      // positions per sequence
  uint32_t n_seq_max = 1;
  uint32_t n_batch = 512;
  uint32_t n_threads = 0;  // per stage; 0: the node's default
  // Called once all other stages are loaded, before the kept ones are taken from the plan that has
  // them: that plan is to release them. True: no step was in flight, so that the caches can be
  // used. Not OK ends the load. Null: no plan has them.
  std::function<absl::StatusOr<bool>()> take_over;
  // Earlier self-test results for stages of the model, from all nodes that answer; a stage that
  // computes otherwise is unloaded and refused (coordinator/generation/self_tests.h). Called beside
  // the loads; may block. Null: none are known.
  std::function<std::vector<wire::SelfTest>()> self_tests;
  bool leave_on_error = false;  // an error of Build() unloads nothing: the next plan keeps it
  wire::CacheSpec cache;
  std::string origin;  // as of StageSpec
  bool unverified = false;
  bool use_mmap = true;
  bool allow_mixed_versions = false;
  std::string listen_host = "127.0.0.1";  // where the last stage reaches the coordinator
  std::string coordinator_node;           // id of the node that it runs on, and then listen_host
                                          // is all interfaces, "[::]"; empty: none
  // Whether the node is known to be gone: unloading its stages does not wait for it. Called often,
  // on threads of the pipeline's; may be null.
  std::function<bool(const std::string& node_id)> gone;
};

// The failure of `stage` of the plan of `epoch` as its node reports it; OK: none.
absl::Status FailureOf(const wire::GetInfoResponse& info, const wire::Epoch& epoch, size_t stage);

class Pipeline {
 public:
  // Called on the links' threads, possibly several at once; must not block.
  class Listener {
   public:
    virtual ~Listener() = default;
    // Results come in the order of their steps; they count as consumed when this returns.
    virtual void OnResult(wire::Result result) = 0;
    // The step failed in a stage; the links stay up.
    virtual void OnStepError(wire::StepError error) = 0;
    // Submit() has room again.
    virtual void OnWritable() = 0;
    // Once: a link broke, and no step will come back. Diagnose() may find the reason.
    virtual void OnBroken(absl::Status status) = 0;
  };

  // Called on the loading threads, one at a time. False cancels the load.
  using Progress = absl::AnyInvocable<bool(size_t stage, const wire::LoadProgress&)>;

  // Loads all stages at once, each on its node, then links them. Blocks. On an error all stages are
  // unloaded again, unless leave_on_error is set, and the status says which stage on which node.
  // kDataLoss with HasWrongNumbers(): that stage failed its self-test.
  static absl::StatusOr<std::unique_ptr<Pipeline>> Build(PipelineOptions options,
                                                         Listener* listener, Progress progress);
  // Closes the links and unloads the stages. Blocks.
  virtual ~Pipeline() = default;
  // The destructor will not unload the stages: the next leader learns from them which models were
  // served.
  virtual void DisownStages() {}

  // Fills in model, epoch and step id, and sends the step. Any thread, never blocks.
  // kResourceExhausted: the first stage has no room, wait for OnWritable(); kInvalidArgument: the
  // step is too large for any stage, and has used up its id. Returns the step's id.
  virtual absl::StatusOr<uint64_t> Submit(wire::Step step) = 0;

  // Queries the nodes why the pipeline broke: the status of a stage that failed, with its worker's
  // last output; else `broken`. Blocks for a few seconds at most.
  virtual absl::Status Diagnose(const absl::Status& broken) = 0;

  virtual const std::vector<wire::StageInfo>& stages() const = 0;

  struct Carried {
    SlotContents contents = SlotContents::kNothing;
    uint64_t bytes_before = 0;  // of caches that moved before take_over()
    uint64_t bytes_after = 0;
  };
  virtual Carried carried() const { return {}; }

  // Bytes of the frames that came back from the last stage. Any thread.
  virtual uint64_t bytes_returned() const { return 0; }
};

}  // namespace strata
