// Real nodes in a network of namespaces: which find each other, at which address, and how soon.
// Times are printed; only bounds that say "never" are asserted.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/net/network.h"

namespace strata {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class DiscoveryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (absl::Status status = CanMakeNetworks(); !status.ok()) GTEST_SKIP() << status.message();
  }

  // A host on the first switch, 10.77.0.<last>.
  Host* AddHost(const std::string& name, int last) {
    hosts_.push_back(std::make_unique<Host>(name));
    lan().Plug(*hosts_.back(), "eth0", {absl::StrCat("10.77.0.", last, "/24")});
    return hosts_.back().get();
  }
  Switch& lan() {
    if (lan_ == nullptr) lan_ = std::make_unique<Switch>("lan");
    return *lan_;
  }

  std::unique_ptr<Switch> lan_;
  std::vector<std::unique_ptr<Host>> hosts_;
};

// No multicast leaves or enters.
void DropMulticast(const Host& host) {
  host.Shell(
      "nft -f - <<'END'\n"
      "table inet drop_mdns {\n"
      "  chain in { type filter hook input priority 0; udp dport 5353 drop; }\n"
      "  chain out { type filter hook output priority 0; udp dport 5353 drop; }\n"
      "}\n"
      "END\n");
}

TEST_F(DiscoveryTest, FourNodesFindEachOtherWithoutAnyOption) {
  std::vector<std::unique_ptr<NodeOn>> nodes;
  for (int i = 1; i <= 4; ++i) {
    const std::string name = absl::StrCat("host-", i);
    nodes.push_back(std::make_unique<NodeOn>(AddHost(name, i), name));
  }
  const absl::Time ready = nodes.back()->ready();
  absl::Duration slowest;
  for (const auto& node : nodes) {
    nlohmann::json seen;
    ASSERT_TRUE(Eventually([&] {
      seen = node->Nodes();
      return std::all_of(nodes.begin(), nodes.end(), [&](const auto& other) {
        return NodeOn::IsAlive(NodeOn::Find(seen, other->id()));
      });
    })) << node->name()
        << " sees " << seen.dump(1) << node->errors();
    const absl::Time now = absl::Now();
    for (const auto& other : nodes) {
      if (other == node) continue;
      const auto found = NodeOn::Find(seen, other->id());
      slowest =
          std::max(slowest, now - absl::Milliseconds(found["here_ms"].get<int64_t>()) - ready);
      EXPECT_THAT(found["address"].get<std::string>(), StartsWith("10.77.0."));
    }
  }
  printf("all four know each other %s after the last one was ready\n",
         absl::FormatDuration(absl::Trunc(slowest, absl::Milliseconds(1))).c_str());
  EXPECT_LT(slowest, absl::Seconds(10));
  EXPECT_TRUE(Eventually([&] {
    size_t coordinator = nodes.size();
    return AgreeOn(nodes, &coordinator);
  })) << "they agree on a coordinator";
}

TEST_F(DiscoveryTest, NodesOfOneHostAndAnotherFindEachOther) {
  Host* both = AddHost("both", 1);
  NodeOn first(both, "first"), second(both, "second");
  NodeOn third(AddHost("other", 2), "third");
  EXPECT_TRUE(Eventually([&] {
    return first.Sees(second) && first.Sees(third) && second.Sees(first) && second.Sees(third) &&
           third.Sees(first) && third.Sees(second);
  })) << first.errors();
}

// What users of others miss: discovery on multi-homed hosts, on Linux, exo #2191 #2257 #2243 #2271.
TEST_F(DiscoveryTest, AMultiHomedNodeIsReachedOnEachOfItsNetworks) {
  Switch other_lan("lan-2");
  Host* middle = AddHost("middle", 1);
  other_lan.Plug(*middle, "eth1", {"10.88.0.1/24"});
  Host* left = AddHost("left", 2);
  Host right("right");
  other_lan.Plug(right, "eth0", {"10.88.0.2/24"});
  NodeOn m(middle, "middle"), l(left, "left"), r(&right, "right");
  EXPECT_TRUE(Eventually([&] { return m.Sees(l) && m.Sees(r) && l.Sees(m) && r.Sees(m); }));
  EXPECT_THAT(l.Node(m.id())["address"].get<std::string>(), StartsWith("10.77.0.1:"));
  EXPECT_THAT(r.Node(m.id())["address"].get<std::string>(), StartsWith("10.88.0.1:"));
  // Announced by the node in the middle, but out of reach.
  EXPECT_TRUE(Eventually([&] { return l.Node(r.id()).is_object(); }));
  EXPECT_EQ(l.Node(r.id())["reachable"], false);
}

