// Networks that a person trusts, by the names of their interfaces (`--trust-link`). Any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace strata {

// This machine's address on a network: "10.0.0.7/24", or IPv6, but not link-local.
struct TrustedAddress {
  std::string host;  // "10.0.0.7"
  int prefix_bits = 0;
};
std::string TrustedAddressText(const TrustedAddress& address);
// kInvalidArgument when `text` is no such address.
absl::StatusOr<TrustedAddress> ParseTrustedAddress(absl::string_view text);

// All present addresses of `interfaces`. An interface that is missing, or has none, adds nothing:
// it may appear later.
std::vector<TrustedAddress> AddressesOf(const std::vector<std::string>& interfaces);
// Checks that all exist. kNotFound, with the names of the existing interfaces.
absl::Status CheckInterfaces(const std::vector<std::string>& interfaces);

// Whether both are on one network: the same prefix, of the same length.
bool SameNetwork(const TrustedAddress& a, const TrustedAddress& b);

}  // namespace strata
