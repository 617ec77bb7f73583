// The doctor's checks of facts that are written by hand.
#include "node/doctor/doctor.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "node/doctor/doctor_advice.h"
#include "node/doctor/doctor_machine.h"
#include "tests/support/temp_folder.h"
#include "transport/base/text_table.h"

namespace strata {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::Not;
using ::testing::UnorderedElementsAre;
using State = Check::State;

wire::Versions Versions() {
  wire::Versions versions;
  versions.set_protocol(1);
  versions.set_strata("0.1.0");
  versions.set_llama("0.7.0");
  versions.set_ggml("0.27.0");
  return versions;
}

wire::MachineFacts Machine(const std::string& ip) {
  wire::MachineFacts machine;
  machine.set_memory_bytes(16ull << 30);
  machine.set_memory_limit_bytes(16ull << 30);
  machine.set_memory_free_bytes(8ull << 30);
  machine.set_data_dir("/home/me/.local/state/strata");
  machine.set_data_free_bytes(100ull << 30);
  wire::InterfaceFacts* interface = machine.add_interfaces();
  interface->set_name("eth0");
  interface->set_up(true);
  interface->set_multicast(true);
  interface->add_ips(ip);
  wire::MulticastFacts* group = interface->add_groups();
  group->set_heard_self(true);
  group->set_heard_nodes(1);
  return machine;
}

wire::ReachResult ReachResultOf(const std::string& address, wire::ReachResult::Outcome outcome) {
  wire::ReachResult result;
  result.set_address(address);
  result.set_outcome(outcome);
  result.set_from_host("10.0.0.1");
  return result;
}

// "kitchen", which is here and coordinates, and "attic"; all is well.
DoctorFacts Facts() {
  DoctorFacts facts;
  facts.versions = Versions();
  facts.here = Machine("10.0.0.1");
  facts.first_address = "127.0.0.1:7400";
  facts.cluster.set_cluster("home");
  int last = 0;
  for (const char* name : {"kitchen", "attic"}) {
    const std::string host = absl::StrCat("10.0.0.", ++last);
    NodeFacts& node = facts.nodes.emplace_back();
    node.seen.set_state("alive");
    node.seen.mutable_record()->set_node_id(absl::StrCat("id of ", name));
    node.seen.mutable_record()->set_name(name);
    node.seen.mutable_record()->add_addresses(host + ":7400");
    node.here = last == 1;
    node.address = host + ":7400";
    *node.info.mutable_versions() = Versions();
    node.info.add_devices()->set_name("CPU");
    node.sees.set_coordinator("id of kitchen");
    if (!node.here) node.machine = Machine(host);
    node.clock = ClockOffset{.offset_us = 300, .delay_us = 900};
    node.sees_us_as = node.here ? "127.0.0.1" : "10.0.0.1";
    *facts.cluster.add_nodes() = node.seen;
  }
  facts.cluster.set_asked("id of kitchen");
  facts.cluster.set_coordinator("id of kitchen");
  for (size_t i = 0; i < 2; ++i) {
    NodeFacts& node = facts.nodes[i];
    const NodeFacts& other = facts.nodes[1 - i];
    LinkFacts link = {.to = 1 - i,
                      .door = false,
                      .result = ReachResultOf(other.address, wire::ReachResult::CONNECTED)};
    link.result.mutable_who()->set_node_id(other.id());
    node.links.push_back(link);
    node.links.push_back({.to = 1 - i,
                          .door = true,
                          .result = ReachResultOf(absl::StrCat("10.0.0.", 2 - i, ":40000"),
                                                  wire::ReachResult::CONNECTED)});
  }
  return facts;
}

// The first check with that id and state; fails the test if there is none.
Check Find(const DoctorFacts& facts, const std::string& id, State state) {
  for (const Check& check : Diagnose(facts)) {
    if (check.id == id && check.state == state) return check;
  }
  ADD_FAILURE() << "no such " << id << " in\n" << DoctorText(Diagnose(facts));
  return {};
}

int CountWrong(const DoctorFacts& facts) {
  int wrong = 0;
  for (const Check& check : Diagnose(facts)) wrong += check.state == State::kWrong ? 1 : 0;
  return wrong;
}

TEST(Doctor, FindsNothingWrongInAHealthyCluster) {
  EXPECT_EQ(CountWrong(Facts()), 0) << DoctorText(Diagnose(Facts()));
  EXPECT_THAT(DoctorText(Diagnose(Facts())),
              AllOf(HasSubstr("Nothing is wrong."), HasSubstr("kitchen coordinates 2 nodes"),
                    HasSubstr("clocks agree within 1 ms")));
}

TEST(Doctor, NoNodeRunsHere) {
  DoctorFacts facts;
  facts.versions = Versions();
  facts.here = Machine("10.0.0.1");
  facts.last_address = "127.0.0.1:7400";
  facts.cluster_status = absl::UnavailableError("no node is running here");
  EXPECT_THAT(Find(facts, "here", State::kWrong).text, HasSubstr("127.0.0.1:7400"));
  EXPECT_EQ(CountWrong(facts), 1) << "reported once";
}

TEST(Doctor, InterfacesThatCarryNoMulticast) {
  DoctorFacts facts = Facts();
  wire::InterfaceFacts* tunnel = facts.here.add_interfaces();
  tunnel->set_name("wg0");
  tunnel->set_up(true);
  tunnel->set_point_to_point(true);
  tunnel->add_ips("10.8.0.2");
  // A tunnel is a note only, as long as there is another network.
  EXPECT_THAT(Find(facts, "multicast", State::kNote).advice, HasSubstr("--peer"));
  EXPECT_EQ(CountWrong(facts), 0);
  facts.here.mutable_interfaces(0)->set_up(false);
  EXPECT_THAT(Find(facts, "network", State::kWrong).text, HasSubstr("none of its networks"));
  facts.here.clear_interfaces();
  EXPECT_THAT(Find(facts, "network", State::kWrong).text, HasSubstr("on no network"));
}

TEST(Doctor, MulticastThatFails) {
  DoctorFacts facts = Facts();
  wire::MulticastFacts* group = facts.here.mutable_interfaces(0)->mutable_groups(0);
  group->set_heard_self(false);
  facts.here.set_firewall(wire::MachineFacts::UFW);
  Check check = Find(facts, "multicast", State::kWrong);
  EXPECT_THAT(check.text, HasSubstr("drops UDP port 5353"));
  EXPECT_THAT(check.advice, AllOf(HasSubstr("ufw allow 5353/udp"), Not(HasSubstr("firewall-cmd"))))
      << "the firewall that was seen";
  group->set_send_error("Operation not permitted");
  EXPECT_THAT(Find(facts, "multicast", State::kWrong).text, HasSubstr("not permitted"));
  group->set_join_error("No such device");
  EXPECT_THAT(Find(facts, "multicast", State::kWrong).text, HasSubstr("cannot be joined"));
  // One version of IP is enough.
  facts.here.mutable_interfaces(0)->add_groups()->set_heard_self(true);
  EXPECT_EQ(CountWrong(facts), 0);
  // If the port is taken, one line reports that for all interfaces.
  for (auto& each : *facts.here.mutable_interfaces(0)->mutable_groups()) each.set_not_tried(true);
  facts.mdns = absl::UnavailableError("mDNS: no sockets");
  facts.here.set_mdns_port_error("Address already in use");
  EXPECT_EQ(CountWrong(facts), 1);
  EXPECT_THAT(Find(facts, "mdns-port", State::kWrong).advice, HasSubstr("ss -ulpn"));
}

TEST(Doctor, MemoryAndDisk) {
  DoctorFacts facts = Facts();
  facts.here.set_memory_limit_bytes(4ull << 30);
  EXPECT_THAT(Find(facts, "memory", State::kOk).text, HasSubstr("a control group allows no more"));
  facts.here.set_memory_free_bytes(100 << 20);
  EXPECT_THAT(Find(facts, "memory", State::kWrong).advice, HasSubstr("Close programs"));
  facts.here.set_data_free_bytes(1 << 20);
  EXPECT_THAT(Find(facts, "data", State::kWrong).advice, HasSubstr("--cache-dir"));
  facts.here.set_data_error("Read-only file system");
  EXPECT_THAT(Find(facts, "data", State::kWrong).text, HasSubstr("Read-only file system"));
}

TEST(Doctor, DevicesAndCardsThatGgmlDoesNotSee) {
  DoctorFacts facts = Facts();
  wire::DeviceInfo* device = facts.here.add_devices();
  device->set_name("CPU");
  device->set_description("a chip");
  EXPECT_THAT(Find(facts, "machine-devices", State::kOk).text, HasSubstr("CPU (a chip)"));
  facts.here.add_cards("NVIDIA");
  EXPECT_THAT(Find(facts, "machine-devices", State::kNote).advice,
              HasSubstr("sudo scripts/setup gpu;"));
  // A device of another maker is not that card.
  device = facts.here.add_devices();
  device->set_name("Vulkan0");
  device->set_description("Intel(R) UHD Graphics");
  device->set_kind(wire::DeviceInfo::INTEGRATED_GPU);
  EXPECT_THAT(Find(facts, "machine-devices", State::kNote).text,
              HasSubstr("a card of NVIDIA, which it does not see"));
  device = facts.here.add_devices();
  device->set_name("CUDA0");
  device->set_kind(wire::DeviceInfo::GPU);
  EXPECT_THAT(Find(facts, "machine-devices", State::kOk).text, HasSubstr("CUDA0"));
  facts.here.clear_devices();
  facts.here.set_devices_error("no devices were found: strata probe exited with status 3");
  EXPECT_THAT(Find(facts, "machine-devices", State::kWrong).text, HasSubstr("status 3"));
}

TEST(Doctor, CardsWithoutADriverAreFound) {
  const std::string root = testing::MakeTestFolder();
  const auto add = [&root](const std::string& name, const std::string& pci_class,
                           const std::string& vendor) {
    const std::filesystem::path folder = std::filesystem::path(root) / "sys/bus/pci/devices" / name;
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "class") << pci_class << "\n";
    std::ofstream(folder / "vendor") << vendor << "\n";
  };
  EXPECT_THAT(FindCards(root), IsEmpty());
  add("0000:00:01.0", "0x030000", "0x1234");  // a hypervisor's
  add("0000:00:02.0", "0x020000", "0x8086");  // a network card
  EXPECT_THAT(FindCards(root), IsEmpty());
  add("0000:01:00.0", "0x030200", "0x10de");
  add("0000:02:00.0", "0x030000", "0x10de");
  EXPECT_THAT(FindCards(root), UnorderedElementsAre("NVIDIA"));
  add("0000:03:00.0", "0x038000", "0x1002");
  EXPECT_THAT(FindCards(root), UnorderedElementsAre("NVIDIA", "AMD"));
}