TEST_F(DiscoveryTest, ANodeWithTwoCablesOutlivesThePullingOfOne) {
  Switch other_lan("lan-2");
  Host* a = AddHost("a", 1);
  Host* b = AddHost("b", 2);
  other_lan.Plug(*a, "eth1", {"10.88.0.1/24"});
  other_lan.Plug(*b, "eth1", {"10.88.0.2/24"});
  NodeOn node_a(a, "a"), node_b(b, "b");
  ASSERT_TRUE(Eventually([&] { return node_a.Sees(node_b) && node_b.Sees(node_a); }));
  const std::string address = node_a.Node(node_b.id())["address"];
  const bool first = address.starts_with("10.77.");
  (first ? lan() : other_lan).SetCable(*b, first ? "eth0" : "eth1", false);
  EXPECT_TRUE(Eventually([&] {
    const auto node = node_a.Node(node_b.id());
    return NodeOn::IsAlive(node) &&
           node["address"].get<std::string>().starts_with(first ? "10.88." : "10.77.");
  }));
  EXPECT_GT(node_a.Node(node_b.id())["here_ms"].get<int64_t>(), 0);
}

TEST_F(DiscoveryTest, TwoClustersOfOneNetworkDoNotMix) {
  NodeOn red_1(AddHost("r1", 1), "red-1", {"--cluster", "red"});
  NodeOn red_2(AddHost("r2", 2), "red-2", {"--cluster", "red"});
  NodeOn blue_1(AddHost("b1", 3), "blue-1", {"--cluster", "blue"});
  // Named by --peer, and refused.
  NodeOn blue_2(AddHost("b2", 4), "blue-2",
                {"--cluster", "blue", "--peer", absl::StrCat("10.77.0.1:", red_1.port())});
  ASSERT_TRUE(Eventually([&] {
    return red_1.Sees(red_2) && red_2.Sees(red_1) && blue_1.Sees(blue_2) && blue_2.Sees(blue_1);
  }));
  for (const NodeOn* node : {&red_1, &red_2, &blue_1, &blue_2}) {
    EXPECT_EQ(node->Nodes()["nodes"].size(), 2u) << node->name();
  }
  EXPECT_TRUE(Eventually([&] { return blue_2.errors().find("red") != std::string::npos; }))
      << "a person can see why: " << blue_2.errors();
}

// What users of others miss: discovery without multicast, LocalAI #3968, cake #56.
TEST_F(DiscoveryTest, WithoutMulticastAPeerIsEnoughAndAnnouncesOthers) {
  Host* a = AddHost("a", 1);
  Host* b = AddHost("b", 2);
  Host* c = AddHost("c", 3);
  for (const Host* host : {a, b, c}) DropMulticast(*host);
  NodeOn node_a(a, "a", {"--listen", "10.77.0.1:7400"});
  const std::vector<std::string> peer = {"--peer", "10.77.0.1:7400"};
  NodeOn node_b(b, "b", peer), node_c(c, "c", peer);
  EXPECT_TRUE(Eventually([&] {
    return node_a.Sees(node_b) && node_a.Sees(node_c) && node_b.Sees(node_c) &&
           node_c.Sees(node_b) && node_b.Sees(node_a) && node_c.Sees(node_a);
  })) << node_b.errors();
}

TEST_F(DiscoveryTest, APeerMayComeLater) {
  Host* a = AddHost("a", 1);
  Host* b = AddHost("b", 2);
  NodeOn node_b(b, "b", {"--no-mdns", "--peer", "10.77.0.1:7400"});
  NodeOn node_a(a, "a", {"--no-mdns", "--listen", "10.77.0.1:7400"});
  EXPECT_TRUE(Eventually([&] { return node_a.Sees(node_b) && node_b.Sees(node_a); }));
}

TEST_F(DiscoveryTest, ACableOutAndInIsAGoneNodeThatReturns) {
  Host* a = AddHost("a", 1);
  Host* b = AddHost("b", 2);
  NodeOn node_a(a, "a"), node_b(b, "b");
  ASSERT_TRUE(Eventually([&] { return node_a.Sees(node_b) && node_b.Sees(node_a); }));
  lan().SetCable(*b, "eth0", false);
  EXPECT_TRUE(Eventually([&] { return node_a.SeesGone(node_b); }));
  EXPECT_TRUE(Eventually([&] { return node_b.SeesGone(node_a); }));
  const absl::Time back = absl::Now();
  lan().SetCable(*b, "eth0", true);
  ASSERT_TRUE(Eventually([&] { return node_a.Sees(node_b); })) << node_a.errors();
  const absl::Duration took =
      absl::Now() - back - absl::Milliseconds(node_a.Node(node_b.id())["here_ms"].get<int64_t>());
  printf("the node is back %s after its cable\n",
         absl::FormatDuration(absl::Trunc(took, absl::Milliseconds(1))).c_str());
  EXPECT_TRUE(Eventually([&] { return node_b.Sees(node_a); }));
}

