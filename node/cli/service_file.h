// The file that `strata service install` writes, or a package of a distribution has: a unit for
// systemd, a property list for launchd.
#pragma once

#include <string>
#include <vector>

namespace strata {

struct ServiceSpec {
  std::string program;                    // path of the program
  std::string data_dir;                   // the node's; empty: the default one
  std::vector<std::string> node_options;  // of `strata node`
  bool is_system = false;             // with a user of its own, for all users; else the caller's
  std::vector<std::string> groups{};  // the system service's, beside its own: those of the GPUs
  bool is_packaged = false;           // its options are in the machine's configuration
};

// systemd.service(5), systemd.exec(5): ready and alive as sd_notify(3) tells it, restarted after a
// crash, and with as few rights as a node needs.
std::string SystemdUnit(const ServiceSpec& spec);

// launchd.plist(5). Started at login and after a crash.
std::string LaunchdPlist(const ServiceSpec& spec);

}  // namespace strata
