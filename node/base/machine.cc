#include "node/base/machine.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "shard/device/control_group.h"
#include "shard/device/host_identity.h"
#include "shard/device/memory.h"

#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

namespace strata {
namespace {

#ifndef __APPLE__
// Of the machine, without control groups.
uint64_t MemoryTotalBytes() {
  std::ifstream file("/proc/meminfo");  // lines "MemTotal:  123 kB"
  std::string name;
  uint64_t kib = 0;
  while (file >> name >> kib) {
    if (name == "MemTotal:") return kib * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0;
}
#endif

uint32_t UsableCores() { return std::max(1u, std::thread::hardware_concurrency()); }

}  // namespace

MachineMemory ReadMachineMemory() {
  MachineMemory memory;
#ifdef __APPLE__
  size_t size = sizeof memory.total_bytes;
  sysctlbyname("hw.memsize", &memory.total_bytes, &size, nullptr, 0);
#else
  memory.total_bytes = std::min(MemoryTotalBytes(), ReadControlGroup().memory_bytes);
#endif
  // As stages count it: the page cache that may be dropped is free.
  memory.free_bytes = std::min(memory.total_bytes, AvailableBytes());
  return memory;
}

uint32_t MachineCores() {
  const uint32_t usable = UsableCores();
  const double quota = std::ceil(ReadControlGroup().cpu_cores);  // at least 1, perhaps infinite
  return quota < usable ? static_cast<uint32_t>(quota) : usable;
}

MachineIds ReadMachineIds() {
  MachineIds ids;
  ids.memory = ids.cores = BootId();
  if (ids.memory.empty()) return ids;
#ifndef __APPLE__
  const ControlGroup limits = ReadControlGroup();
  if (limits.memory_bytes < MemoryTotalBytes())
    absl::StrAppend(&ids.memory, " ", limits.memory_group);
  if (limits.cpu_cores < UsableCores()) {
    absl::StrAppend(&ids.cores, " ", limits.cpu_group);
  } else if (!limits.cpus.empty()) {
    absl::StrAppend(&ids.cores, " cores ", limits.cpus);
  }
#endif
  return ids;
}

std::string MachineId() { return ReadMachineIds().memory; }

std::string MachineName() {
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "node";
  const absl::string_view full_name = name;
  return std::string(full_name.substr(0, full_name.find('.')));
}

}  // namespace strata
