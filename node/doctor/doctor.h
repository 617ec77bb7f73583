// `strata doctor`: why can't I see that machine? Examines this machine, the nodes of the
// cluster and the links between them, and gives advice.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "node/client/cluster_client.h"
#include "node/doctor/doctor_checks.h"

namespace strata {

struct DoctorOptions {
  ClientOptions client;
  std::string target;  // a node or host; empty: the whole cluster
  bool json = false;
};

// Prints to stdout. Blocks for some seconds. True if nothing is wrong; kInvalidArgument: an
// option.
absl::StatusOr<bool> RunDoctor(const DoctorOptions& options);

// For people, or one line of JSON; each ends with a line's end. Pure.
std::string DoctorText(const std::vector<Check>& checks);
std::string DoctorJson(const std::vector<Check>& checks);

}  // namespace strata
