#include "shard/device/unified_memory.h"

#include <algorithm>

namespace strata {
namespace {

constexpr uint64_t kSystemBytesMin = 1ull << 30;
constexpr uint64_t kSystemShare = 16;

uint64_t Less(uint64_t bytes, uint64_t taken) { return bytes - std::min(bytes, taken); }

}  // namespace

uint64_t UnifiedFreeBytes(const UnifiedMemory& memory, bool is_mac) {
  const uint64_t system_bytes =
      is_mac ? std::max(kSystemBytesMin, memory.machine_bytes / kSystemShare) : 0;
  return std::min({Less(memory.working_set_bytes, memory.used_bytes),
                   Less(memory.available_bytes, system_bytes), memory.machine_bytes});
}

uint64_t MacAvailablePages(const MacPages& pages) {
  return Less(pages.free, pages.speculative) + pages.external + pages.purgeable;
}

}  // namespace strata
