// Predicts the step that follows the last one: where a stage is the whole model and all rows of a
// step were sampled, it is nearly always the same slots with the tokens just sampled. A stage on a
// GPU begins that step while the result travels to the coordinator and back. Used by one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "proto/frame.pb.h"
#include "shard/engine/stage.h"

namespace strata {

class Lookahead {
 public:
  // Call before a step runs. Returns whether the step is the predicted one.
  bool Observe(const wire::Step& step);
  // Call after the step: whether the stage had begun it, when it came, when it was computed.
  // Returns its compute time in microseconds; for a step that was done before it came, at most the
  // time of the last step with as many rows that was not.
  int64_t RecordStep(const wire::Step& step, bool was_begun, int64_t came_us, int64_t computed_us);

  // Call after RecordStep(). Predicts the next step; returns whether beginning it is worthwhile:
  // the last predictions were right, and no step was begun in vain lately.
  bool Guess(const wire::Step& step, const wire::Result& result);
  // Guess()'s prediction; valid until the next call.
  Stage::Batch batch() const;
  // The stage began the predicted step at `since_us`, or refused to.
  void OnBegun(int64_t since_us);
  void OnRefused() { rest_ = kRestMax; }

 private:
  // A wrong prediction costs a step; several in a row mean that requests come and go all the time.
  static constexpr uint32_t kRestMax = 64;

  bool known_ = false;  // there is a prediction
  std::vector<int32_t> tokens_, positions_, slots_;
  std::vector<uint32_t> output_rows_;
  bool has_begun_ = false;
  int64_t since_us_ = 0;
  int rows_ = 0;  // of the last step that was timed, and how long it took
  int64_t took_us_ = 0;
  uint32_t in_a_row_ = 0;   // right predictions
  uint32_t rest_ = 0;       // steps for which nothing is begun
  uint32_t next_rest_ = 1;  // after the next wrong prediction
};

}  // namespace strata
