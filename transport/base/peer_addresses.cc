#include "transport/base/peer_addresses.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <tuple>

#include "absl/algorithm/container.h"
#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace strata {

std::vector<InterfaceAddress> ReadInterfaceAddresses() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return {};
  absl::Cleanup free_all = [first] { freeifaddrs(first); };
  std::vector<InterfaceAddress> addresses;
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    constexpr unsigned kUp = IFF_UP | IFF_RUNNING;
    if (each->ifa_addr == nullptr || (each->ifa_flags & kUp) != kUp) continue;
    InterfaceAddress address;
    char text[INET6_ADDRSTRLEN] = {};
    if (each->ifa_addr->sa_family == AF_INET) {
      const auto* in = reinterpret_cast<const sockaddr_in*>(each->ifa_addr);
      inet_ntop(AF_INET, &in->sin_addr, text, sizeof text);
    } else if (each->ifa_addr->sa_family == AF_INET6) {
      const auto* in = reinterpret_cast<const sockaddr_in6*>(each->ifa_addr);
      inet_ntop(AF_INET6, &in->sin6_addr, text, sizeof text);
      address.is_ipv6 = true;
      address.is_link_local = IN6_IS_ADDR_LINKLOCAL(&in->sin6_addr);
    } else {
      continue;
    }
    address.interface = if_nametoindex(each->ifa_name);
    address.name = each->ifa_name;
    address.ip = text;
    address.is_loopback = (each->ifa_flags & IFF_LOOPBACK) != 0;
    if (address.interface != 0) addresses.push_back(std::move(address));
  }
  std::sort(addresses.begin(), addresses.end(), [](const auto& a, const auto& b) {
    return std::tie(a.is_loopback, a.is_link_local, a.is_ipv6, a) <
           std::tie(b.is_loopback, b.is_link_local, b.is_ipv6, b);
  });
  return addresses;
}

absl::StatusOr<HostPort> ParseHostPort(absl::string_view address) {
  const size_t colon = address.rfind(':');
  absl::string_view host = address.substr(0, colon == address.npos ? 0 : colon);
  const bool brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (brackets) host = host.substr(1, host.size() - 2);
  uint32_t port = 0;
  if (colon == address.npos || host.empty() || absl::StrContains(host, '[') ||
      (!brackets && absl::StrContains(host, ':')) ||
      !absl::c_all_of(address.substr(colon + 1), absl::ascii_isdigit) ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat(address, ": wants host:port, for example 192.168.1.7:7400 or [fd00::7]:7400"));
  }
  return HostPort{.host = std::string(host), .port = static_cast<uint16_t>(port)};
}

std::string JoinHostPort(absl::string_view host, uint16_t port) {
  if (absl::StrContains(host, ':')) return absl::StrCat("[", host, "]:", port);
  return absl::StrCat(host, ":", port);
}

bool IsDialable(absl::string_view address) {
  const absl::StatusOr<HostPort> parsed = ParseHostPort(address);
  if (!parsed.ok() || parsed->port == 0 || IsAnyHost(parsed->host)) return false;
  for (char c : parsed->host) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && !absl::StrContains(".-_:%", c)) {
      return false;
    }
  }
  // A name without a dot may be the scheme of one of gRPC's resolvers.
  return absl::StrContains(parsed->host, '.') || absl::StrContains(parsed->host, ':') ||
         parsed->host == "localhost";
}

bool IsAnyHost(absl::string_view host) { return host == "0.0.0.0" || host == "::" || host == "*"; }

std::string ListenHost(const std::string& host) { return IsAnyHost(host) ? "::" : host; }

bool IsNumericHost(absl::string_view host) {
  in_addr v4;
  return absl::StrContains(host, ':') || inet_pton(AF_INET, std::string(host).c_str(), &v4) == 1;
}

bool IsLoopbackHost(absl::string_view host) {
  in_addr v4;
  const bool is_v4 = inet_pton(AF_INET, std::string(host).c_str(), &v4) == 1;
  // Only a numeric address counts: the name 127.example.com may resolve to any machine.
  return host == "localhost" || host == "::1" || (is_v4 && ntohl(v4.s_addr) >> 24 == 127);
}

}  // namespace strata
