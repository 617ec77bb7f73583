// What `strata doctor` says of connections that fail, and the commands that let them through. Pure
// functions; any thread.
#pragma once

#include <string>
#include <vector>

#include "proto/doctor.pb.h"

namespace strata {

// Of a try that found no node, in the middle of a sentence: "10.0.0.2:7400 is refused: …".
std::string ReachWords(const wire::ReachResult& result);

// The try that says most about what is wrong, of one or more.
const wire::ReachResult& MostTelling(const std::vector<wire::ReachResult>& tries);

// What to do about it on the machine called `machine`.
struct ReachAdviceOptions {
  std::string machine;
  bool node_port = true;  // a node's own, not one that the system chose
  wire::MachineFacts::Firewall firewall = wire::MachineFacts::NONE_SEEN;  // seen on that machine
};
std::string ReachAdvice(const wire::ReachResult& result, const ReachAdviceOptions& options);

// Lines of commands that let TCP from `from_host` in, for the firewall seen or for each there may
// be. All ports: links use ones that the system chooses.
std::string AllowTcp(const std::string& from_host, wire::MachineFacts::Firewall firewall);
// The same for mDNS.
std::string AllowMdns(wire::MachineFacts::Firewall firewall);

}  // namespace strata