TEST(FindCards, FindsAnyCardOfAContainer) {
  const std::string root = testing::MakeTestFolder();
  std::filesystem::create_directories(root + "/dev");
  std::ofstream(root + "/dev/nvidiactl") << "";
  std::ofstream(root + "/dev/nvidia-uvm") << "";
  EXPECT_THAT(FindCards(root), IsEmpty());
  std::ofstream(root + "/dev/nvidia3") << "";
  EXPECT_THAT(FindCards(root), UnorderedElementsAre("NVIDIA"));
}

TEST(Doctor, NoNodeCoordinates) {
  DoctorFacts facts = Facts();
  facts.cluster.clear_coordinator();
  EXPECT_THAT(Find(facts, "coordinator", State::kWrong).text, HasSubstr("no node coordinates"));
}

TEST(Doctor, TwoMachinesWithOneId) {
  DoctorFacts facts = Facts();
  wire::SharedId* shared = facts.nodes[1].sees.add_shared_ids();  // that node alone has seen both
  shared->set_node_id("id of attic");
  shared->set_name("attic");
  shared->set_taken_address("10.0.0.2:7400");
  shared->set_refused_address("10.0.0.9:7400");
  EXPECT_THAT(Find(facts, "same-id", State::kWrong).text,
              HasSubstr("10.0.0.2:7400 is taken, 10.0.0.9:7400 is refused"));
}

