#include "transport/security/trusted_networks.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"

namespace strata {
namespace {

struct Bytes {
  int family = AF_UNSPEC;
  uint8_t bytes[16] = {};
};

Bytes BytesOf(const std::string& host) {
  Bytes result;
  for (const int family : {AF_INET, AF_INET6}) {
    if (inet_pton(family, host.c_str(), result.bytes) == 1) {
      result.family = family;
      break;
    }
  }
  return result;
}

int BitsMax(int family) { return family == AF_INET ? 32 : 128; }

// The number of bits set in a netmask from the system.
int MaskBits(const sockaddr* mask, int family) {
  if (mask == nullptr) return BitsMax(family);
  const uint8_t* bytes =
      family == AF_INET
          ? reinterpret_cast<const uint8_t*>(&reinterpret_cast<const sockaddr_in*>(mask)->sin_addr)
          : reinterpret_cast<const sockaddr_in6*>(mask)->sin6_addr.s6_addr;
  int bits = 0;
  for (const uint8_t byte : absl::MakeSpan(bytes, static_cast<size_t>(BitsMax(family) / 8))) {
    bits += std::popcount(byte);
  }
  return bits;
}

bool AllOrLocal(const Bytes& host) {
  if (host.family == AF_INET) {
    return std::all_of(host.bytes, host.bytes + 4, [](uint8_t byte) { return byte == 0; });
  }
  in6_addr in6;
  std::copy_n(host.bytes, sizeof in6.s6_addr, in6.s6_addr);
  return IN6_IS_ADDR_UNSPECIFIED(&in6) || IN6_IS_ADDR_LINKLOCAL(&in6);
}

using Interfaces = std::unique_ptr<ifaddrs, void (*)(ifaddrs*)>;

Interfaces ListInterfaces() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) all = nullptr;
  return Interfaces(all, [](ifaddrs* list) {
    if (list != nullptr) freeifaddrs(list);
  });
}

}  // namespace

std::string TrustedAddressText(const TrustedAddress& address) {
  return absl::StrCat(address.host, "/", address.prefix_bits);
}

absl::StatusOr<TrustedAddress> ParseTrustedAddress(absl::string_view text) {
  const size_t slash = text.find('/');
  TrustedAddress address;
  if (slash != absl::string_view::npos &&
      absl::SimpleAtoi(text.substr(slash + 1), &address.prefix_bits)) {
    address.host = std::string(text.substr(0, slash));
    const Bytes bytes = BytesOf(address.host);
    if (bytes.family != AF_UNSPEC && !AllOrLocal(bytes) && address.prefix_bits > 0 &&
        address.prefix_bits <= BitsMax(bytes.family)) {
      return address;
    }
  }
  return absl::InvalidArgumentError(
      "not an address with the length of its prefix, for example 10.0.0.7/24");
}

std::vector<TrustedAddress> AddressesOf(const std::vector<std::string>& interfaces) {
  std::vector<TrustedAddress> addresses;
  const Interfaces all = ListInterfaces();
  for (const ifaddrs* one = all.get(); one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr ||
        std::find(interfaces.begin(), interfaces.end(), one->ifa_name) == interfaces.end()) {
      continue;
    }
    const int family = one->ifa_addr->sa_family;
    char host[INET6_ADDRSTRLEN];
    const void* bytes = nullptr;
    if (family == AF_INET) {
      bytes = &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr;
    } else if (family == AF_INET6) {
      bytes = &reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr;
    }
    if (bytes == nullptr || inet_ntop(family, bytes, host, sizeof host) == nullptr) continue;
    TrustedAddress address{host, MaskBits(one->ifa_netmask, family)};
    if (ParseTrustedAddress(TrustedAddressText(address)).ok()) {
      addresses.push_back(std::move(address));
    }
  }
  return addresses;
}

absl::Status CheckInterfaces(const std::vector<std::string>& interfaces) {
  std::set<std::string> names;
  const Interfaces all = ListInterfaces();
  for (const ifaddrs* one = all.get(); one != nullptr; one = one->ifa_next) {
    names.insert(one->ifa_name);
  }
  for (const std::string& name : interfaces) {
    if (names.count(name) == 0) {
      return absl::NotFoundError(absl::StrCat("this machine has no interface \"", name,
                                              "\"; it has ", absl::StrJoin(names, ", ")));
    }
  }
  return absl::OkStatus();
}

bool SameNetwork(const TrustedAddress& a, const TrustedAddress& b) {
  const Bytes first = BytesOf(a.host);
  const Bytes second = BytesOf(b.host);
  if (first.family == AF_UNSPEC || first.family != second.family) return false;
  if (a.prefix_bits != b.prefix_bits) return false;
  for (int bit = 0; bit < a.prefix_bits; ++bit) {
    const uint8_t mask = static_cast<uint8_t>(0x80 >> (bit % 8));
    if (((first.bytes[bit / 8] ^ second.bytes[bit / 8]) & mask) != 0) return false;
  }
  return true;
}

}  // namespace strata
