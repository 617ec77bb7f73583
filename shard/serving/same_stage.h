// Whether a loaded stage can be reused by another plan. Pure; any thread.
#pragma once

#include "proto/node.pb.h"

namespace strata {

// Whether a stage that was loaded by spec `a` satisfies `b`. Ignores its place in a plan and where
// its weights come from.
bool IsSameStage(const wire::StageSpec& a, const wire::StageSpec& b);

}  // namespace strata
