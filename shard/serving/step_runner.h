// Runs a step on a stage: edits, rows through the layers, and samples at the last stage. Knows no
// links and no queues. Used by one thread, the stage's compute thread (stage_server.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/frame.pb.h"
#include "proto/node.pb.h"
#include "shard/engine/stage.h"
#include "shard/sampling/slot_samplers.h"
#include "shard/serving/lookahead.h"
#include "transport/base/clock.h"
#include "transport/link/frame.h"
#include "transport/link/payload.h"

namespace strata {

class StepRunner {
 public:
  // `spec` and `clock` outlive it. `where` names the stage in error messages to clients.
  StepRunner(const wire::StageSpec& spec, std::string where, Clock* clock,
             std::unique_ptr<Stage> stage);

  Stage* stage() const { return stage_.get(); }
  // Returns the stage with the contents of its slots; must be the last call.
  std::unique_ptr<Stage> TakeStage();

  // The outcome of a step. A sequence that cannot continue does not fail the step: the caches have
  // the step already.
  struct Outcome {
    absl::Status status;  // not OK: the stage could not run it; the times are still valid
    wire::Result result;  // last stage: tokens, and errors of slots
    int64_t compute_us = 0;
    int64_t sample_us = 0;  // last stage
  };
  // REQUIRES: ReadStep() (step_check.h) has accepted `step`. `start_us` is now.
  Outcome Run(const wire::Step& step, const Payload& payload, int64_t start_us);

  // The step as the next stage gets it, with this stage's activations. REQUIRES: the step ran; not
  // the last stage.
  Frame NextStep(const wire::ActivationRule& rule, wire::Step step);
  // Predicts the next step; returns whether beginning it is worthwhile. REQUIRES: the step ran.
  // False unless the stage is the whole model.
  bool Guess(const wire::Step& step, const wire::Result& result);
  // Begins the predicted step where the device can; returns whether it has begun.
  bool BeginLookahead();

 private:
  absl::Status RunEdits(const wire::Step& step, wire::Result* result);
  // Errors of what observes its rows are added to the result.
  absl::Status RunBatch(const wire::Step& step, const Payload& payload, wire::Result* result);
  // Sets sampled_rows_, scored_rows_ and embedded_rows_.
  void DivideRows(const wire::Step& step);
  void SampleRows(const wire::Step& step, wire::Result* result);
  // Appends the names of the blocks that the stage has lost.
  void AddLostBlocks(std::string* names);
  void AddSlotError(int32_t slot, const absl::Status& status, wire::Result* result) const;

  const wire::StageSpec& spec_;
  const std::string where_;
  Clock* const clock_;
  std::unique_ptr<Stage> stage_;
  // Last stage. Destroyed before the stage, whose vocabulary they use.
  std::optional<SlotSamplers> samplers_;
  Lookahead lookahead_;         // of a stage that is the whole model
  std::vector<float> decoded_;  // [n_tokens, n_embd] of the step, unless it came as f32
  // Of the step, on the last stage: the rows of sample_rows that are sampled, and those that the
  // samplers observe.
  std::vector<uint32_t> sampled_rows_, scored_rows_, embedded_rows_;
};

}  // namespace strata
