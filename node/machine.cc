#include "node/machine.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#ifdef __APPLE__
#include <mach/mach.h>
#include <sys/sysctl.h>
#endif

namespace strata {
namespace {

#ifndef __APPLE__
std::optional<uint64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  uint64_t value = 0;
  if (!(file >> word) || !absl::SimpleAtoi(word, &value)) return std::nullopt;
  return value;
}

// The folder of this process's control group below `mount`, for "name:path" lines of
// /proc/self/cgroup whose controller list is `controller` (version 2: empty).
std::string GroupFolder(const std::string& mount, absl::string_view controller) {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    if (line.substr(first + 1, second - first - 1) == controller) {
      return mount + line.substr(second + 1);
    }
  }
  return mount;
}

// A line "NAME VALUE" of a file of such lines; 0 when there is none.
uint64_t ReadLine(const std::string& path, absl::string_view wanted) {
  std::ifstream file(path);
  std::string name;
  uint64_t value = 0;
  while (file >> name >> value) {
    if (name == wanted) return value;
  }
  return 0;
}

// Narrows `memory` to the limit of the control group, version 2 or 1; the mount itself stands in
// for a group that a container does not show. Files that were read and may be dropped are counted
// as used there, which would leave nothing after the first model.
void ApplyGroupLimit(MachineMemory* memory) {
  struct Group {
    std::string folder;
    const char* limit;
    const char* used;
    const char* droppable;
  };
  const auto v2 = [](std::string folder) {
    return Group{std::move(folder), "/memory.max", "/memory.current", "inactive_file"};
  };
  const auto v1 = [](std::string folder) {
    return Group{std::move(folder), "/memory.limit_in_bytes", "/memory.usage_in_bytes",
                 "total_inactive_file"};
  };
  const std::string mount = "/sys/fs/cgroup", mount_v1 = "/sys/fs/cgroup/memory";
  for (const Group& group :
       {v2(GroupFolder(mount, "")), v2(mount), v1(GroupFolder(mount_v1, "memory")), v1(mount_v1)}) {
    const std::optional<uint64_t> limit = ReadNumber(group.folder + group.limit);  // "max": none
    const std::optional<uint64_t> used = ReadNumber(group.folder + group.used);
    if (!limit || !used) continue;
    const uint64_t droppable =
        std::min(*used, ReadLine(group.folder + "/memory.stat", group.droppable));
    const uint64_t held = *used - droppable;
    memory->total_bytes = std::min(memory->total_bytes, *limit);
    memory->free_bytes = std::min(memory->free_bytes, *limit > held ? *limit - held : 0);
  }
}
#endif

}  // namespace

MachineMemory ReadMachineMemory() {
  MachineMemory memory;
#ifdef __APPLE__
  size_t size = sizeof memory.total_bytes;
  sysctlbyname("hw.memsize", &memory.total_bytes, &size, nullptr, 0);
  vm_statistics64_data_t stats;
  mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
  if (host_statistics64(mach_host_self(), HOST_VM_INFO64, reinterpret_cast<host_info64_t>(&stats),
                        &count) == KERN_SUCCESS) {
    memory.free_bytes =
        (static_cast<uint64_t>(stats.free_count) + stats.inactive_count + stats.purgeable_count) *
        static_cast<uint64_t>(vm_kernel_page_size);
  }
#else
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    const absl::string_view text = line;
    const size_t colon = text.find(':');
    uint64_t kib = 0;
    if (colon == absl::string_view::npos) continue;
    const absl::string_view value = text.substr(colon + 1, text.rfind(" kB") - colon - 1);
    if (!absl::SimpleAtoi(value, &kib)) continue;
    if (text.substr(0, colon) == "MemTotal") memory.total_bytes = kib * 1024;
    if (text.substr(0, colon) == "MemAvailable") memory.free_bytes = kib * 1024;
  }
  ApplyGroupLimit(&memory);
#endif
  return memory;
}

uint32_t MachineCores() { return std::max(1u, std::thread::hardware_concurrency()); }

std::string MachineId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

std::string MachineName() {
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "node";
  const absl::string_view whole = name;
  return std::string(whole.substr(0, whole.find('.')));
}

}  // namespace strata
