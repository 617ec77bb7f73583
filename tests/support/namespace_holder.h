// A network namespace to put programs into: kept by a process that sits in it and does nothing.
// Linux. Any thread, before others have been started.
#pragma once

#include <sys/types.h>

namespace strata {

// Forks a process that sits in a network namespace of its own until it is killed or this one ends.
// Closes its stdin. 0: not allowed here.
pid_t HoldNetworkNamespace();

}  // namespace strata
