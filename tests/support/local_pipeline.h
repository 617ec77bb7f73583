// A whole pipeline in one process: real stages of a model file behind stage servers, linked in
// memory, that fail steps on command. For tests of code that feeds pipelines.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/generation/pipeline.h"
#include "shard/model/cache_options.h"

namespace strata::testing {

struct LocalPipelineOptions {
  std::string model_path;
  std::vector<uint32_t> cuts;  // where the stages behind the first begin
  uint32_t n_ctx = 128;
  uint32_t n_slots = 4;
  uint32_t n_batch = 64;
  CacheOptions cache = {};
  wire::ActivationRule activations = {};  // of every stage
  std::string kv_folder = {};             // where stages keep KV blocks; empty: nowhere
};

class LocalPipeline : public Pipeline {
 public:
  // `listener` outlives it. Blocks until all stages are loaded.
  static absl::StatusOr<std::unique_ptr<LocalPipeline>> Open(const LocalPipelineOptions& options,
                                                             Listener* listener);

  // How the `nth` batch from now on fails in `stage`, 0 being the next one.
  enum class Failure {
    kBefore,    // before anything of it is done
    kDataLoss,  // the slots of the batch are dropped
    kEdits,     // the `nth` edit from now on fails instead
  };
  virtual void FailBatch(uint32_t stage, uint32_t nth, Failure failure) = 0;
};

}  // namespace strata::testing
