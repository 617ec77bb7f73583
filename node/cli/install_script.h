// `strata self-update` and `strata uninstall`: start the installer that stays beside what it has
// installed (scripts/install.sh).
#pragma once

#include "absl/status/status.h"

namespace strata {

struct SelfUpdateOptions {
  bool check = false;  // only say whether there is a newer version
};
struct UninstallOptions {
  bool purge = false;  // keys, ids, configuration and models, too
  bool yes = false;    // without asking
};

// Becomes the installer, whose exit status is the process's. kFailedPrecondition: it did not
// install this program.
absl::Status RunSelfUpdate(const SelfUpdateOptions& options);
absl::Status RunUninstall(const UninstallOptions& options);

}  // namespace strata
