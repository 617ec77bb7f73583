// Addresses by which nodes reach each other: those of this machine's interfaces, read from the
// system, and their text form. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace strata {

// Addresses of one node that are announced and tried; more are left out.
inline constexpr size_t kNodeAddressesMax = 32;

struct InterfaceAddress {
  uint32_t interface = 0;  // the system's index
  std::string name;        // of the interface
  std::string ip;          // without a scope
  bool is_ipv6 = false;
  bool is_link_local = false;  // of IPv6: valid only together with the interface
  bool is_loopback = false;

  friend bool operator==(const InterfaceAddress&, const InterfaceAddress&) = default;
  friend auto operator<=>(const InterfaceAddress&, const InterfaceAddress&) = default;
};

// The addresses of all interfaces that are up and have a carrier, in a fixed order, loopback last.
std::vector<InterfaceAddress> ReadInterfaceAddresses();

// "host:port", split at its last colon; an IPv6 host has brackets in the text.
struct HostPort {
  std::string host;  // without brackets
  uint16_t port = 0;
};
// kInvalidArgument when `address` is not host:port, or its host is empty.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view address);
// With brackets where the host has colons.
std::string JoinHostPort(absl::string_view host, uint16_t port);

// Whether an address from an untrusted peer may be given to gRPC: host:port of a name or number,
// and no other form that gRPC accepts as an address ("unix:7").
bool IsDialable(absl::string_view address);

// "0.0.0.0", "::" and "*": listens on all interfaces.
bool IsAnyHost(absl::string_view host);
// `host` as a number to listen on: all interfaces means both versions of IP.
std::string ListenHost(const std::string& host);
// An address of IPv4 or IPv6, also one with a scope, rather than a name.
bool IsNumericHost(absl::string_view host);
// "localhost", 127.0.0.0/8 and "::1".
bool IsLoopbackHost(absl::string_view host);

}  // namespace strata
