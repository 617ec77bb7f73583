// `strata service`: a node that starts with the machine and comes back after a crash, by systemd or
// launchd. Runs systemctl, loginctl, journalctl or launchctl, which print what they find.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace strata {

struct ServiceOptions {
  bool is_system = false;                   // else the caller's
  std::vector<std::string> node_options{};  // of `strata node`, which accepts them
  std::string data_dir;                     // the node's, by these options; empty: the default one
};

// Writes the service's file, and starts it, again if it runs. The file stays where that fails.
absl::Status RunServiceInstall(const ServiceOptions& options);
// Stops it and removes its file; the node's data dir stays.
absl::Status RunServiceUninstall(const ServiceOptions& options);
absl::Status RunServiceStatus(const ServiceOptions& options);
absl::Status RunServiceLogs(const ServiceOptions& options);

}  // namespace strata
