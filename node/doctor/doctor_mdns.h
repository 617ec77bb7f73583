// Whether multicast DNS works on each interface: joins the groups, asks for nodes, and listens for
// the own question and for answers of others. Sockets of its own, beside whatever else uses port
// 5353. Blocks for as long as it listens; never on the loop. Source: RFC 6762.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/doctor.pb.h"

namespace strata {

// Fills in `groups` of each interface (those that are up and have multicast), and the error of
// sharing the port. Listens for `listen_ms` after the first question; another one follows half-way,
// since multicast gets lost.
struct MdnsCheckOptions {
  int64_t listen_ms = 1'500;
  std::function<bool()> cancelled;  // asked often; may be null
};
void CheckMdns(const MdnsCheckOptions& options, wire::MachineFacts* machine);

// One question for nodes, with an id to know it by.
std::string MdnsQuestion(uint16_t id);

// What a packet from the network is, as far as the check wants to know.
enum class MdnsPacket { kOther, kOwnQuestion, kTellsOfNodes };
MdnsPacket LookAtMdns(absl::string_view packet, uint16_t own_id);

}  // namespace strata
