// Where a stage stands in its plan.
#pragma once

#include "proto/node.pb.h"

namespace strata {

// Takes tokens; others take activations.
inline bool IsFirstStage(const wire::StageSpec& spec) { return spec.stage() == 0; }
// Samples; its link goes to the coordinator.
inline bool IsLastStage(const wire::StageSpec& spec) { return spec.stage() + 1 == spec.n_stages(); }

}  // namespace strata
