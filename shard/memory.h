// How much memory this process has and may still take.
#pragma once

#include <cstdint>

namespace strata {

// Bytes that may be allocated without swapping: what the system counts as available, or what is left
// below the limit of a control group that this process is in, whichever is less.
uint64_t AvailableBytes();

}  // namespace strata
