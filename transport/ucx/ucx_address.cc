#include "transport/ucx/ucx_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace strata {
namespace {

bool SameHost(const sockaddr_storage& a, const sockaddr* b) {
  if (b == nullptr || b->sa_family != a.ss_family) return false;
  if (a.ss_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(a).sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(b)->sin_addr.s_addr;
  }
  return std::memcmp(&reinterpret_cast<const sockaddr_in6&>(a).sin6_addr,
                     &reinterpret_cast<const sockaddr_in6*>(b)->sin6_addr, sizeof(in6_addr)) == 0;
}

}  // namespace

absl::StatusOr<UcxAddress> ParseUcxAddress(absl::string_view host_port) {
  absl::Status wrong = absl::InvalidArgumentError(
      absl::StrCat("\"", host_port, "\" is not an address and a port in numbers"));
  const size_t colon = host_port.rfind(':');
  if (colon == absl::string_view::npos) return wrong;
  uint32_t port = 0;
  if (!absl::SimpleAtoi(host_port.substr(colon + 1), &port) || port > 65535) return wrong;
  absl::string_view host = host_port.substr(0, colon);
  UcxAddress address;
  if (absl::ConsumePrefix(&host, "[") && absl::ConsumeSuffix(&host, "]")) {
    auto& in6 = reinterpret_cast<sockaddr_in6&>(address.bytes);
    in6.sin6_family = AF_INET6;
    in6.sin6_port = htons(static_cast<uint16_t>(port));
    if (inet_pton(AF_INET6, std::string(host).c_str(), &in6.sin6_addr) != 1) return wrong;
    address.size = sizeof in6;
    return address;
  }
  auto& in4 = reinterpret_cast<sockaddr_in&>(address.bytes);
  in4.sin_family = AF_INET;
  in4.sin_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET, std::string(host).c_str(), &in4.sin_addr) != 1) return wrong;
  address.size = sizeof in4;
  return address;
}

std::string UcxAddressText(const sockaddr_storage& address) {
  char host[INET6_ADDRSTRLEN] = "?";
  if (address.ss_family == AF_INET) {
    const auto& in4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &in4.sin_addr, host, sizeof host);
    return absl::StrCat(host, ":", ntohs(in4.sin_port));
  }
  const auto& in6 = reinterpret_cast<const sockaddr_in6&>(address);
  inet_ntop(AF_INET6, &in6.sin6_addr, host, sizeof host);
  return absl::StrCat("[", host, "]:", ntohs(in6.sin6_port));
}

absl::StatusOr<std::string> UcxInterface(const UcxAddress& address) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return absl::UnavailableError("the interfaces cannot be listed");
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(all, freeifaddrs);
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (SameHost(address.bytes, one->ifa_addr)) return std::string(one->ifa_name);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      UcxAddressText(address.bytes), " is not the address of one of this machine's interfaces"));
}

std::string UcxDevices(const std::string& interface, const std::string& sys) {
  namespace fs = std::filesystem;
  std::string devices = interface;
  std::error_code error;
  // DEVICE/ports/PORT/gid_attrs/ndevs/INDEX names an interface; indices without one cannot be read.
  for (const auto& device : fs::directory_iterator(sys, error)) {
    for (const auto& port : fs::directory_iterator(device.path() / "ports", error)) {
      const fs::directory_iterator indices(port.path() / "gid_attrs" / "ndevs", error);
      const bool on_it = std::any_of(begin(indices), end(indices), [&](const auto& index) {
        std::string name;
        std::ifstream(index.path()) >> name;
        return name == interface;
      });
      if (on_it) {
        absl::StrAppend(&devices, ",", device.path().filename().string(), ":",
                        port.path().filename().string());
      }
    }
  }
  return devices;
}

}  // namespace strata
