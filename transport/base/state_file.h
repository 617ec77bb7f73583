// Files that a program keeps over its runs, and that several of its processes change. Blocks on the
// disk; any thread.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "transport/base/descriptor.h"

namespace strata {

// Waits until no other process has the file locked, which is made where it is missing, and locks it
// until the descriptor closes. A file of its own is locked where each change replaces the other.
// Errors are the system's own reason, with the file's name.
absl::StatusOr<Descriptor> LockFile(const std::string& path);

// Renames a file whose content is of no use, and returns its new name.
absl::StatusOr<std::string> SetAside(const std::string& path);

}  // namespace strata
