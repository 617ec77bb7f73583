// A device compiles its kernels, and allocates memory for them, when they first run: a new stage
// runs them once before it is ready, not during the first request, and a lack of memory fails the
// load.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "shard/device/device_probe.h"

namespace strata {

class LlamaStage;

// Rows of the warm-up steps, the largest first: `n_rows_max`, 1 or more, and the numbers for which
// ggml's back ends have separate kernels. Only smaller ones where the device has no memory of its
// own, and is slow. A `kind` of kCpu is a software device, such as Mesa's: the CPU itself has
// nothing to compile.
std::vector<uint32_t> WarmUpRows(DeviceFacts::Kind kind, bool own_memory, uint32_t n_rows_max);

// Runs these steps, and leaves the stage empty, as before. On the compute thread; blocks. Errors:
// as Stage::Decode().
absl::Status WarmUp(const std::vector<uint32_t>& rows, LlamaStage* stage);

}  // namespace strata
