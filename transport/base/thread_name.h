// Names of threads, for people: top -H, gdb and scripts/bench-idle show them.
#pragma once

namespace strata {

// Names the calling thread; at most 15 bytes. Does nothing on systems other than Linux.
void NameThread(const char* name);

}  // namespace strata
