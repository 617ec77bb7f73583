#include "node/doctor/doctor_checks.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "node/doctor/doctor_advice.h"

namespace strata {
namespace {

using State = Check::State;

constexpr uint64_t kMemoryFreeMin = 512ull << 20;
constexpr uint64_t kDataFreeMin = 1ull << 30;
constexpr char kThisMachine[] = "this machine";
constexpr char kPeerAdvice[] =
    "Nodes over it are found by their address only: strata node --peer HOST:PORT, on one of the "
    "two machines.";

std::string Gib(uint64_t bytes) {
  return absl::StrFormat("%.1f GiB", static_cast<double>(bytes) / (1ull << 30));
}

// The fault of multicast for one version of IP; empty: none.
std::string Problem(const wire::MulticastFacts& group) {
  if (!group.join_error().empty()) {
    return absl::StrCat("the group of mDNS cannot be joined (", group.join_error(), ")");
  }
  if (!group.send_error().empty()) {
    return absl::StrCat("mDNS cannot be sent (", group.send_error(),
                        "): a firewall of this machine may forbid it");
  }
  if (!group.heard_self()) {
    return "mDNS is sent but not received, not even this machine's own packets: a firewall of this "
           "machine drops UDP port 5353";
  }
  return "";
}

void CheckInterface(const std::string& name, const wire::InterfaceFacts& interface,
                    const wire::MachineFacts& machine, std::vector<Check>* checks) {
  Check check = {.id = "multicast",
                 .target = absl::StrCat(name, " ", interface.name()),
                 .state = State::kNote,
                 .text = "",
                 .advice = ""};
  const std::string ips = absl::StrJoin(interface.ips(), ", ");
  if (!interface.up()) {
    if (interface.ips().empty()) return;
    check.text = absl::StrCat("is down, or its cable or Wi-Fi is out (", ips, ")");
  } else if (interface.ips().empty()) {
    check.text = "has no address";
  } else if (!interface.multicast() || interface.point_to_point()) {
    check.text = absl::StrCat(ips, ": carries no multicast, as tunnels (VPN) don't");
    check.advice = kPeerAdvice;
  } else {
    std::string problem;
    uint32_t heard = 0;
    int works = 0;
    for (const wire::MulticastFacts& group : interface.groups()) {
      if (group.not_tried()) continue;
      const std::string found = Problem(group);
      heard = std::max(heard, group.heard_nodes());
      if (found.empty()) {
        ++works;
      } else if (problem.empty()) {
        problem = absl::StrCat(group.ipv6() ? "IPv6: " : "IPv4: ", found);
      }
    }
    if (works == 0 && problem.empty()) {
      check.text = absl::StrCat(ips, ": multicast was not tried");
    } else if (works == 0) {
      check.state = State::kWrong;
      check.text = absl::StrCat(ips, ": ", problem);
      check.advice = absl::StrCat(
          "Let mDNS in and out, or name a node by its address (strata node --peer HOST:PORT):",
          AllowMdns(machine.firewall()));
    } else {
      check.state = State::kOk;
      check.text =
          absl::StrCat(ips, ": multicast works",
                       heard == 0 ? ", no other machine tells of a node"
                                  : absl::StrFormat(", nodes are heard from %d other address%s",
                                                    heard, heard == 1 ? "" : "es"),
                       problem.empty() ? "" : absl::StrCat(" (but ", problem, ")"));
    }
  }
  checks->push_back(std::move(check));
}

// True if `device` is a card of this maker.
bool IsCardOf(const std::string& maker, const wire::DeviceInfo& device) {
  if (device.kind() == wire::DeviceInfo::CPU) return false;
  if (maker == "NVIDIA" && absl::StartsWith(device.name(), "CUDA")) return true;
  if (maker == "AMD" && absl::StartsWith(device.name(), "ROCm")) return true;
  return absl::StrContainsIgnoreCase(device.description(), maker);
}

// The devices that ggml finds, and the cards that it does not find.
void CheckMachineDevices(const std::string& name, const wire::MachineFacts& machine,
                         std::vector<Check>* checks) {
  if (!machine.devices_error().empty()) {
    checks->push_back({.id = "machine-devices",
                       .target = name,
                       .state = State::kWrong,
                       .text = machine.devices_error(),
                       .advice = "Run 'strata probe' on that machine to see more."});
    return;
  }
  if (machine.devices().empty()) return;  // not listed
  std::vector<std::string> devices;
  for (const wire::DeviceInfo& device : machine.devices()) {
    devices.push_back(absl::StrCat(device.name(), " (", device.description(), ")"));
  }
  Check check = {.id = "machine-devices",
                 .target = name,
                 .state = State::kOk,
                 .text = absl::StrCat("ggml finds ", absl::StrJoin(devices, ", ")),
                 .advice = ""};
  for (const std::string& card : machine.cards()) {
    const bool seen = absl::c_any_of(machine.devices(), [&card](const wire::DeviceInfo& device) {
      return IsCardOf(card, device);
    });
    if (seen) continue;
    check.state = State::kNote;
    absl::StrAppend(&check.text, "; there is a card of ", card, ", which it does not see");
    check.advice =
        absl::StrCat("Install its driver, then ggml's plug-in for it: sudo scripts/setup gpu",
                     card == "NVIDIA" ? ""
                                      : " test (which has Vulkan's drivers), and see that you may "
                                        "open /dev/dri/renderD128 (the group 'render')",
                     "; on Debian forky apt has the plug-ins, too (see DEVICES.md).");
    break;
  }
  checks->push_back(std::move(check));
}

}  // namespace

void CheckMachine(const std::string& name, const wire::MachineFacts& machine,
                  std::vector<Check>* checks) {
  if (!machine.mdns_port_error().empty()) {
    checks->push_back(
        {.id = "mdns-port",
         .target = name,
         .state = State::kWrong,
         .text = absl::StrCat("UDP port 5353 cannot be shared (", machine.mdns_port_error(),
                              "): a program keeps it for itself, so no node is found by mDNS"),
         .advice = "See which one it is, and let it share the port (avahi-daemon: "
                   "disallow-other-stacks=no) or stop it; or name a node by its address (strata "
                   "node --peer HOST:PORT).\n"
                   "Linux:     sudo ss -ulpn sport = :5353\n"
                   "macOS:     sudo lsof -nP -iUDP:5353"});
  }
  bool on_network = false, has_multicast = false;
  for (const wire::InterfaceFacts& interface : machine.interfaces()) {
    const bool works = interface.up() && !interface.ips().empty();
    on_network |= works;
    has_multicast |= works && interface.multicast() && !interface.point_to_point();
    // A taken port, the fault of all of them, was reported above.
    if (machine.mdns_port_error().empty()) CheckInterface(name, interface, machine, checks);
  }
  if (!has_multicast) {
    checks->push_back(
        {.id = "network",
         .target = name,
         .state = State::kWrong,
         .text = on_network ? "none of its networks carries multicast: mDNS finds no node"
                            : "it is on no network",
         .advice = on_network
                       ? "Name one node by its address, on one side of each pair that should "
                         "meet: strata node --peer HOST:PORT. Nodes learn of the others from "
                         "each other."
                       : "Plug a cable in, or join the Wi-Fi."});
  }
  const bool limited = machine.memory_limit_bytes() + kMemoryFreeMin < machine.memory_bytes();
  const bool tight = machine.memory_free_bytes() < kMemoryFreeMin;
  checks->push_back(
      {.id = "memory",
       .target = name,
       .state = tight ? State::kWrong : State::kOk,
       .text =
           absl::StrCat(Gib(machine.memory_free_bytes()), " of ", Gib(machine.memory_limit_bytes()),
                        " of memory are free",
                        limited ? absl::StrCat("; the machine has ", Gib(machine.memory_bytes()),
                                               ", but a control group allows no more")
                                : ""),
       .advice =
           tight ? "Close programs, or raise the limit of its control group or container." : ""});
  CheckMachineDevices(name, machine, checks);
  if (machine.data_dir().empty()) return;
  const bool writable = machine.data_error().empty();
  const bool full = machine.data_free_bytes() < kDataFreeMin;
  Check data = {.id = "data",
                .target = name,
                .state = writable && !full ? State::kOk : State::kWrong,
                .text = "",
                .advice = ""};
  if (!writable) {
    data.text =
        absl::StrCat("nothing can be written to ", machine.data_dir(), ": ", machine.data_error());
    data.advice =
        "Make the folder yours (sudo chown -R \"$USER\" FOLDER), or give the node another "
        "one with --data-dir.";
  } else {
    data.text = absl::StrCat(machine.data_dir(), " can be written to, ",
                             Gib(machine.data_free_bytes()), " are free");
    if (full) {
      data.advice =
          "Free some space, or store weights on another disk: strata node --cache-dir FOLDER.";
    }
  }
  checks->push_back(std::move(data));
}

void CheckThisMachine(const DoctorFacts& facts, std::vector<Check>* checks) {
  const wire::Versions& own = facts.versions;
  checks->push_back({.id = "program",
                     .target = kThisMachine,
                     .state = State::kOk,
                     .text = absl::StrCat("strata ", own.strata(), ", protocol ", own.protocol(),
                                          ", libllama ", own.llama(), ", libggml ", own.ggml()),
                     .advice = ""});
  if (facts.outside) return;
  if (facts.cluster_status.ok() && !facts.nodes.empty() && facts.nodes[0].here) {
    checks->push_back({.id = "here",
                       .target = kThisMachine,
                       .state = State::kOk,
                       .text = absl::StrCat("a node runs here, ", facts.nodes[0].name(),
                                            ", and answers at ", facts.first_address),
                       .advice = ""});
  } else {
    std::string text = "no node runs here";
    if (!facts.last_address.empty()) {
      absl::StrAppend(&text, ": nothing answers at ", facts.last_address,
                      ", where the last one listened");
    }
    checks->push_back({.id = "here",
                       .target = kThisMachine,
                       .state = State::kWrong,
                       .text = std::move(text),
                       .advice = "Start one: strata node. (If it has a --data-dir, give it here, "
                                 "too.)"});
  }
  if (!facts.mdns.ok() && facts.here.mdns_port_error().empty()) {
    const bool has_none = absl::IsUnimplemented(facts.mdns);
    checks->push_back({.id = "mdns",
                       .target = kThisMachine,
                       .state = has_none ? State::kNote : State::kWrong,
                       .text = std::string(facts.mdns.message()),
                       .advice = has_none ? ""
                                          : "Name a node by its address: strata node --peer "
                                            "HOST:PORT."});
  }
  CheckMachine(kThisMachine, facts.here, checks);
}

std::vector<Check> Diagnose(const DoctorFacts& facts) {
  std::vector<Check> checks;
  CheckThisMachine(facts, &checks);
  CheckCluster(facts, &checks);
  CheckHost(facts, &checks);
  CheckNodes(facts, &checks);
  CheckLinks(facts, &checks);
  return checks;
}

}  // namespace strata
