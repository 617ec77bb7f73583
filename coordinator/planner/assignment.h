// Checks a manual placement, and words the errors about models that do not fit. Internal to the
// planner; pure; any thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/planner/problem/problem.h"

namespace strata {

// "the disk of attic has room for 1.5 GiB of weights"; of a node whose disk is short of room.
std::string DiskText(const PlanNode& node);

// The request's assignments as stages in layer order. Where a node without a device named has
// several, the fastest with room takes the layers. kInvalidArgument: an unknown or excluded place,
// layers outside the model, gaps, overlaps; kFailedPrecondition: a cut that is not allowed, or no
// link; kResourceExhausted: too little memory, with the figures.
absl::StatusOr<Pieces> AssignedPieces(const PlanProblem& problem);

// kResourceExhausted: the reason why no plan was found, with the bytes missing and where.
absl::Status DoesNotFit(const PlanProblem& problem);

}  // namespace strata
