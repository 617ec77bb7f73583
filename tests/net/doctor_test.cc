// `strata doctor` on real networks that are broken in the ways networks are.
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/net/network.h"

namespace strata {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Two hosts on one switch, "a" with 10.79.0.1 and "b" with 10.79.0.2; the doctor runs on "a".
class DoctorNetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (absl::Status status = CanMakeNetworks(); !status.ok()) GTEST_SKIP() << status.message();
    lan_ = std::make_unique<Switch>("lan");
    a_ = std::make_unique<Host>("a");
    b_ = std::make_unique<Host>("b");
    lan_->Plug(*a_, "eth0", {"10.79.0.1/24"});
    lan_->Plug(*b_, "eth0", {"10.79.0.2/24"});
  }

  void StartNodes(const std::vector<std::string>& options_a = {},
                  const std::vector<std::string>& options_b = {}) {
    node_a_ = std::make_unique<NodeOn>(a_.get(), "node-a", options_a);
    node_b_ = std::make_unique<NodeOn>(b_.get(), "node-b", options_b);
  }
  void AwaitCluster() {
    ASSERT_TRUE(Eventually([&] {
      return node_a_->Sees(*node_b_) && node_b_->Sees(*node_a_) &&
             !node_a_->Nodes()["coordinator"].is_null() &&
             node_a_->Nodes()["coordinator"] == node_b_->Nodes()["coordinator"];
    })) << node_a_->errors();
  }
  std::string AddressOfB() const { return absl::StrCat("10.79.0.2:", node_b_->port()); }

  // Runs the doctor on "a". The status is in `exit_status_`, all that it printed in `said_`.
  nlohmann::json Doctor(const std::string& target = "") {
    const std::string node =
        node_a_ == nullptr ? "" : absl::StrCat("--node 127.0.0.1:", node_a_->port());
    a_->TryShell(
        absl::StrCat("rc=0; ", STRATA_PROGRAM, " doctor ", target, " --json ", node, " --data-dir ",
                     ::testing::TempDir(), "/doctor-none 2>/dev/null || rc=$?; echo \"$rc\""),
        &said_);
    const std::vector<std::string> lines = absl::StrSplit(said_, '\n', absl::SkipEmpty());
    exit_status_ = lines.empty() ? "" : lines.back();
    return nlohmann::json::parse(lines.empty() ? "" : lines.front(), nullptr,
                                 /*allow_exceptions=*/false);
  }
  // The check with that id and target; null if there is none.
  static nlohmann::json Find(const nlohmann::json& json, const std::string& id,
                             const std::string& target) {
    if (!json.is_object()) return nullptr;
    for (const auto& check : json["checks"]) {
      if (check["id"] == id && check["target"] == target) return check;
    }
    return nullptr;
  }
  // Expects the check to be wrong; returns "text > advice".
  std::string Wrong(const nlohmann::json& json, const std::string& id, const std::string& target) {
    EXPECT_EQ(exit_status_, "6");
    const nlohmann::json check = Find(json, id, target);
    EXPECT_TRUE(check.is_object()) << id << " of " << target << " is missing: " << said_;
    if (!check.is_object()) return "";
    EXPECT_EQ(check["state"], "wrong") << said_;
    return absl::StrCat(check["text"].get<std::string>(), " > ",
                        check["advice"].get<std::string>());
  }

  std::unique_ptr<Switch> lan_;
  std::unique_ptr<Host> a_, b_;
  std::unique_ptr<NodeOn> node_a_, node_b_;
  std::string exit_status_, said_;
};

// Drops packets that come in to the host and match.
void Drop(const Host& host, const std::string& match) {
  host.Shell(
      absl::StrCat("nft -f - <<'END'\n"
                   "table inet doctor_test {\n"
                   "  chain in { type filter hook input priority 0; }\n"
                   "}\n"
                   "add rule inet doctor_test in ",
                   match, " drop\nEND\n"));
}

