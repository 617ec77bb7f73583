// Looks up the addresses of a host's name, as the system does (getaddrinfo(3)), without blocking.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "transport/base/event_loop.h"

namespace strata {

// Addresses as numbers without a port, a link-local one with its scope; at least one, none twice.
// kNotFound: nobody knows the name; kUnavailable: nobody could be asked.
using HostAddresses = absl::StatusOr<std::vector<std::string>>;

// Loop thread, as `done`, which is not called once the handle is destroyed. A look-up that takes
// long delays nothing, the end of the loop and of the process neither.
std::unique_ptr<EventLoop::Handle> LookUpHost(EventLoop* loop, const std::string& host,
                                              absl::AnyInvocable<void(HostAddresses) &&> done);

}  // namespace strata
