// Checks of the cluster, its nodes, and the links between them.
#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "coordinator/cluster/shared_ids.h"
#include "node/doctor/doctor_advice.h"
#include "node/doctor/doctor_checks.h"
#include "transport/base/peer_addresses.h"

namespace strata {
namespace {

using State = Check::State;

// Clocks of one network agree within milliseconds if NTP or the like sets them.
constexpr int64_t kClockOffUs = 1'000'000;

std::string NameOf(const NodeFacts& node) {
  if (!node.name().empty()) return node.name();
  return absl::BytesToHexString(node.id()).substr(0, 8);
}

std::string NameOf(const DoctorFacts& facts, const std::string& id) {
  for (const wire::ClusterNode& node : facts.cluster.nodes()) {
    if (node.record().node_id() == id) return node.record().name();
  }
  return absl::BytesToHexString(id).substr(0, 8);
}

wire::MachineFacts::Firewall FirewallOf(const DoctorFacts& facts, const NodeFacts& node) {
  if (node.here) return facts.here.firewall();
  return node.machine.has_value() ? node.machine->firewall() : wire::MachineFacts::NONE_SEEN;
}

std::string Seconds(int64_t us) { return absl::StrFormat("%.1f s", static_cast<double>(us) / 1e6); }

// Returns true if the node that was called is refused.
bool CheckIds(const DoctorFacts& facts, std::vector<Check>* checks) {
  std::vector<const wire::GetClusterResponse*> seen = {&facts.cluster};
  for (const NodeFacts& node : facts.nodes) seen.push_back(&node.sees);
  bool refused = false;
  for (const wire::SharedId& shared : AllSharedIds(seen)) {
    refused = refused || shared.asked_is_refused();
    checks->push_back({.id = "same-id",
                       .target = facts.cluster.cluster(),
                       .state = State::kWrong,
                       .text = SharedIdMessage(shared),
                       .advice = ""});
  }
  for (std::string& problem : SharedNameProblems(facts.cluster)) {
    checks->push_back({.id = "same-name",
                       .target = facts.cluster.cluster(),
                       .state = State::kNote,
                       .text = std::move(problem),
                       .advice = ""});
  }
  return refused;
}

void CheckCoordinators(const DoctorFacts& facts, std::vector<Check>* checks) {
  const std::string& cluster = facts.cluster.cluster();
  if (CheckIds(facts, checks)) return;
  if (facts.cluster.coordinator().empty()) {
    checks->push_back(
        {.id = "coordinator",
         .target = cluster,
         .state = State::kWrong,
         .text = "no node coordinates at present",
         .advice = "Nodes agree within seconds once they reach each other in both directions: "
                   "try again, then see below which don't."});
    return;
  }
  for (const NodeFacts& node : facts.nodes) {
    if (!node.status.ok() || !node.known || node.sees.coordinator().empty() ||
        node.sees.coordinator() == facts.cluster.coordinator()) {
      continue;
    }
    checks->push_back(
        {.id = "coordinator",
         .target = cluster,
         .state = State::kWrong,
         .text = absl::StrCat("the cluster is in parts: ", NameOf(facts.nodes[0]), " follows ",
                              NameOf(facts, facts.cluster.coordinator()), ", ", NameOf(node),
                              " follows ", NameOf(facts, node.sees.coordinator())),
         .advice =
             "Parts join once all their nodes reach each other in both directions: see below which "
             "don't."});
    return;
  }
  checks->push_back({.id = "coordinator",
                     .target = cluster,
                     .state = State::kOk,
                     .text = absl::StrCat(NameOf(facts, facts.cluster.coordinator()),
                                          " coordinates ", facts.cluster.nodes_size(),
                                          facts.cluster.nodes_size() == 1 ? " node" : " nodes"),
                     .advice = ""});
}

// Nodes that announce themselves here and are not in the cluster.
void CheckHeard(const DoctorFacts& facts, std::vector<Check>* checks) {
  for (const DiscoveryRecord& record : facts.heard) {
    const std::string at = absl::StrJoin(record.addresses, ", ");
    const bool known = std::any_of(
        facts.cluster.nodes().begin(), facts.cluster.nodes().end(), [&](const auto& node) {
          return absl::BytesToHexString(node.record().node_id()) == record.node_id;
        });
    if (known) continue;
    if (record.cluster != facts.cluster.cluster()) {
      checks->push_back(
          {.id = "other-cluster",
           .target = record.name.str(),
           .state = State::kNote,
           .text = absl::StrCat("(", at, ") is a node of cluster ", record.cluster, ", not of ",
                                facts.cluster.cluster()),
           .advice = absl::StrCat("If it should be in this one, start it there with: strata node "
                                  "--cluster ",
                                  facts.cluster.cluster())});
    } else if (record.waits && !facts.cluster.key_id().empty()) {
      checks->push_back({.id = "waiting",
                         .target = record.name.str(),
                         .state = State::kNote,
                         .text = absl::StrCat("(", at, ") has no key and waits to be admitted"),
                         .advice = absl::StrCat("If it is yours: strata approve ", record.name)});
    } else if (record.key_id != facts.cluster.key_id()) {
      checks->push_back(
          {.id = "other-key",
           .target = record.name.str(),
           .state = State::kNote,
           .text = absl::StrCat("(", at, ") has ",
                                record.key_id.empty() ? "no key (--open)" : "another key",
                                ": it is of another cluster"),
           .advice = absl::StrCat("If it should be in this one, stop it, move away the file "
                                  "cluster_key in its data dir, start it again",
                                  facts.cluster.key_id().empty()
                                      ? " with --open."
                                      : " without --open, and admit it: strata approve.")});
    } else if (!facts.nodes.empty() && facts.nodes[0].here) {
      checks->push_back({.id = "unknown-node",
                         .target = record.name.str(),
                         .state = State::kWrong,
                         .text = absl::StrCat("(", at, ") announces itself, but ",
                                              NameOf(facts.nodes[0]), " does not know it"),
                         .advice = absl::StrCat("To find out why: strata doctor ", record.name)});
    }
  }
}

void CheckVersionsOf(const DoctorFacts& facts, std::vector<Check>* checks) {
  const wire::Versions& own = facts.versions;
  size_t same = 0;
  for (const NodeFacts& node : facts.nodes) {
    if (!node.status.ok()) continue;
    const wire::Versions& its = node.info.versions();
    Check check = {.id = "versions",
                   .target = NameOf(node),
                   .state = State::kWrong,
                   .text = "",
                   .advice = "Install the same versions on all machines."};
    if (its.protocol() != own.protocol()) {
      check.text = absl::StrCat("uses protocol ", its.protocol(), ", this program ", own.protocol(),
                                ": they cannot work together");
    } else if (its.llama() != own.llama() || its.ggml() != own.ggml()) {
      check.text =
          absl::StrCat("has libllama ", its.llama(), " and libggml ", its.ggml(), ", this program ",
                       own.llama(), " and ", own.ggml(),
                       ": models are shared only with --allow-mixed-versions, at each node and "
                       "at load or run");
    } else if (its.strata() != own.strata()) {
      check.state = State::kNote;
      check.text = absl::StrCat("has strata ", its.strata(), ", this program ", own.strata());
    } else {
      ++same;
      continue;
    }
    checks->push_back(std::move(check));
  }
  if (same == 0) return;
  checks->push_back({.id = "versions",
                     .target = facts.cluster.cluster(),
                     .state = State::kOk,
                     .text = absl::StrFormat("%d %s the same versions as this program", same,
                                             same == 1 ? "node has" : "nodes have"),
                     .advice = ""});
}

void CheckClocks(const DoctorFacts& facts, std::vector<Check>* checks) {
  int64_t largest_us = 0;
  size_t compared = 0;
  for (const NodeFacts& node : facts.nodes) {
    if (!node.clock.has_value() || node.here) continue;
    ++compared;
    const int64_t off_us = std::abs(node.clock->offset_us);
    largest_us = std::max(largest_us, off_us);
    if (off_us - node.clock->delay_us / 2 <= kClockOffUs) continue;
    checks->push_back({.id = "clock",
                       .target = NameOf(node),
                       .state = State::kNote,
                       .text = absl::StrCat("its clock is ", Seconds(off_us),
                                            node.clock->offset_us > 0 ? " ahead of" : " behind",
                                            " this machine's; that matters only for certificates "
                                            "and for comparing logs"),
                       .advice = "Let the network set the clocks (Linux: sudo timedatectl set-ntp "
                                 "true)."});
  }
  if (compared == 0 || largest_us > kClockOffUs) return;
  checks->push_back({.id = "clock",
                     .target = facts.cluster.cluster(),
                     .state = State::kOk,
                     .text = absl::StrFormat("clocks agree within %.0f ms",
                                             std::max(1.0, static_cast<double>(largest_us) / 1e3)),
                     .advice = ""});
}

void CheckDevices(const NodeFacts& node, std::vector<Check>* checks) {
  std::vector<std::string> names;
  for (const wire::DeviceInfo& device : node.info.devices()) {
    names.push_back(device.name());
    if (device.problem().empty()) continue;
    checks->push_back({.id = "device",
                       .target = absl::StrCat(NameOf(node), "/", device.name()),
                       .state = State::kWrong,
                       .text = absl::StrCat("is not used: ", device.problem()),
                       .advice = "Run 'strata probe' on that machine to see more."});
  }
  Check check = {.id = "devices",
                 .target = NameOf(node),
                 .state = names.empty() ? State::kNote : State::kOk,
                 .text = "",
                 .advice = ""};
  if (!names.empty()) {
    check.text = absl::StrCat("computes on ", absl::StrJoin(names, ", "),
                              node.info.measuring() ? "; still measuring" : "");
  } else {
    check.text = node.info.measuring()
                     ? "is still looking for its devices"
                     : "measures no devices: plans leave it out (--no-measure, or just started)";
  }
  checks->push_back(std::move(check));
}

// The node's own complaints: models that it cannot serve, a machine that is short of memory.
void CheckProblems(const NodeFacts& node, std::vector<Check>* checks) {
  for (const std::string& problem : node.info.problems()) {
    checks->push_back({.id = "problem",
                       .target = NameOf(node),
                       .state = State::kWrong,
                       .text = problem,
                       .advice = ""});
  }
}

void CheckState(const DoctorFacts& facts, const NodeFacts& node, std::vector<Check>* checks) {
  const std::string& state = node.seen.state();
  Check check = {
      .id = "node", .target = NameOf(node), .state = State::kWrong, .text = "", .advice = ""};
  if (!node.status.ok() && !node.tries.empty()) {
    const wire::ReachResult& tried = MostInformative(node.tries);
    check.advice = tried.has_who() ? "It got another address: try again in some seconds."
                                   : ReachAdvice(tried, {.machine = NameOf(node)});
  }
  const std::string heard =
      node.seen.last_heard_ms() < 0
          ? "was never heard"
          : absl::StrCat("was last heard ", Seconds(node.seen.last_heard_ms() * 1000), " ago");
  if (state == "other version") {
    check.text = absl::StrCat("uses protocol ", node.seen.record().versions().protocol(),
                              ", the cluster ", facts.versions.protocol(), ": it is not used");
    check.advice = "Install the same version of strata on all machines.";
  } else if (state != "alive" && node.known) {
    check.text = absl::StrCat("is ", state, " to ", NameOf(facts.nodes[0]), ", ", heard, "; ",
                              node.status.ok() ? absl::StrCat("it answers here, at ", node.address)
                                               : std::string(node.status.message()));
  } else if (!node.status.ok()) {
    check.text = absl::StrCat("does not answer this program: ", node.status.message());
  } else {
    check.state = State::kOk;
    check.text = absl::StrCat("answers at ", node.address);
    if (!node.through.empty()) {
      // Expected from outside; from a node's machine it is unusual, but harmless.
      if (!facts.outside) check.state = State::kNote;
      check.text = absl::StrCat(
          "answers through ", NameOf(facts.nodes[0]), ", not to this program",
          node.tries.empty() ? ""
                             : absl::StrCat(" (", ReachText(MostInformative(node.tries)), ")"));
    }
    if (node.clock.has_value()) {
      absl::StrAppendFormat(&check.text, " in %.1f ms",
                            static_cast<double>(node.clock->delay_us) / 1e3);
    }
  }
  checks->push_back(std::move(check));
}

// Checks how `from` reaches one other node.
void CheckLink(const DoctorFacts& facts, const NodeFacts& from, size_t to, int* fine,
               std::vector<Check>* checks) {
  const NodeFacts& other = facts.nodes[to];
  Check check = {.id = "way",
                 .target = absl::StrCat(NameOf(from), " -> ", NameOf(other)),
                 .state = State::kWrong,
                 .text = "",
                 .advice = ""};
  const ReachAdviceOptions port = {
      .machine = NameOf(other), .node_port = true, .firewall = FirewallOf(facts, other)};
  std::vector<wire::ReachResult> failed, doors;
  std::set<std::string> hosts;  // where it answers
  for (const LinkFacts& link : from.links) {
    if (link.to != to || link.door) continue;
    if (link.result.has_who() && link.result.who().node_id() == other.id()) {
      if (const auto at = ParseHostPort(link.result.address()); at.ok()) hosts.insert(at->host);
    } else if (link.result.outcome() != wire::ReachResult::NOT_ALLOWED) {
      failed.push_back(link.result);
    }
  }
  bool door_open = false;
  for (const LinkFacts& link : from.links) {
    if (link.to != to || !link.door) continue;
    const auto at = ParseHostPort(link.result.address());
    if (!at.ok() || !hosts.contains(at->host)) continue;
    doors.push_back(link.result);
    door_open |= link.result.outcome() == wire::ReachResult::CONNECTED;
  }
  if (hosts.empty() && failed.empty()) {
    check.state = State::kNote;
    check.text = absl::StrCat(NameOf(from), " knows no address of ", NameOf(other),
                              ", so this link was not tried");
  } else if (hosts.empty()) {
    const wire::ReachResult& tried = MostInformative(failed);
    if (tried.has_who()) {
      check.text = absl::StrCat("another node answers at ", tried.address());
      check.advice =
          absl::StrCat("The address was given to another machine. Start the node on ",
                       NameOf(other), " again, or give it a fixed address in the router.");
    } else {
      check.text = ReachText(tried);
      check.advice = ReachAdvice(tried, port);
    }
  } else if (!doors.empty() && !door_open) {
    const wire::ReachResult& tried = MostInformative(doors);
    ReachAdviceOptions door = port;
    door.node_port = false;
    check.id = "way-links";
    check.text = absl::StrCat(
        "its node port is reached, but not the ports that the system chooses "
        "for links between stages: ",
        ReachText(tried));
    check.advice =
        tried.outcome() == wire::ReachResult::REFUSED
            ? absl::StrCat("On ", NameOf(other), ", let TCP from ", tried.from_host(),
                           " in, on all ports:", AllowTcp(tried.from_host(), door.firewall))
            : ReachAdvice(tried, door);
  } else {
    ++*fine;
    return;
  }
  checks->push_back(std::move(check));
}

}  // namespace

void CheckCluster(const DoctorFacts& facts, std::vector<Check>* checks) {
  if (!facts.cluster_status.ok()) {
    // With no node here, CheckThisMachine() has reported that already.
    if (facts.outside || !facts.first_address.empty()) {
      checks->push_back({.id = "cluster",
                         .target = facts.first_address,
                         .state = State::kWrong,
                         .text = std::string(facts.cluster_status.message()),
                         .advice = ""});
    }
    return;
  }
  CheckCoordinators(facts, checks);
  if (facts.cluster.nodes_size() == 1 && !facts.target.has_value() && !facts.host.has_value()) {
    checks->push_back({.id = "alone",
                       .target = facts.cluster.cluster(),
                       .state = State::kNote,
                       .text = "it is the only node: no other one is known",
                       .advice = "Start 'strata node' on another machine of this network. If it "
                                 "runs there and is not seen: strata doctor HOST:PORT, with the "
                                 "address that it prints when it starts."});
  }
  if (!facts.host.has_value()) CheckHeard(facts, checks);
}

void CheckNodes(const DoctorFacts& facts, std::vector<Check>* checks) {
  for (const NodeFacts& node : facts.nodes) {
    if (!node.known) continue;
    CheckState(facts, node, checks);
    if (!node.status.ok()) continue;
    CheckDevices(node, checks);
    CheckProblems(node, checks);
    if (node.machine.has_value()) CheckMachine(NameOf(node), *node.machine, checks);
  }
  CheckVersionsOf(facts, checks);
  CheckClocks(facts, checks);
}

void CheckLinks(const DoctorFacts& facts, std::vector<Check>* checks) {
  for (size_t i = 0; i < facts.nodes.size() && facts.nodes.size() > 1; ++i) {
    const NodeFacts& from = facts.nodes[i];
    if (!from.status.ok()) continue;
    if (!from.links_status.ok()) {
      checks->push_back({.id = "way",
                         .target = NameOf(from),
                         .state = State::kNote,
                         .text = absl::StrCat("cannot report which nodes it reaches: ",
                                              from.links_status.message()),
                         .advice = ""});
      continue;
    }
    int fine = 0, tried = 0;
    for (size_t to = 0; to < facts.nodes.size(); ++to) {
      // A node that does not answer here either was reported above; elsewhere it may differ.
      if (to == i || (!facts.nodes[to].status.ok() && (i != 0 || from.here))) continue;
      ++tried;
      CheckLink(facts, from, to, &fine, checks);
    }
    if (tried > 0 && fine == tried) {
      checks->push_back({.id = "way",
                         .target = NameOf(from),
                         .state = State::kOk,
                         .text = absl::StrFormat("reaches %s, node and link ports",
                                                 tried == 1 ? "the other node" : "all others"),
                         .advice = ""});
    }
    const auto& own = facts.here.interfaces();
    const bool translated =
        facts.nodes[0].here && i != 0 && !from.sees_us_as.empty() &&
        !IsLoopbackHost(from.sees_us_as) &&
        std::none_of(own.begin(), own.end(), [&](const wire::InterfaceFacts& each) {
          return absl::c_linear_search(each.ips(),
                                       from.sees_us_as.substr(0, from.sees_us_as.find('%')));
        });
    if (!translated) continue;
    checks->push_back(
        {.id = "translation",
         .target = NameOf(from),
         .state = State::kNote,
         .text = absl::StrCat("sees this machine as ", from.sees_us_as,
                              ", which is none of its addresses: a router, VPN or container "
                              "translates addresses in between"),
         .advice = absl::StrCat("If it cannot connect back, start the node here with --listen "
                                "[::]:7400 --advertise ",
                                from.sees_us_as, " and forward port 7400 to it.")});
  }
}

}  // namespace strata
