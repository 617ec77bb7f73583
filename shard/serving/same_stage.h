// Whether a loaded stage may become another plan's. Pure; any thread.
#pragma once

#include "proto/node.pb.h"

namespace strata {

// Whether what was loaded as `a` says is what `b` asks for: all but its place in a plan, and where
// its weights come from.
bool IsSameStage(const wire::StageSpec& a, const wire::StageSpec& b);

}  // namespace strata
