// Reads a step from a peer's frame and checks everything that can be checked without running it: a
// step that passes has the shapes that the stage expects.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "proto/frame.pb.h"
#include "proto/node.pb.h"
#include "transport/link/frame.h"

namespace strata {

struct StepLimits {
  uint32_t n_embd = 0;  // values per row of the payload; 0: the first stage, which takes tokens
  uint32_t n_seq_max = 1;
  uint32_t n_batch = 1;
};

// kAborted: the epoch is not the stage's (an older coordinator's step). kInvalidArgument: anything
// else that does not fit, by name, with both figures.
absl::StatusOr<wire::Step> ReadStep(const Frame& frame, const wire::StageSpec& spec,
                                    StepLimits limits, uint64_t last_step_id);

// Whether a step that ReadStep() has accepted has rows, and all are drafts that proved wrong, so
// that the last stage computes nothing. `continues` says of a row whether it feeds the token that
// was sampled last (SlotSamplers::Continues).
bool IsVoidStep(const wire::Step& step, absl::FunctionRef<bool(uint32_t row)> continues);

}  // namespace strata
