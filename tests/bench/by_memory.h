// Splits layers by free memory, as exo and llama.cpp do, to compare the planner with. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/planner/problem/plan.h"

namespace strata {

// Layers of each device of the request, in its order: in proportion to free memory. Where the
// vocabulary or buffers make a slice too large, a layer goes to the device with the most room left.
std::vector<uint32_t> LayersByMemory(const PlanRequest& request);

// A plan by hand. Ranges follow each other in the order of the devices; those with none are left
// out. Does not check that the architecture allows the cuts.
std::vector<Assignment> AssignLayers(const PlanRequest& request,
                                     const std::vector<uint32_t>& layers);

}  // namespace strata
