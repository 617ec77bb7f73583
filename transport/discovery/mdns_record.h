// A node's record in DNS-SD: the instance's name and the TXT strings. Bytes in, bytes out; the
// input is untrusted. Any thread. Source: RFC 6763, sections 4.1 and 6.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "transport/discovery/discovery.h"

namespace strata {

inline constexpr char kMdnsServiceType[] = "_strata._tcp";

// The name that service browsers show to people: the node's name and the start of its id, which
// makes it unique. At most 63 bytes, the limit of a DNS label.
std::string MdnsInstanceName(const DiscoveryRecord& self);

// "key=value", each at most 255 bytes.
std::vector<std::string> MdnsText(const DiscoveryRecord& self, uint16_t port);

// Whether `record` is from the process that announces `self`.
inline bool IsOwnRecord(const DiscoveryRecord& record, const DiscoveryRecord& self) {
  return record.node_id == self.node_id && (record.nonce == 0 || record.nonce == self.nonce);
}

// Reads all fields but the addresses. kInvalidArgument when the record is not a node's. Unknown
// keys are skipped, and the first of a duplicate key counts.
absl::StatusOr<DiscoveryRecord> ParseMdnsText(const std::vector<absl::string_view>& strings);

}  // namespace strata
