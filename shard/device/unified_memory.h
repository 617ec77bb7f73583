// Memory that a device shares with the machine: a Mac's, an integrated GPU's, the CPU's own. Pure
// functions; any thread.
#pragma once

#include <cstdint>

namespace strata {

struct UnifiedMemory {
  uint64_t machine_bytes = 0;    // all
  uint64_t available_bytes = 0;  // that programs may allocate without swapping
  // Most that a process should have for the device: Metal's recommendedMaxWorkingSetSize, two
  // thirds to three quarters of a Mac's memory where nobody has set iogpu.wired_limit_mb. What a
  // GPU uses is wired: neither compressed nor swapped, so that too much of it takes the system
  // down.
  uint64_t working_set_bytes = 0;
  uint64_t used_bytes = 0;  // of the working set, already
};

// Bytes of it that stages may still take. On a Mac a sixteenth of the machine, a GiB at least,
// stays with the system and its other programs, also where the wired limit was raised up to all.
uint64_t UnifiedFreeBytes(const UnifiedMemory& memory, bool is_mac);

// Pages of a Mac (vm_statistics64 in mach/vm_statistics.h), as counted by the system.
struct MacPages {
  uint64_t free = 0;         // those that are read ahead among them
  uint64_t speculative = 0;  // read ahead: they are files', too
  uint64_t external = 0;     // of files: they are dropped where memory is wanted
  uint64_t purgeable = 0;    // that their programs let go
};
// Those that programs may allocate without swapping. Inactive pages are not: they may be a
// program's own, and are then compressed or swapped.
uint64_t MacAvailablePages(const MacPages& pages);

}  // namespace strata
