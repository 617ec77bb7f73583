// What the operating system says of this machine. Any thread; reads a few small files.
#pragma once

#include <cstdint>
#include <string>

namespace strata {

struct MachineMemory {
  uint64_t total_bytes = 0;  // of the machine, or of the control group that limits this process
  uint64_t free_bytes = 0;   // what programs may take without swapping
};
MachineMemory ReadMachineMemory();

// Cores that this process may keep busy: those it may run on, or as many as a control group's quota
// is worth, rounded up.
uint32_t MachineCores();

// Equal for processes that share the thing, until the machine starts again; both empty where the
// system has no name for that. A machine's processes share its memory and its cores, but for those
// in control groups with limits of their own: what a group is limited in, only its members share.
struct MachineIds {
  std::string memory;
  std::string cores;
};
MachineIds ReadMachineIds();
// The one of memory.
std::string MachineId();

// The machine's name without its domain.
std::string MachineName();

}  // namespace strata