TEST_F(DiscoveryTest, ANodeThatMovesToAnotherAddressIsTheSame) {
  Host* a = AddHost("a", 1);
  Host* b = AddHost("b", 2);
  NodeOn node_a(a, "a"), node_b(b, "b");
  ASSERT_TRUE(Eventually([&] { return node_a.Sees(node_b); }));
  b->Shell(
      "ip addr add 10.77.0.9/24 dev eth0 && ip addr del 10.77.0.2/24 dev eth0 && "
      "{ ip addr add 10.77.0.9/24 dev eth0 2>/dev/null || true; }");
  EXPECT_TRUE(Eventually([&] {
    const auto node = node_a.Node(node_b.id());
    return NodeOn::IsAlive(node) && node["address"].get<std::string>().starts_with("10.77.0.9:");
  })) << node_a.Nodes().dump(1);
  EXPECT_EQ(node_a.Nodes()["nodes"].size(), 2u);
}

TEST_F(DiscoveryTest, IPv6LinkLocalAddressesAreEnough) {
  Host a("a"), b("b");
  lan().Plug(a, "eth0", {});
  lan().Plug(b, "eth0", {});
  NodeOn node_a(&a, "a"), node_b(&b, "b");
  EXPECT_TRUE(Eventually([&] { return node_a.Sees(node_b) && node_b.Sees(node_a); }))
      << node_a.Nodes().dump(1) << node_a.errors();
  EXPECT_THAT(node_a.Node(node_b.id())["address"].get<std::string>(), StartsWith("[fe80:"));
}

TEST_F(DiscoveryTest, ANodeThatSaysGoodByeIsGoneAtOnce) {
  NodeOn node_a(AddHost("a", 1), "a", {"--gone-after", "3600000", "--suspect-after", "3600000"});
  NodeOn node_b(AddHost("b", 2), "b");
  ASSERT_TRUE(Eventually([&] { return node_a.Sees(node_b) && node_b.Sees(node_a); }));
  node_b.Stop();
  EXPECT_TRUE(Eventually([&] { return node_a.SeesGone(node_b); }));
}

TEST_F(DiscoveryTest, OtherMdnsToolsSeeTheService) {
  Host* a = AddHost("a", 1);
  Host* tools = AddHost("tools", 2);
  NodeOn node(a, "kitchen", {"--cluster", "home"});
  std::string out;
  // The daemons run in a process namespace of their own, and end with it.
  const bool ran = tools->TryShell(
      "exec unshare --mount --pid --fork --kill-child --mount-proc /bin/sh -euc '\n"
      "mount -t tmpfs tmpfs /run\n"
      "mkdir -p /run/dbus /run/avahi-daemon\n"
      // The users that the daemons want, where the system's own files are shown that lack them.
      "for file in passwd group; do\n"
      "  cp /etc/$file /run/$file\n"
      "  for name in avahi messagebus; do\n"
      "    grep -q ^$name: /run/$file && continue\n"
      "    if [ $file = passwd ]; then rest=64999::/:/bin/false; else rest=; fi\n"
      "    echo $name:x:64999:$rest >>/run/$file\n"
      "  done\n"
      "  mount --bind /run/$file /etc/$file\n"
      "done\n"
      "dbus-daemon --system --nofork --nopidfile >/dev/null 2>&1 &\n"
      "for i in $(seq 100); do [ -S /run/dbus/system_bus_socket ] && break; sleep 0.05; done\n"
      "avahi-daemon --no-drop-root --no-rlimits --no-chroot >/dev/null 2>&1 &\n"
      "for i in $(seq 100); do [ -S /run/avahi-daemon/socket ] && break; sleep 0.05; done\n"
      "[ -S /run/avahi-daemon/socket ] || { echo NO-DAEMON; exit 0; }\n"
      "for i in $(seq 10); do\n"
      "  avahi-browse --resolve --terminate --parsable _strata._tcp >/run/seen 2>&1 || true\n"
      "  grep -q ^= /run/seen && break\n"
      "done\n"
      "cat /run/seen'",
      &out);
  if (out.find("NO-DAEMON") != std::string::npos) GTEST_SKIP() << "avahi-daemon does not run here";
  ASSERT_TRUE(ran) << out;
  EXPECT_THAT(out, HasSubstr(absl::StrCat("strata-", node.id(), ".local")));
  EXPECT_THAT(out, HasSubstr(";10.77.0.1;"));
  EXPECT_THAT(out, HasSubstr(absl::StrCat("\"id=", node.id(), "\"")));
  EXPECT_THAT(out, HasSubstr("\"cluster=home\""));
  EXPECT_THAT(out, HasSubstr("\"version="));
  EXPECT_THAT(out, HasSubstr(absl::StrCat("\"port=", node.port(), "\"")));
}

}  // namespace
}  // namespace strata
