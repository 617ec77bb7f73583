// What UCX may choose from, in a test that is built once for TCP, once for shared memory and once
// for the network that UCX_TEST_HOST is an address of (scripts/test-verbs).
#pragma once

#include <cstdlib>
#include <string>

#include "transport/ucx_link.h"

namespace strata {

#ifdef UCX_TEST_SHARED_MEMORY
inline constexpr const char* kUcxTestTransports = kUcxSharedMemory;
#elif defined UCX_TEST_NETWORK
inline constexpr const char* kUcxTestTransports = kUcxNetwork;
#else
inline constexpr const char* kUcxTestTransports = kUcxTcp;
#endif

inline UcxLinks::Options UcxTestOptions() {
  UcxLinks::Options options;
  options.transports = kUcxTestTransports;
  if (const char* const host = std::getenv("UCX_TEST_HOST")) options.host = host;
  return options;
}

}  // namespace strata
