#include "shard/device/memory_pressure.h"

#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

namespace strata {
namespace {

constexpr double kPressurePercent = 20;  // of the last ten seconds

}  // namespace

MemoryPressure ParsePressure(absl::string_view text) {
  MemoryPressure pressure = MemoryPressure::kNone;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    for (absl::string_view word : absl::StrSplit(line, ' ')) {
      double percent = 0;
      if (!absl::ConsumePrefix(&word, "avg10=") || !absl::SimpleAtod(word, &percent) ||
          percent < kPressurePercent) {
        continue;
      }
      if (absl::StartsWith(line, "full ")) return MemoryPressure::kCritical;
      if (absl::StartsWith(line, "some ")) pressure = MemoryPressure::kShort;
    }
  }
  return pressure;
}

MemoryPressure ReadMemoryPressure(const std::string& root) {
#ifdef __APPLE__
  (void)root;
  int level = 0;
  size_t size = sizeof level;
  if (sysctlbyname("kern.memorystatus_vm_pressure_level", &level, &size, nullptr, 0) != 0) {
    return MemoryPressure::kNone;
  }
  // DISPATCH_MEMORYPRESSURE_NORMAL, _WARN and _CRITICAL.
  if (level >= 4) return MemoryPressure::kCritical;
  return level >= 2 ? MemoryPressure::kShort : MemoryPressure::kNone;
#else
  std::ifstream file(root + "/proc/pressure/memory");
  std::ostringstream text;
  text << file.rdbuf();
  return ParsePressure(text.str());
#endif
}

uint64_t OfferedBytes(uint64_t free_bytes, MemoryPressure pressure) {
  switch (pressure) {
    case MemoryPressure::kNone:
      return free_bytes;
    case MemoryPressure::kShort:
      return free_bytes / 2;
    case MemoryPressure::kCritical:
      return 0;
  }
  return free_bytes;
}

std::string PressureText(MemoryPressure pressure) {
  constexpr absl::string_view kAdvice =
      ": close programs on it, or start its node with less (--memory)";
  switch (pressure) {
    case MemoryPressure::kNone:
      return "";
    case MemoryPressure::kShort:
      return absl::StrCat("this machine is short of memory, and offers half of what is free",
                          kAdvice);
    case MemoryPressure::kCritical:
      return absl::StrCat("this machine has no memory to spare, and takes no more layers", kAdvice);
  }
  return "";
}

}  // namespace strata
