// Drives steps through a pipeline as a scheduler would, back to back, and measures the time of
// each: so many sequences, a prompt each, then one token for each in every step. Blocks.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/generation/pipeline.h"

namespace strata {

struct StepTimes {
  std::vector<double> step_s;                  // from one step's start to the next one's
  std::vector<std::vector<double>> compute_s;  // [steps][stages], in libllama and sampling
  std::vector<std::vector<double>> queue_s;    // [steps][stages], in the inbox
};

class StepTimer final : public Pipeline::Listener {
 public:
  struct Options {
    uint32_t n_seqs = 1;
    uint32_t prompt_tokens = 32;  // of each sequence
    uint32_t chunk_tokens = 64;   // rows of a prompt step
    uint32_t steps = 12;
    uint32_t warm_steps = 2;  // before them, not timed
    uint32_t n_vocab = 0;     // ids of tokens are drawn below it
  };
  // REQUIRES: the pipeline was built with this as its listener and is used by nobody else. Errors:
  // the status of a step that fails.
  absl::StatusOr<StepTimes> Run(Pipeline* pipeline, const Options& options);

 private:
  void OnResult(wire::Result result) override;
  void OnStepError(wire::StepError error) override;
  void OnWritable() override {}
  void OnBroken(absl::Status status) override;

  absl::StatusOr<wire::Result> Do(Pipeline* pipeline, const wire::Step& step);

  absl::Mutex mu_;
  std::deque<absl::StatusOr<wire::Result>> outcomes_ ABSL_GUARDED_BY(mu_);  // one step in flight
};

}  // namespace strata
