// The transports that UCX may use, in a test that is built once for TCP, once for shared memory and
// once for the network with the address UCX_TEST_HOST (scripts/test-verbs).
#pragma once

#include <cstdlib>
#include <sstream>
#include <string>

#include "absl/log/check.h"
#include "absl/strings/escaping.h"
#include "transport/ucx/ucx_link.h"

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

// The ticket in the output of `link_peer ucx-accept`.
inline UcxTicket TicketOf(const std::string& said) {
  std::istringstream words(said);
  UcxTicket ticket;
  std::string token, key;
  words >> ticket.address >> token >> key;
  CHECK(absl::HexStringToBytes(token, &ticket.token)) << said;
  CHECK(absl::HexStringToBytes(key, &ticket.key)) << said;
  return ticket;
}

}  // namespace strata
