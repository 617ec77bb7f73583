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

// Cores that this process may use.
uint32_t MachineCores();

// Equal for all processes of this machine until it starts again, in containers too; empty where the
// system has none.
std::string MachineId();

// The machine's name without its domain.
std::string MachineName();

}  // namespace strata
