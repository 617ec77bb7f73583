// The messages of `strata doctor` about failed connections, and the commands that allow them. Pure
// functions; any thread.
#pragma once

#include <string>
#include <vector>

#include "proto/doctor.pb.h"

namespace strata {

// Describes a try that found no node, for the middle of a sentence: "10.0.0.2:7400 is refused: …".
std::string ReachText(const wire::ReachResult& result);

// The try whose outcome says most about the fault. REQUIRES: one or more.
const wire::ReachResult& MostInformative(const std::vector<wire::ReachResult>& tries);

// Advice for a person at the machine called `machine`.
struct ReachAdviceOptions {
  std::string machine;
  bool node_port = true;  // it is a node's own port, not one that the system chose
  wire::MachineFacts::Firewall firewall = wire::MachineFacts::NONE_SEEN;  // seen on that machine
};
std::string ReachAdvice(const wire::ReachResult& result, const ReachAdviceOptions& options);

// Lines of commands that let TCP from `from_host` in, for the given firewall, or for each common
// one if none was seen. For all ports: links use ports that the system chooses.
std::string AllowTcp(const std::string& from_host, wire::MachineFacts::Firewall firewall);
// The same for mDNS.
std::string AllowMdns(wire::MachineFacts::Firewall firewall);

}  // namespace strata
