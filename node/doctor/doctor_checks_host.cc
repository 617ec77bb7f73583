// Checks of a machine that the user named and that the cluster does not know.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "node/doctor/doctor_advice.h"
#include "node/doctor/doctor_checks.h"
#include "node/doctor/doctor_collect.h"

namespace strata {
namespace {

using State = Check::State;

void CheckName(const HostFacts& host, std::vector<Check>* checks) {
  if (host.resolved.ok()) {
    // A numeric address needs no check.
    if (host.ips.size() == 1 && host.ips[0] == host.host) return;
    checks->push_back({.id = "name",
                       .target = host.host,
                       .state = State::kOk,
                       .text = absl::StrCat("is ", absl::StrJoin(host.ips, ", ")),
                       .advice = ""});
    return;
  }
  // Names of nodes need not be names of machines.
  const bool heard = !host.heard.empty();
  std::string advice;
  if (!heard) {
    advice =
        "Give its address instead (strata doctor 192.168.1.7:7400): 'ip address' on it, its "
        "network settings, or the router show it.";
    if (absl::EndsWith(host.host, ".local")) {
      advice += " Names in .local need mDNS in the system, too (libnss-mdns on Linux).";
    }
  }
  checks->push_back(
      {.id = "name",
       .target = host.host,
       .state = heard ? State::kNote : State::kWrong,
       .text = absl::StrCat(heard ? "is the name of a node, but of no machine ("
                                  : "no node that is known and no machine has this name (",
                            host.resolved.message(), ")"),
       .advice = std::move(advice)});
}

// Finds out why a node that answers is not in the cluster.
void CheckUnknownNode(const DoctorFacts& facts, const NodeFacts& node, std::vector<Check>* checks) {
  const std::string& its = node.seen.record().cluster();
  const std::string& ours = facts.cluster.cluster();
  const uint32_t protocol = node.seen.record().versions().protocol();
  Check check = {
      .id = "host", .target = facts.host->host, .state = State::kWrong, .text = "", .advice = ""};
  const std::string who = absl::StrCat("a node", node.name().empty() ? "" : " called ", node.name(),
                                       " answers at ", node.address);
  if (protocol != facts.versions.protocol()) {
    check.text =
        absl::StrCat(who, ", but uses protocol ", protocol, ", not ", facts.versions.protocol());
    check.advice = "Install the same version of strata on both machines.";
  } else if (!facts.cluster_status.ok()) {
    check.state = State::kOk;
    check.text = absl::StrCat(who, ", of cluster ", its);
  } else if (its != ours) {
    check.text = absl::StrCat(who, ", but it is in cluster ", its, ", not in ", ours);
    check.advice = absl::StrCat("Start it there with: strata node --cluster ", ours, "\n",
                                "or this one with:         strata node --cluster ", its);
  } else {
    bool wireless = false;
    for (const wire::InterfaceFacts& each : facts.here.interfaces()) wireless |= each.wireless();
    check.text = absl::StrCat(
        who, " and is in the same cluster, but ",
        facts.nodes[0].name().empty() ? "the node that answered" : facts.nodes[0].name(),
        " has not heard of it: mDNS does not get from one to the other");
    check.advice = absl::StrCat(
        "Start the node here with: strata node --peer ", node.address,
        wireless
            ? "\nOr let the router pass multicast between Wi-Fi and cable: settings such as AP "
              "isolation, client isolation or IGMP snooping may block it."
            : "");
  }
  checks->push_back(std::move(check));
}

}  // namespace

void CheckHost(const DoctorFacts& facts, std::vector<Check>* checks) {
  if (!facts.host.has_value()) return;
  const HostFacts& host = *facts.host;
  CheckName(host, checks);
  if (facts.target.has_value()) return CheckUnknownNode(facts, facts.nodes[*facts.target], checks);
  for (const DiscoveryRecord& record : host.heard) {
    checks->push_back(
        {.id = "heard",
         .target = host.host,
         .state = State::kOk,
         .text = absl::StrCat("announces itself by mDNS as node ", record.name, " of cluster ",
                              record.cluster, " at ", absl::StrJoin(record.addresses, ", ")),
         .advice = ""});
  }
  if (host.tries.empty()) return;
  const wire::ReachResult& tried = MostInformative(host.tries);
  Check check = {.id = "host",
                 .target = host.host,
                 .state = State::kWrong,
                 .text = ReachText(tried),
                 .advice = ReachAdvice(tried, {.machine = host.host})};
  if (host.port_guessed) {
    absl::StrAppend(&check.text, "; the port was a guess");
    check.advice = absl::StrCat(
        "If a node runs there, use the port that it printed when it "
        "started: strata doctor ",
        host.host, ":PORT. ", check.advice);
  }
  checks->push_back(std::move(check));
}

}  // namespace strata
