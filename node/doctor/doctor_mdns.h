// Checks multicast DNS on each interface: joins the groups, queries for nodes, and listens for its
// own query and for answers of others. Has sockets of its own, beside other users of port 5353.
// Blocks for as long as it listens; never on the loop. Source: RFC 6762.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/doctor.pb.h"

namespace strata {

// Fills in `groups` of each interface (those that are up and have multicast), and the error of
// sharing the port. Listens for `listen_ms` after the first query; another query follows half-way,
// since multicast may get lost.
struct MdnsCheckOptions {
  int64_t listen_ms = 1'500;
  std::function<bool()> cancelled;  // called often; may be null
};
void CheckMdns(const MdnsCheckOptions& options, wire::MachineFacts* machine);

// A query for nodes, with an id by which it is recognized.
std::string MdnsQuery(uint16_t id);

// The kind of a packet from the network.
enum class MdnsPacket { kOther, kOwnQuery, kAnnouncesNodes };
MdnsPacket ClassifyMdns(absl::string_view packet, uint16_t own_id);

}  // namespace strata
