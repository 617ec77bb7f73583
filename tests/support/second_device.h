// A device beside the CPU, for tests of stages on several: whatever GPU there is, else Mesa's
// software Vulkan device, which ggml shows only where it is asked to.
#pragma once

#include <cstdlib>
#include <string>

#include "shard/device/device_probe.h"

namespace strata::testing {

// REQUIRES: called in main(), or before the first test. Child programs see it, too. A device that
// the environment names already stays the one.
inline void ShowSoftwareDevices() { setenv("GGML_VK_VISIBLE_DEVICES", "0", /*overwrite=*/0); }

// The name that ggml has for it; empty: there is none. REQUIRES: ShowSoftwareDevices() was called,
// as the process lists its devices once.
inline std::string SecondDevice() {
  for (const DeviceFacts& device : ListDevices()) {
    if (device.name != "CPU") return device.name;
  }
  return "";
}

inline constexpr char kNoSecondDevice[] =
    "ggml shows no device beside the CPU: neither a GPU nor Mesa's software Vulkan device "
    "(packages libggml0-backend-vulkan and mesa-vulkan-drivers)";

}  // namespace strata::testing
