// `strata status`: what the cluster is and does, and what is wrong with it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "node/cluster_client.h"
#include "node/cluster_report.h"

namespace strata {

struct StatusOptions {
  ClusterClient::Options client;
  bool json = false;
};

// Prints to stdout. Blocks. kUnavailable: nobody is there.
absl::Status RunStatus(const StatusOptions& options);

// For people, or one line of JSON; each ends with a line's end. Pure.
std::string StatusText(const ClusterReport& report);
std::string StatusJson(const ClusterReport& report);

}  // namespace strata
