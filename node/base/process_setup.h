// Prepares the process before anything else, for every verb.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace strata {

// Descriptors that must be free at the start; without them, libraries abort or throw.
inline constexpr int kNodeDescriptorsMin = 64;
inline constexpr int kVerbDescriptorsMin = 24;

// The variable that, set to anything, leaves the limit on core files as it is.
inline constexpr char kCoreVariable[] = "STRATA_CORE";

// REQUIRES: no descriptor was opened and no thread started.
// Opens /dev/null as stdin, stdout and stderr if they are closed, so that no socket gets their
// numbers (on Linux even before main(), as libraries open some).
// Forbids core files: the cluster's key would be in them. Makes new files readable for their owner
// alone. Raises the limit of open descriptors as far as the system lets, up to some thousands.
void PrepareProcess();

// kResourceExhausted, with the number and what to do: fewer than `wanted` descriptors are free.
absl::Status CheckDescriptors(int wanted, absl::string_view who);

// No core dumps from now on: neither a file nor one piped to a program.
void ForbidCoreFiles();

// Signals that end a process in order: SIGINT, SIGTERM, and SIGHUP unless it is ignored, as under
// nohup.
std::vector<int> EndSignals();

}  // namespace strata
