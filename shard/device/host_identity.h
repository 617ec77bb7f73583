// Identifies the machine of this process, and the processes it can reach without a network.
#pragma once

#include <string>

namespace strata {

// Equal for all processes of this machine until it starts again, in containers too; empty where the
// system has none (macOS).
std::string BootId();

// Equal for processes that reach each other over loopback and share memory: one machine, one
// network namespace, one IPC namespace. Empty: not known, so no other process counts as on this
// host.
std::string HostIdentity();

}  // namespace strata
