// Messages from a node to the service manager (systemd) that started it, as sd_notify(3) describes
// them. None is sent where none was asked for: NOTIFY_SOCKET is not set.
#pragma once

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace strata {

// "READY=1", "STOPPING=1", "WATCHDOG=1". Any thread; never blocks.
void NotifyServiceManager(absl::string_view state);

// How often it wants to hear "WATCHDOG=1" at least, before it takes the process for hung; zero:
// never. That is WATCHDOG_USEC.
absl::Duration WatchdogInterval();

}  // namespace strata
