// The context of a model for which nobody asked for a length. Pure.
#pragma once

#include <cstdint>

#include "coordinator/planner/problem/plan.h"

namespace strata {

// Lengthens the context of `request` and of its `plan`, as far as that costs nothing but memory:
// the steps of the new plan are about as fast, its caches grow by at most half of what the plan
// leaves free on its devices, for the rest is for recovery and other models, and the context is at
// most `n_ctx_max`. Times stay predicted for the shorter context. Leaves both as they are where the
// context cannot be longer.
void LengthenContext(uint32_t n_ctx_max, PlanRequest* request, Plan* plan);

}  // namespace strata