TEST(Doctor, TwoNodesWithOneName) {
  DoctorFacts facts = Facts();
  facts.cluster.mutable_nodes(1)->mutable_record()->set_name("kitchen");
  EXPECT_THAT(Find(facts, "same-name", State::kNote).text,
              HasSubstr("two nodes have the name kitchen"));
}

TEST(Doctor, AClusterInParts) {
  DoctorFacts facts = Facts();
  facts.nodes[1].sees.set_coordinator("id of attic");
  EXPECT_THAT(Find(facts, "coordinator", State::kWrong).text,
              HasSubstr("kitchen follows kitchen, attic follows attic"));
}

TEST(Doctor, NodesThatAnnounceThemselvesAndAreNotInTheCluster) {
  DoctorFacts facts = Facts();
  DiscoveryRecord record = {.node_id = std::string(32, 'a'),
                            .name = "cellar",
                            .cluster = "lab",
                            .protocol = 1,
                            .addresses = {"10.0.0.3:7400"}};
  facts.heard = {record};
  EXPECT_THAT(Find(facts, "other-cluster", State::kNote).advice, HasSubstr("--cluster home"));
  facts.heard[0].cluster = "home";
  EXPECT_THAT(Find(facts, "unknown-node", State::kWrong).advice, HasSubstr("strata doctor cellar"));
}

