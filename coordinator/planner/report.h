// A plan as text: a table of its stages, the predicted times, and a line for each device. Pure.
#pragma once

#include <string>

#include "coordinator/planner/problem/plan.h"
#include "shard/model/model_file.h"

namespace strata {

// Ends with a line's end. `costs` are those that the plan was made from.
std::string PlanReport(const ModelFile& model, const PlanRequest& request, const Plan& plan);
// One line of JSON.
std::string PlanJson(const ModelFile& model, const PlanRequest& request, const Plan& plan);

}  // namespace strata