TEST_F(DoctorNetTest, NothingIsWrongWhereNothingIs) {
  StartNodes();
  AwaitCluster();
  const nlohmann::json json = Doctor();
  ASSERT_TRUE(json.is_object()) << said_;
  EXPECT_EQ(exit_status_, "0") << said_;
  EXPECT_EQ(json["ok"], true);
  EXPECT_EQ(Find(json, "here", "this machine")["state"], "ok");
  EXPECT_THAT(Find(json, "multicast", "this machine eth0")["text"].get<std::string>(),
              HasSubstr("nodes are heard from 1 other address"));
  EXPECT_EQ(Find(json, "multicast", "node-b eth0")["state"], "ok");
  EXPECT_EQ(Find(json, "way", "node-a")["state"], "ok");
  EXPECT_EQ(Find(json, "way", "node-b")["state"], "ok");
  EXPECT_EQ(Find(json, "clock", "default")["state"], "ok");
  EXPECT_EQ(Find(json, "versions", "default")["state"], "ok");
}

TEST_F(DoctorNetTest, AnInterfaceThatCarriesNoMulticast) {
  a_->Shell("ip link set eth0 multicast off");
  node_a_ = std::make_unique<NodeOn>(a_.get(), "node-a");
  const nlohmann::json json = Doctor();
  EXPECT_THAT(Wrong(json, "network", "this machine"), HasSubstr("--peer HOST:PORT"));
  EXPECT_THAT(Find(json, "multicast", "this machine eth0")["text"].get<std::string>(),
              HasSubstr("carries no multicast"));
}

// A socket on the host's port 5353 that is not shared; -1: it could not be.
int KeepMdnsPort(const Host& host) {
  int fd = -1;
  std::thread([&host, &fd] {
    const std::string path = absl::StrCat("/proc/", host.holder(), "/ns/net");
    const int network = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (network < 0 || setns(network, CLONE_NEWNET) != 0) return;
    close(network);
    fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_in6 any = {};
    any.sin6_family = AF_INET6;
    any.sin6_port = htons(5353);
    if (bind(fd, reinterpret_cast<sockaddr*>(&any), sizeof any) == 0) return;
    close(fd);
    fd = -1;
  }).join();  // the thread's network ends with it, the socket's does not
  return fd;
}

TEST_F(DoctorNetTest, AProgramThatKeepsTheMdnsPortForItself) {
  const int fd = KeepMdnsPort(*a_);
  ASSERT_GE(fd, 0);
  node_a_ = std::make_unique<NodeOn>(a_.get(), "node-a");
  EXPECT_THAT(Wrong(Doctor(), "mdns-port", "this machine"),
              AllOf(HasSubstr("in use"), HasSubstr("sudo ss -ulpn")));
  close(fd);
}

TEST_F(DoctorNetTest, NoNodeHereAndAFirewallThatKeepsMdnsOut) {
  Drop(*a_, "udp dport 5353");
  const nlohmann::json json = Doctor();
  EXPECT_THAT(Wrong(json, "here", "this machine"),
              AllOf(HasSubstr("no node runs here"), HasSubstr("strata node")));
  EXPECT_THAT(Wrong(json, "multicast", "this machine eth0"),
              AllOf(HasSubstr("drops UDP port 5353"), HasSubstr("ufw allow 5353/udp"),
                    HasSubstr("--add-service=mdns")));
}

TEST_F(DoctorNetTest, AFirewallThatDropsTheNodesPort) {
  Drop(*b_, "tcp dport 7400");
  StartNodes({}, {"--listen", "[::]:7400"});
  // The node is known, and calls others, but cannot be called.
  ASSERT_TRUE(Eventually([&] { return node_a_->Node(node_b_->id()).is_object(); }));
  EXPECT_THAT(Wrong(Doctor("node-b"), "node", "node-b"),
              AllOf(HasSubstr("drops what comes to port 7400"),
                    HasSubstr("sudo ufw allow proto tcp from 10.79.0.1"),
                    HasSubstr("--add-source=10.79.0.1"), HasSubstr("ip saddr 10.79.0.1")));
}

