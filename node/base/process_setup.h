// What the program does before anything else, whatever its verb: the process as others expect it.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace strata {

// Descriptors that are to be free at the start; what a verb opens first aborts or throws without.
inline constexpr int kNodeDescriptorsMin = 64;
inline constexpr int kVerbDescriptorsMin = 24;

// Set to anything, the limit on core files stays as it is.
inline constexpr char kCoreVariable[] = "STRATA_CORE";

// REQUIRES: no descriptor was opened and no thread started.
// stdin, stdout and stderr that are closed become /dev/null, so that no socket gets their numbers
// (on Linux even before that, as libraries open some).
// No core file is written: the cluster's key would be in it. What is created is for its owner
// alone. As many descriptors may be open as the system lets, up to some thousands.
void PrepareProcess();

// kResourceExhausted, with the number and what to do: fewer than `wanted` descriptors are free.
absl::Status CheckDescriptors(int wanted, absl::string_view who);

// From now on; neither a file nor a program that the system gives core files to.
void ForbidCoreFiles();

// Signals that end a process in order: SIGINT, SIGTERM, and SIGHUP where it is not ignored, as
// nohup has it.
std::vector<int> EndSignals();

}  // namespace strata
