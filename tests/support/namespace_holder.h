// A network namespace to put programs into, held by an idle process inside.
// Linux. REQUIRES: called before other threads have been started.
#pragma once

#include <sys/types.h>

namespace strata {

// Forks a process that stays in a network namespace of its own until it is killed or this process
// ends. Closes its stdin. Returns its pid; 0: not allowed here.
pid_t HoldNetworkNamespace();

}  // namespace strata
