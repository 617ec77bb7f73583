// Operations of the control API on those who may use the cluster: nodes, and holders of tokens.
#pragma once

#include "node/control/control_operation.h"

namespace strata {

// REQUIRES: `context` outlives them.
ControlOperations AccessOperations(ControlContext* context);

}  // namespace strata
