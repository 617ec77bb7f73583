// Whether addresses can be connected to from this machine, and which node answers there: how nodes
// and `strata doctor` find out why one does not see the other. Blocks; never on the loop.
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

// Targets of one CheckReach(); the rest is left out.
inline constexpr int kReachTargetsMax = 256;

struct ReachOptions {
  // More than the 3 s after which Linux gives up to ask for a neighbour: that it is not there says
  // more than silence.
  int64_t connect_ms = 4'000;
  int64_t identify_ms = 2'000;
  std::function<bool()> cancelled;  // asked often; may be null
};

// All at the same time; one result for each target, in order. Names are looked up first.
std::vector<wire::ReachResult> CheckReach(const std::vector<wire::ReachTarget>& targets,
                                          const ReachOptions& options);

wire::ReachTarget ReachTargetOf(const std::string& address, bool identify);

// The addresses of a host, a name or a number, as numbers with the scope where they need one.
// kNotFound: it has none, in the system's words.
absl::StatusOr<std::vector<std::string>> ResolveHost(const std::string& host);

}  // namespace strata