TEST_F(DoctorNetTest, AFirewallThatLetsOnlyTheNodesPortIn) {
  StartNodes();
  AwaitCluster();
  Drop(*b_, absl::StrCat("ct state new tcp dport != ", node_b_->port()));
  const nlohmann::json json = Doctor();
  EXPECT_THAT(Wrong(json, "way-links", "node-a -> node-b"),
              AllOf(HasSubstr("its node port is reached"), HasSubstr("from 10.79.0.1")));
  EXPECT_EQ(Find(json, "way", "node-b")["state"], "ok") << said_;
}

TEST_F(DoctorNetTest, APathThatWorksInOneDirectionOnly) {
  StartNodes();
  AwaitCluster();
  Drop(*a_, absl::StrCat("ip saddr 10.79.0.2 tcp dport ", node_a_->port(), " ct state new"));
  const nlohmann::json json = Doctor();
  EXPECT_THAT(Wrong(json, "way", "node-b -> node-a"),
              AllOf(HasSubstr("10.79.0.1:"), HasSubstr("does not answer at all"),
                    HasSubstr("On node-a, let TCP from 10.79.0.2 in")));
  EXPECT_EQ(Find(json, "way", "node-a")["state"], "ok") << said_;
}

TEST_F(DoctorNetTest, AMachineWithoutANode) {
  node_a_ = std::make_unique<NodeOn>(a_.get(), "node-a");
  EXPECT_THAT(Wrong(Doctor("10.79.0.2:7999"), "host", "10.79.0.2"),
              AllOf(HasSubstr("10.79.0.2:7999 is refused"), HasSubstr("'strata node' runs")));
  // Without a port it says that it guessed one.
  EXPECT_THAT(Wrong(Doctor("10.79.0.2"), "host", "10.79.0.2"),
              AllOf(HasSubstr(":7400 is refused"), HasSubstr("a guess")));
}

TEST_F(DoctorNetTest, AnAddressThatNobodyHas) {
  node_a_ = std::make_unique<NodeOn>(a_.get(), "node-a");
  EXPECT_THAT(Wrong(Doctor("10.79.0.99:7400"), "host", "10.79.0.99"),
              AllOf(HasSubstr("is out of reach"), HasSubstr("Wake 10.79.0.99 up")));
}

TEST_F(DoctorNetTest, ANodeOfAnotherCluster) {
  StartNodes({"--cluster", "red"}, {"--cluster", "blue"});
  EXPECT_THAT(Wrong(Doctor(AddressOfB()), "host", "10.79.0.2"),
              AllOf(HasSubstr("a node called node-b"), HasSubstr("in cluster blue, not in red"),
                    HasSubstr("--cluster red")));
  // The name is found too: mDNS announces it.
  EXPECT_THAT(Wrong(Doctor("node-b"), "host", "node-b"), HasSubstr("in cluster blue, not in red"));
}

TEST_F(DoctorNetTest, ANodeOfTheClusterThatIsNotHeard) {
  StartNodes({}, {"--no-mdns"});
  const nlohmann::json json = Doctor(AddressOfB());
  EXPECT_THAT(Wrong(json, "host", "10.79.0.2"),
              AllOf(HasSubstr("node-a has not heard of it"),
                    HasSubstr(absl::StrCat("--peer ", AddressOfB()))));
  // Paths are tried although the two do not know each other.
  EXPECT_EQ(Find(json, "way", "node-b")["state"], "ok") << said_;
}

