// A device's kernels are compiled, and take memory, when they run for the first time: a new stage
// runs them once before it is ready, rather than in somebody's text, and what does not fit then
// fails the load.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "shard/device/device_probe.h"

namespace strata {

class LlamaStage;

// Rows of the steps that are run, the largest first: `n_rows_max`, 1 or more, and those for which
// ggml's back ends have kernels of their own. Smaller ones alone where the device has no memory of
// its own, and is slow; a `kind` of kCpu is a software device, as Mesa's: the CPU itself has
// nothing to compile.
std::vector<uint32_t> WarmUpRows(DeviceFacts::Kind kind, bool own_memory, uint32_t n_rows_max);

// Runs them, and leaves the stage as it was: without a text. On the compute thread; blocks.
// Errors: Stage::Decode()'s.
absl::Status WarmUp(const std::vector<uint32_t>& rows, LlamaStage* stage);

}  // namespace strata
