// Operations of the control API on models that are not loaded: those whose files the nodes have.
#pragma once

#include "node/control/control_operation.h"

namespace strata {

// REQUIRES: `context` outlives them.
ControlOperations FileOperations(ControlContext* context);

}  // namespace strata
