// Splitting layers by free memory, which is what exo and llama.cpp do: what the planner is compared
// with. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/planner/plan.h"

namespace strata {

// Layers of each device of the request, in its order: in proportion to free memory. Where the
// vocabulary or buffers make a share too large, a layer goes on to whoever has the most room left.
std::vector<uint32_t> LayersByMemory(const PlanRequest& request);

// The same by hand. Ranges follow each other in the order of the devices; those with none are left
// out. Cuts that the architecture does not allow are not looked at.
std::vector<Assignment> AssignLayers(const PlanRequest& request,
                                     const std::vector<uint32_t>& layers);

}  // namespace strata
