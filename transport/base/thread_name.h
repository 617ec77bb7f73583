// Names of threads, for people: top -H, gdb and scripts/bench-idle show them.
#pragma once

namespace strata {

// The calling thread's, 15 bytes at most; where the system has no such names nothing happens.
void NameThread(const char* name);

}  // namespace strata