TEST_F(DoctorNetTest, FromOutsideTheCluster) {
  StartNodes();
  AwaitCluster();
  Host c("c");
  lan_->Plug(c, "eth0", {"10.79.0.3/24"});
  std::string out;
  EXPECT_TRUE(c.TryShell(
      absl::StrCat(STRATA_PROGRAM, " doctor --node ", AddressOfB(), " 2>/dev/null"), &out))
      << out;
  EXPECT_THAT(
      out, AllOf(HasSubstr("ok  node-a: answers at 10.79.0.1:"), HasSubstr("Nothing is wrong.")));
  EXPECT_FALSE(
      c.TryShell(absl::StrCat(STRATA_PROGRAM, " doctor --node 10.79.0.2:7999 2>/dev/null"), &out));
  EXPECT_THAT(out, HasSubstr("10.79.0.2:7999 is refused"));
}

// "c" reaches "a" over a network of their own, and "b" not at all.
class BehindNetTest : public DoctorNetTest {
 protected:
  void SetUp() override {
    DoctorNetTest::SetUp();
    if (IsSkipped()) return;
    away_ = std::make_unique<Switch>("away");
    c_ = std::make_unique<Host>("c");
    away_->Plug(*a_, "eth1", {"10.78.0.1/24"});
    away_->Plug(*c_, "eth0", {"10.78.0.3/24"});
  }
  nlohmann::json OnC(const std::string& verb) {
    c_->TryShell(absl::StrCat(STRATA_PROGRAM, " ", verb,
                              " --json --node 10.78.0.1:", node_a_->port(), " 2>/dev/null || true"),
                 &said_);
    return nlohmann::json::parse(said_, nullptr, /*allow_exceptions=*/false);
  }

  std::unique_ptr<Switch> away_;
  std::unique_ptr<Host> c_;
};

TEST_F(BehindNetTest, TheDoctorAsksANodeThroughTheOneItReaches) {
  StartNodes();
  AwaitCluster();
  for (const std::string target : {"", " node-b"}) {
    const nlohmann::json json = OnC("doctor" + target);
    ASSERT_TRUE(json.is_object()) << said_;
    EXPECT_EQ(json["ok"], true) << said_;
    EXPECT_THAT(Find(json, "node", "node-b")["text"].get<std::string>(),
                HasSubstr("answers through node-a"));
    EXPECT_EQ(Find(json, "multicast", "node-b eth0")["state"], "ok") << said_;
    EXPECT_EQ(Find(json, "way", "node-a")["state"], "ok") << said_;
    EXPECT_EQ(Find(json, "way", "node-b")["state"], "ok") << said_;
    EXPECT_EQ(Find(json, "clock", "default")["state"], "ok") << said_;
  }
}

TEST_F(BehindNetTest, ADoorThatIsClosedIsFoundThroughAnotherNode) {
  StartNodes();
  AwaitCluster();
  Drop(*b_, absl::StrCat("ct state new tcp dport != ", node_b_->port()));
  const nlohmann::json json = OnC("doctor");
  EXPECT_EQ(Find(json, "way-links", "node-a -> node-b")["state"], "wrong") << said_;
}

TEST_F(BehindNetTest, ANodeMeasuresAgainThroughAnother) {
  node_a_ = std::make_unique<NodeOn>(a_.get(), "node-a");
  node_b_ = std::make_unique<NodeOn>(b_.get(), "node-b", std::vector<std::string>{},
                                     NodeOn::Measure::kYes);
  AwaitCluster();
  const nlohmann::json json = OnC("measure node-b");
  ASSERT_TRUE(json.is_object()) << said_;
  ASSERT_EQ(json["nodes"].size(), 1u) << said_;
  const nlohmann::json& node = json["nodes"][0];
  EXPECT_EQ(node["name"], "node-b");
  EXPECT_EQ(node["measured"], true) << said_;
  ASSERT_FALSE(node["devices"].empty()) << said_;
  EXPECT_GT(node["devices"][0]["after"]["memory_bytes_per_s"].get<double>(), 0) << said_;
}

}  // namespace
}  // namespace strata
