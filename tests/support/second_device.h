// A device beside the CPU, for tests of stages on several: whatever GPU there is, else Mesa's
// software Vulkan device, which ggml shows only where it is asked to.
#pragma once

#include <cstdlib>
#include <string>

#include "shard/device/device_probe.h"

namespace strata::testing {

// In main(), or before the first test; programs that are started see it, too. A GPU that a person
// named stays the one.
inline void ShowSoftwareDevices() { setenv("GGML_VK_VISIBLE_DEVICES", "0", /*overwrite=*/0); }

// As ggml names it; empty: there is none. The process lists its devices once: ShowSoftwareDevices()
// comes first.
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