TEST(Doctor, NodesThatHaveAnotherKeyOrWaitForOne) {
  DoctorFacts facts = Facts();
  facts.cluster.set_key_id("our key");
  facts.heard = {{.node_id = std::string(32, 'a'),
                  .name = "cellar",
                  .cluster = "home",
                  .key_id = "its key",
                  .protocol = 1,
                  .addresses = {"10.0.0.3:7400"}}};
  EXPECT_THAT(Find(facts, "other-key", State::kNote).text, HasSubstr("another key"));
  facts.heard[0].key_id = "";
  EXPECT_THAT(Find(facts, "other-key", State::kNote).text, HasSubstr("--open"));
  facts.heard[0].waits = true;
  EXPECT_THAT(Find(facts, "waiting", State::kNote).advice, HasSubstr("strata approve cellar"));
}

TEST(Doctor, ANodeThatIsGone) {
  DoctorFacts facts = Facts();
  NodeFacts& attic = facts.nodes[1];
  attic.seen.set_state("gone");
  attic.seen.set_last_heard_ms(65'000);
  attic.tries = {ReachResultOf("10.0.0.2:7400", wire::ReachResult::REFUSED)};
  attic.status = absl::UnavailableError(ReachText(attic.tries[0]));
  const Check check = Find(facts, "node", State::kWrong);
  EXPECT_THAT(check.text, AllOf(HasSubstr("is gone to kitchen"), HasSubstr("65.0 s ago"),
                                HasSubstr("no program listens on port 7400")));
  EXPECT_THAT(check.advice, HasSubstr("On attic, see whether 'strata node' runs"));
  attic.seen.set_state("other version");
  attic.seen.mutable_record()->mutable_versions()->set_protocol(2);
  EXPECT_THAT(Find(facts, "node", State::kWrong).text, HasSubstr("protocol 2"));
}

TEST(Doctor, VersionsThatDiffer) {
  DoctorFacts facts = Facts();
  wire::Versions* versions = facts.nodes[1].info.mutable_versions();
  versions->set_strata("0.2.0");
  EXPECT_THAT(Find(facts, "versions", State::kNote).text, HasSubstr("0.2.0"));
  EXPECT_EQ(CountWrong(facts), 0);
  versions->set_llama("0.8.0");
  EXPECT_THAT(Find(facts, "versions", State::kWrong).text, HasSubstr("libllama 0.8.0"));
  versions->set_protocol(2);
  EXPECT_THAT(Find(facts, "versions", State::kWrong).text, HasSubstr("protocol 2"));
}

TEST(Doctor, ClocksThatDifferAreANote) {
  DoctorFacts facts = Facts();
  facts.nodes[1].clock = ClockOffset{.offset_us = -90'000'000, .delay_us = 1000};
  EXPECT_THAT(Find(facts, "clock", State::kNote).text,
              AllOf(HasSubstr("90.0 s behind"), HasSubstr("certificates")));
  EXPECT_EQ(CountWrong(facts), 0);
  // An offset that a slow answer explains is no difference.
  facts.nodes[1].clock = ClockOffset{.offset_us = 1'500'000, .delay_us = 3'000'000};
  for (const Check& check : Diagnose(facts)) EXPECT_NE(check.state, State::kNote) << check.text;
}

TEST(Doctor, DevicesThatAreNotUsed) {
  DoctorFacts facts = Facts();
  facts.nodes[1].info.mutable_devices(0)->set_problem("driver: no");
  EXPECT_THAT(Find(facts, "device", State::kWrong).target, HasSubstr("attic/CPU"));
}

TEST(Doctor, WhatANodeSaysOfItself) {
  DoctorFacts facts = Facts();
  facts.nodes[1].info.add_problems("this machine is short of memory");
  EXPECT_THAT(Find(facts, "problem", State::kWrong).target, HasSubstr("attic"));
}

TEST(Doctor, LinksThatDoNotWork) {
  DoctorFacts facts = Facts();
  facts.nodes[1].links[0].result = ReachResultOf("10.0.0.1:7400", wire::ReachResult::TIMED_OUT);
  facts.nodes[1].links[0].result.set_from_host("10.0.0.2");
  Check check = Find(facts, "way", State::kWrong);
  EXPECT_EQ(check.target, "attic -> kitchen");
  EXPECT_THAT(check.advice, HasSubstr("On kitchen, let TCP from 10.0.0.2 in: port 7400"));

  facts = Facts();
  facts.nodes[0].links[1].result.set_outcome(wire::ReachResult::TIMED_OUT);
  check = Find(facts, "way-links", State::kWrong);
  EXPECT_EQ(check.target, "kitchen -> attic");
  EXPECT_THAT(check.advice, HasSubstr("all ports"));

  facts = Facts();
  facts.nodes[0].links[0].result.mutable_who()->set_node_id("somebody else");
  EXPECT_THAT(Find(facts, "way", State::kWrong).text, HasSubstr("another node answers"));

  // An address that does not work is harmless while another does.
  facts = Facts();
  facts.nodes[0].links.push_back(
      {.to = 1,
       .door = false,
       .result = ReachResultOf("[fd00::2]:7400", wire::ReachResult::UNREACHABLE)});
  EXPECT_EQ(CountWrong(facts), 0);
}

TEST(Doctor, NodesThatCannotReportTheirLinks) {
  DoctorFacts facts = Facts();
  facts.nodes[1].links_status = absl::UnimplementedError("");
  EXPECT_EQ(Find(facts, "way", State::kNote).target, "attic");
}

TEST(Doctor, AddressesThatAreTranslatedInBetween) {
  DoctorFacts facts = Facts();
  facts.nodes[1].sees_us_as = "192.168.9.9";
  EXPECT_THAT(Find(facts, "translation", State::kNote).advice,
              HasSubstr("--advertise 192.168.9.9"));
}

TEST(Doctor, AHostThatHasNoName) {
  DoctorFacts facts = Facts();
  facts.host = HostFacts{.host = "cellar.local", .port = 7400};
  facts.host->resolved = absl::NotFoundError("Name or service not known");
  const Check check = Find(facts, "name", State::kWrong);
  EXPECT_THAT(check.text, HasSubstr("Name or service not known"));
  EXPECT_THAT(check.advice, HasSubstr("libnss-mdns"));
}

TEST(Doctor, AHostThatAnswersAndIsNotInTheCluster) {
  DoctorFacts facts = Facts();
  facts.host = HostFacts{.host = "10.0.0.3", .port = 7400, .ips = {"10.0.0.3"}};
  NodeFacts cellar = facts.nodes[1];
  cellar.known = false;
  cellar.address = "10.0.0.3:7400";
  cellar.links.clear();
  cellar.seen.mutable_record()->set_name("cellar");
  cellar.seen.mutable_record()->set_cluster("home");
  cellar.seen.mutable_record()->mutable_versions()->set_protocol(1);
  facts.target = facts.nodes.size();
  facts.nodes.push_back(cellar);
  EXPECT_THAT(Find(facts, "host", State::kWrong).advice, HasSubstr("--peer 10.0.0.3:7400"));
  EXPECT_THAT(Find(facts, "host", State::kWrong).advice, Not(HasSubstr("Wi-Fi")));
  facts.here.mutable_interfaces(0)->set_wireless(true);
  EXPECT_THAT(Find(facts, "host", State::kWrong).advice, HasSubstr("client isolation"));
  wire::NodeRecord* record = facts.nodes.back().seen.mutable_record();
  record->set_cluster("lab");
  EXPECT_THAT(Find(facts, "host", State::kWrong).text, HasSubstr("in cluster lab, not in home"));
  record->mutable_versions()->set_protocol(2);
  EXPECT_THAT(Find(facts, "host", State::kWrong).text, HasSubstr("protocol 2"));
}

TEST(DoctorAdvice, EachFailureHasItsOwnAdvice) {
  const auto advice = [](wire::ReachResult::Outcome outcome) {
    return ReachAdvice(ReachResultOf("10.0.0.2:7400", outcome), {.machine = "attic"});
  };
  EXPECT_THAT(advice(wire::ReachResult::REFUSED), HasSubstr("--listen [::]:7400"));
  EXPECT_THAT(advice(wire::ReachResult::TIMED_OUT),
              AllOf(HasSubstr("sudo ufw allow"), HasSubstr("firewall-cmd"), HasSubstr("sudo nft"),
                    HasSubstr("macOS"), HasSubstr("port 7400")));
  EXPECT_THAT(advice(wire::ReachResult::UNREACHABLE), HasSubstr("Wake attic up"));
  EXPECT_THAT(advice(wire::ReachResult::NO_NAME), HasSubstr("address instead of its name"));
  EXPECT_THAT(advice(wire::ReachResult::CONNECTED), HasSubstr("Something else listens"));
  wire::ReachResult other = ReachResultOf("10.0.0.2:7400", wire::ReachResult::CONNECTED);
  other.set_error("SSL routines::certificate verify failed");
  EXPECT_THAT(ReachAdvice(other, {}), HasSubstr("strata approve 10.0.0.2:7400"));
  EXPECT_THAT(AllowTcp("fe80::1%eth0", wire::MachineFacts::NONE_SEEN),
              AllOf(HasSubstr("ip6 saddr fe80::1 "), Not(HasSubstr("%"))));
  EXPECT_THAT(AllowTcp("10.0.0.1", wire::MachineFacts::FIREWALLD),
              AllOf(HasSubstr("firewall-cmd"), Not(HasSubstr("ufw")), Not(HasSubstr("macOS"))));
}

TEST(DoctorAdvice, AnAnswerSaysMoreThanSilence) {
  const std::vector<wire::ReachResult> tries = {
      ReachResultOf("a:1", wire::ReachResult::UNREACHABLE),
      ReachResultOf("b:1", wire::ReachResult::TIMED_OUT),
      ReachResultOf("c:1", wire::ReachResult::REFUSED),
      ReachResultOf("d:1", wire::ReachResult::NOT_ALLOWED)};
  EXPECT_EQ(MostInformative(tries).address(), "c:1");
}

TEST(DoctorText, FitsATerminalAndDoesNotBreakCommands) {
  const std::string command(100, 'x');
  const std::string text = DoctorText({{.id = "way",
                                        .target = "kitchen",
                                        .state = State::kWrong,
                                        .text = "one two three four five six seven eight nine ten "
                                                "eleven twelve thirteen\x1b[31m fourteen",
                                        .advice = "Do this:\n" + command}});
  EXPECT_THAT(text,
              AllOf(HasSubstr("!   kitchen: one"), HasSubstr("\n      > Do this:\n"),
                    HasSubstr(command), Not(HasSubstr("\x1b")), HasSubstr("1 thing is wrong")));
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
    if (line.find(command) != std::string::npos) continue;
    EXPECT_THAT(TextWidth(line), Le(80)) << line;
  }
}

TEST(DoctorJson, HasOneObjectForEachCheck) {
  const auto json = nlohmann::json::parse(DoctorJson(Diagnose(Facts())), nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["ok"], true);
  ASSERT_FALSE(json["checks"].empty());
  for (const auto& check : json["checks"]) {
    for (const char* key : {"id", "target", "state", "text", "advice"}) {
      EXPECT_TRUE(check[key].is_string()) << check.dump();
    }
  }
}

}  // namespace
}  // namespace strata
