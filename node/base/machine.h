// Facts about this machine from the operating system. Any thread; reads a few small files.
#pragma once

#include <cstdint>
#include <string>

namespace strata {

struct MachineMemory {
  uint64_t total_bytes = 0;  // of the machine, or of the control group that limits this process
  uint64_t free_bytes = 0;   // that programs may allocate without swapping
};
MachineMemory ReadMachineMemory();

// Cores that this process may keep busy: those it may run on, or the quota of its control group,
// rounded up, if that is less.
uint32_t MachineCores();

// Ids that are equal for processes that share the memory or the cores, until the machine reboots;
// both empty if the system has none. A machine's processes share its memory and its cores, except
// in control groups with limits of their own: a limited resource is shared by the group alone.
struct MachineIds {
  std::string memory;
  std::string cores;
};
MachineIds ReadMachineIds();
// ReadMachineIds().memory.
std::string MachineId();

// The machine's name without its domain.
std::string MachineName();

}  // namespace strata
