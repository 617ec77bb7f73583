// Whether this machine is short of memory: its programs wait for pages that the system takes from
// some to give to others. Linux tells it as the share of time in which they waited
// (Documentation/accounting/psi.rst), macOS as a level (kern.memorystatus_vm_pressure_level).
// Reads a small file; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace strata {

enum class MemoryPressure {
  kNone,
  kShort,     // some programs waited for a fifth of the last ten seconds; macOS: "warning"
  kCritical,  // all did; macOS: "critical"
};

// Where the system does not tell: kNone. `root` stands in for "/" in tests.
MemoryPressure ReadMemoryPressure(const std::string& root = "");

// Of Linux's two lines; kNone where they are none.
MemoryPressure ParsePressure(absl::string_view text);

// The part that such a machine offers of the bytes that are free: all, half, or nothing.
uint64_t OfferedBytes(uint64_t free_bytes, MemoryPressure pressure);

// For people, with advice; empty for kNone.
std::string PressureText(MemoryPressure pressure);

}  // namespace strata
