// Checks whether addresses can be connected to from this machine, and which node answers there: so
// nodes and `strata doctor` find out why one does not see the other. Blocks; never on the loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/doctor.pb.h"

namespace strata {

// Most targets of one CheckReach(); the rest is dropped.
inline constexpr int kReachTargetsMax = 256;

struct ReachOptions {
  // More than the 3 s after which Linux gives up on neighbour discovery: "unreachable" says more
  // than silence.
  int64_t connect_ms = 4'000;
  int64_t identify_ms = 2'000;
  std::function<bool()> cancelled;  // called often; may be null
};

// Tries all targets at the same time; one result for each, in order. Names are looked up first.
std::vector<wire::ReachResult> CheckReach(const std::vector<wire::ReachTarget>& targets,
                                          const ReachOptions& options);

wire::ReachTarget ReachTargetOf(const std::string& address, bool identify);

// The numeric addresses of a host, a name or an address, with a scope if they need one. kNotFound:
// it has none, with the system's message.
absl::StatusOr<std::vector<std::string>> ResolveHost(const std::string& host);

}  // namespace strata
