#include "shard/device/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#ifdef __APPLE__
#include <mach/mach.h>

#include "shard/device/unified_memory.h"
#endif
#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace strata {

void ReleaseFreedMemory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

// By itself glibc keeps blocks of up to 32 MiB, once it has seen one of that size.
void KeepLittleFreedMemory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 4 << 20);
  mallopt(M_TRIM_THRESHOLD, 8 << 20);
#endif
}

// malloc_trim() keeps the end of every arena but the first, which is where a stage's caches and
// buffers were: up to 64 MiB of each, of eight arenas a core.
void UseOneHeap() {
#ifdef __GLIBC__
  mallopt(M_ARENA_MAX, 1);
#endif
}

#ifdef __APPLE__

uint64_t ResidentBytes() {
  mach_task_basic_info_data_t info;
  mach_msg_type_number_t count = MACH_TASK_BASIC_INFO_COUNT;
  if (task_info(mach_task_self(), MACH_TASK_BASIC_INFO, reinterpret_cast<task_info_t>(&info),
                &count) != KERN_SUCCESS) {
    return 0;
  }
  return info.resident_size;
}

uint64_t AvailableBytes() {
  vm_statistics64_data_t statistics;
  mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
  if (host_statistics64(mach_host_self(), HOST_VM_INFO64,
                        reinterpret_cast<host_info64_t>(&statistics), &count) != KERN_SUCCESS) {
    return std::numeric_limits<uint64_t>::max();
  }
  return MacAvailablePages({.free = statistics.free_count,
                            .speculative = statistics.speculative_count,
                            .external = statistics.external_page_count,
                            .purgeable = statistics.purgeable_count}) *
         vm_kernel_page_size;
}

void DropMappedPages(const std::vector<std::string>&) {}  // nothing is repacked there

#else

namespace {

std::optional<uint64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  uint64_t value = 0;
  // "max" means no limit and is no number.
  if (!(file >> text) || !absl::SimpleAtoi(text, &value)) return std::nullopt;
  return value;
}

// The value after `key` in a file of lines "key value".
std::optional<uint64_t> ReadField(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string word;
    uint64_t value = 0;
    if (words >> word >> value && word == key) return value;
  }
  return std::nullopt;
}

// One version of control groups' names for the same figures.
struct GroupFiles {
  const char* root;
  const char* limit;
  const char* usage;
  const char* inactive_file;  // in memory.stat; page cache that goes when memory is wanted
  const char* active_file;
};
constexpr GroupFiles kVersion1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                  "memory.usage_in_bytes", "total_inactive_file",
                                  "total_active_file"};
constexpr GroupFiles kVersion2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file",
                                  "active_file"};

// Bytes left in the group at `path` and in those above it.
uint64_t LeftInGroup(const GroupFiles& files, std::string path) {
  uint64_t left = std::numeric_limits<uint64_t>::max();
  while (true) {
    const std::string folder = absl::StrCat(files.root, path == "/" ? "" : path, "/");
    const auto limit = ReadNumber(folder + files.limit);
    const auto usage = ReadNumber(folder + files.usage);
    if (limit.has_value() && usage.has_value()) {
      const uint64_t cache = ReadField(folder + "memory.stat", files.inactive_file).value_or(0) +
                             ReadField(folder + "memory.stat", files.active_file).value_or(0);
      const uint64_t used = *usage - std::min(*usage, cache);
      left = std::min(left, *limit - std::min(*limit, used));
    }
    const size_t slash = path.rfind('/');
    if (path.size() <= 1 || slash == std::string::npos) return left;
    path.resize(std::max<size_t>(slash, 1));
  }
}

uint64_t LeftInGroups() {
  uint64_t left = std::numeric_limits<uint64_t>::max();
  std::ifstream file("/proc/self/cgroup");  // lines "id:controllers:path"
  std::string line;
  while (std::getline(file, line)) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3 || fields[2].empty()) continue;
    if (fields[1].empty()) {
      left = std::min(left, LeftInGroup(kVersion2, fields[2]));
    } else if (absl::StrContains(fields[1], "memory")) {
      left = std::min(left, LeftInGroup(kVersion1, fields[2]));
    }
  }
  return left;
}

}  // namespace

uint64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t size_pages = 0;
  uint64_t resident_pages = 0;
  if (!(file >> size_pages >> resident_pages)) return 0;
  return resident_pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

uint64_t AvailableBytes() {
  const auto available_kib = ReadField("/proc/meminfo", "MemAvailable:");
  const uint64_t available =
      available_kib.has_value() ? *available_kib * 1024 : std::numeric_limits<uint64_t>::max();
  return std::min(available, LeftInGroups());
}

void DropMappedPages(const std::vector<std::string>& paths) {
  std::vector<std::string> names;
  for (const std::string& path : paths) {
    std::error_code error;
    names.push_back(std::filesystem::canonical(path, error).string());
  }
  std::ifstream file("/proc/self/maps");  // "begin-end mode offset device inode   path"
  std::string line;
  while (std::getline(file, line)) {
    const size_t slash = line.find('/');
    if (slash == std::string::npos ||
        std::find(names.begin(), names.end(), line.substr(slash)) == names.end()) {
      continue;
    }
    unsigned long begin = 0;
    unsigned long end = 0;
    char mode[5] = {};
    if (sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, mode) != 3 || mode[1] != '-') continue;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the address comes as text
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }
}

#endif

}  // namespace strata
