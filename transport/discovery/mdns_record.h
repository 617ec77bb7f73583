// A node's record as DNS-SD carries it: the instance's name and the TXT strings. Bytes in, bytes
// out; nothing that comes in is trusted. Any thread. Source: RFC 6763, sections 4.1 and 6.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "transport/discovery/discovery.h"

namespace strata {

inline constexpr char kMdnsServiceType[] = "_strata._tcp";

// What people see in a browser of services: the node's name and the start of its id, which makes it
// unique. At most 63 bytes, as DNS wants it.
std::string MdnsInstanceName(const DiscoveryRecord& self);

// "key=value", each at most 255 bytes.
std::vector<std::string> MdnsText(const DiscoveryRecord& self, uint16_t port);

// Whether it is of the process that announces `self`.
inline bool IsOwnRecord(const DiscoveryRecord& record, const DiscoveryRecord& self) {
  return record.node_id == self.node_id && (record.nonce == 0 || record.nonce == self.nonce);
}

// All but the addresses. kInvalidArgument when it is not a node's. Keys that are not known are
// skipped, and of those that come twice the first counts.
absl::StatusOr<DiscoveryRecord> ParseMdnsText(const std::vector<absl::string_view>& strings);

}  // namespace strata
