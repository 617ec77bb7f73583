// What UCX may choose from, in a test that is built once for TCP, once for shared memory and once
// for the network that UCX_TEST_HOST is an address of (scripts/test-verbs).
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

// That a `link_peer ucx-accept` has said.
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
