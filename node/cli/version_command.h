// `strata version`, and --version: which Strata this is, and what it runs with.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace strata {

// Several lines, without an end of the last.
std::string VersionText();

struct VersionOptions {
  bool json = false;  // with the path of each library and of each plug-in of libggml
};
// Prints it. A worker that uses UCX loads more.
absl::Status RunVersion(const VersionOptions& options);

}  // namespace strata
