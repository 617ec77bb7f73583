// What UCX may choose from in a test that is built once for TCP and once for shared memory.
#pragma once

#include "transport/ucx_link.h"

namespace strata {

#ifdef UCX_TEST_SHARED_MEMORY
inline constexpr const char* kUcxTestTransports = kUcxSharedMemory;
#else
inline constexpr const char* kUcxTestTransports = kUcxTcp;
#endif

}  // namespace strata
