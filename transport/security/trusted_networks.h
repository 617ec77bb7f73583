// Networks whose wires a person trusts, by the names of their interfaces (`--trust-link`). Any
// thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace strata {

// This machine's address on a network: "10.0.0.7/24", IPv6 too, but no link-local one.
struct TrustedAddress {
  std::string host;  // "10.0.0.7"
  int prefix_bits = 0;
};
std::string TrustedAddressText(const TrustedAddress& address);
// kInvalidArgument for what is no such address.
absl::StatusOr<TrustedAddress> ParseTrustedAddress(absl::string_view text);

// All addresses of `interfaces` now. An interface that is not there, or has none, adds nothing: it
// may come later.
std::vector<TrustedAddress> AddressesOf(const std::vector<std::string>& interfaces);
// kNotFound with the names of those that are there.
absl::Status CheckInterfaces(const std::vector<std::string>& interfaces);

// On one network: the same prefix, of the same length.
bool SameNetwork(const TrustedAddress& a, const TrustedAddress& b);

}  // namespace strata
