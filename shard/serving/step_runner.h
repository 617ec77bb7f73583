// What a step does to a stage: edits, rows through the layers, and at the last stage samples. Knows
// no links and no queues. Used by one thread, the stage's compute thread (stage_server.h).
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
  // `spec` and `clock` outlive it. `where` names the stage in what clients are told.
  StepRunner(const wire::StageSpec& spec, std::string where, Clock* clock,
             std::unique_ptr<Stage> stage);

  Stage* stage() const { return stage_.get(); }
  // The stage, with what its slots hold; the last call.
  std::unique_ptr<Stage> TakeStage();

  // How a step went. A sequence that cannot go on is no reason to fail it: the caches have it
  // already.
  struct Ran {
    absl::Status status;  // why the stage could not run it; the rest says how long it tried
    wire::Result result;  // last stage: tokens, and errors of slots
    int64_t compute_us = 0;
    int64_t sample_us = 0;  // last stage
  };
  // Precondition: ReadStep() (step_check.h) has let it pass. `start_us` is now.
  Ran Run(const wire::Step& step, const Payload& payload, int64_t start_us);

  // After a step that ran, not at the last stage: it as the next stage gets it, with this stage's
  // activations.
  Frame NextStep(const wire::ActivationRule& rule, wire::Step step);
  // After a step that ran, at a stage that is the whole model: whether the one that most likely
  // follows is worth beginning; and begins with it, where the device can. Whether it has begun.
  bool Guess(const wire::Step& step, const wire::Result& result);
  bool BeginLookahead();

 private:
  absl::Status RunEdits(const wire::Step& step, wire::Result* result);
  absl::Status RunBatch(const wire::Step& step, const Payload& payload);
  void SampleRows(const wire::Step& step, wire::Result* result);
  void AddSlotError(int32_t slot, const absl::Status& status, wire::Result* result) const;

  const wire::StageSpec& spec_;
  const std::string where_;
  Clock* const clock_;
  std::unique_ptr<Stage> stage_;
  std::optional<SlotSamplers>
      sequences_;               // last stage; goes before the stage, whose vocabulary it has
  Lookahead ahead_;             // of a stage that is the whole model
  std::vector<float> decoded_;  // [n_tokens, n_embd] of the step, where it did not come as f32
};

}  // namespace strata
