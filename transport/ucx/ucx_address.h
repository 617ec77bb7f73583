// Numeric addresses for links over UCX, and the interface that has them. Any thread.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace strata {

struct UcxAddress {
  sockaddr_storage bytes{};
  socklen_t size = 0;
};

// "192.0.2.1:80" or "[2001:db8::1]:80". kInvalidArgument for anything else, names included.
absl::StatusOr<UcxAddress> ParseUcxAddress(absl::string_view host_port);
std::string UcxAddressText(const sockaddr_storage& address);

// The interface of this machine that has the address. kInvalidArgument: none has it, or it means
// all interfaces.
absl::StatusOr<std::string> UcxInterface(const UcxAddress& address);

// The devices that UCX may use for `interface`: itself, and the RDMA devices that Linux lists for
// it ("eth0,mlx5_0:1"). `sys` is the root of the kernel's tree of RDMA devices.
std::string UcxDevices(const std::string& interface,
                       const std::string& sys = "/sys/class/infiniband");

}  // namespace strata
