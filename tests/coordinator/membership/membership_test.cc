#include "coordinator/membership/membership.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sim/cluster_sim.h"
#include "transport/base/version.h"

namespace strata {
namespace {

using State = ClusterView::State;
using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;

constexpr size_t kNobody = SIZE_MAX;
constexpr uint64_t kSeeds = 20;

// A cluster that has settled into one group.
ClusterSim AtRest(uint64_t seed, size_t nodes, size_t started) {
  ClusterSim sim({.seed = seed, .nodes = nodes});
  for (size_t n = 0; n < started; ++n) sim.Start(n);
  sim.RunMs(6000);
  EXPECT_EQ(sim.Unrest(), "") << "seed " << seed << sim.Trace();
  return sim;
}

State StateOf(ClusterSim* sim, size_t at, size_t of) {
  const ClusterView::Node* node = sim->View(at).Find(sim->IdOf(of));
  return node == nullptr ? State::kUnheard : node->state;
}

TEST(Membership, ALoneNodeCoordinatesItselfWithoutAnEpoch) {
  ClusterSim sim = AtRest(1, 1, 1);
  EXPECT_TRUE(sim.View(0).is_coordinator);
  EXPECT_TRUE(sim.View(0).settled);
  EXPECT_EQ(sim.View(0).epoch.counter, 0u);
  EXPECT_THAT(sim.View(0).members, ElementsAre(sim.IdOf(0)));
}

TEST(Membership, ANodeThatStartedObeysNobodyForOneLease) {
  ClusterSim sim({.seed = 1, .nodes = 2});
  sim.StartAll();
  sim.RunMs(1990);
  EXPECT_EQ(sim.CoordinatorOf(0), kNobody);
  EXPECT_EQ(sim.CoordinatorOf(1), kNobody);
}

TEST(Membership, ANewcomerNeverDisplacesACoordinator) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ClusterSim sim = AtRest(seed, 3, 2);
    const NodeId coordinator = sim.View(0).coordinator;
    const ClusterEpoch epoch = sim.View(0).epoch;
    sim.Start(2);
    sim.RunMs(6000);
    EXPECT_EQ(sim.Unrest(), "") << "seed " << seed << sim.Trace();
    EXPECT_EQ(sim.View(2).coordinator, coordinator) << "seed " << seed;
    EXPECT_EQ(sim.View(2).epoch, epoch) << "seed " << seed;
  }
}

TEST(Membership, AFlappingNodeDisturbsNoOther) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ClusterSim sim = AtRest(seed, 4, 4);
    const size_t coordinator = sim.CoordinatorOf(0);
    const ClusterEpoch epoch = sim.View(0).epoch;
    const size_t flapping = (coordinator + 1) % 4;
    for (int times = 0; times < 6; ++times) {
      sim.Isolate(flapping, true);
      sim.RunMs(200 + static_cast<int64_t>(sim.Random(6000)));
      sim.Isolate(flapping, false);
      for (int step = 0; step < 20; ++step) {
        sim.RunMs(50);
        for (size_t n = 0; n < 4; ++n) {
          if (n == flapping) continue;
          ASSERT_EQ(sim.CoordinatorOf(n), coordinator) << "seed " << seed << sim.Trace();
          ASSERT_EQ(sim.View(n).epoch, epoch) << "seed " << seed << sim.Trace();
        }
      }
    }
    sim.RunMs(5000);
    EXPECT_EQ(sim.Unrest(), "") << "seed " << seed << sim.Trace();
    EXPECT_EQ(sim.View(flapping).epoch, epoch) << "seed " << seed << sim.Trace();
  }
}

TEST(Membership, AMinorityThatReturnsJoinsTheMajority) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ClusterSim sim = AtRest(seed, 5, 5);
    sim.Partition({0, 0, 0, 1, 1});
    sim.RunMs(5000);
    EXPECT_EQ(sim.Unrest(), "") << "seed " << seed << sim.Trace();
    // Many plans raise the epoch, but give no priority.
    for (int plan = 0; plan < 9; ++plan) sim.Plan(sim.CoordinatorOf(3));
    const size_t majority = sim.CoordinatorOf(0);
    sim.Heal();
    sim.RunMs(5000);
    EXPECT_EQ(sim.Unrest(), "") << "seed " << seed << sim.Trace();
    EXPECT_EQ(sim.CoordinatorOf(3), majority) << "seed " << seed << sim.Trace();
  }
}

TEST(Membership, TheSideWithLiveRequestsWins) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ClusterSim sim = AtRest(seed, 5, 5);
    sim.Partition({0, 0, 0, 1, 1});
    sim.RunMs(5000);
    sim.SetLive(4, 1);
    sim.RunMs(1000);
    const size_t busy = sim.CoordinatorOf(3);
    sim.Heal();
    sim.RunMs(5000);
    EXPECT_EQ(sim.Unrest(), "") << "seed " << seed << sim.Trace();
    EXPECT_EQ(sim.CoordinatorOf(0), busy) << "seed " << seed << sim.Trace();
  }
}

TEST(Membership, ALostCoordinatorIsReplacedAtAHigherEpoch) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ClusterSim sim = AtRest(seed, 4, 4);
    const size_t lost = sim.CoordinatorOf(0);
    const size_t other = (lost + 1) % 4;
    const ClusterEpoch epoch = sim.View(0).epoch;
    sim.Crash(lost);
    sim.RunMs(5000);
    EXPECT_EQ(sim.Unrest(), "") << "seed " << seed << sim.Trace();
    EXPECT_EQ(sim.View(other).members.size(), 3u);
    EXPECT_GT(sim.View(other).epoch.counter, epoch.counter);
  }
}

TEST(Membership, ACoordinatorThatSleptHoldsNoLeaseAndDisplacesNone) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ClusterSim sim = AtRest(seed, 3, 3);
    const size_t slept = sim.CoordinatorOf(0);
    const size_t other = (slept + 1) % 3, third = (slept + 2) % 3;
    sim.Pause(slept, 5000);
    sim.RunMs(4900);
    EXPECT_FALSE(sim.Holds(slept, other));
    const size_t successor = sim.CoordinatorOf(other);
    EXPECT_NE(successor, slept);
    EXPECT_EQ(sim.CoordinatorOf(third), successor);
    sim.RunMs(5000);
    EXPECT_EQ(sim.Unrest(), "") << "seed " << seed << sim.Trace();
    EXPECT_EQ(sim.CoordinatorOf(slept), successor) << "seed " << seed << sim.Trace();
  }
}

TEST(Membership, NodesThatCannotAllReachEachOtherAreNeverOneGroup) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ClusterSim sim = AtRest(seed, 3, 3);
    sim.Cut(0, 2);
    sim.Cut(2, 0);
    sim.RunMs(5000);
    EXPECT_EQ(sim.violation(), "") << "seed " << seed << sim.Trace();
    EXPECT_EQ(sim.Unrest(), "") << "seed " << seed << sim.Trace();
    EXPECT_NE(sim.CoordinatorOf(0), sim.CoordinatorOf(2)) << "seed " << seed << sim.Trace();
  }
}

TEST(Membership, APairThatReachesEachOtherOneWayIsNotLinked) {
  ClusterSim sim = AtRest(1, 2, 2);
  sim.Cut(0, 1);
  sim.RunMs(5000);
  EXPECT_FALSE(sim.View(0).Find(sim.IdOf(1))->reachable);
  EXPECT_FALSE(sim.View(1).Find(sim.IdOf(0))->reachable);
  // Still it is heard.
  EXPECT_EQ(StateOf(&sim, 0, 1), State::kAlive);
  EXPECT_EQ(sim.Unrest(), "") << sim.Trace();
  EXPECT_TRUE(sim.View(0).is_coordinator);
  EXPECT_TRUE(sim.View(1).is_coordinator);
}

TEST(Membership, ASilentNodeIsSuspectedAndThenGone) {
  ClusterSim sim = AtRest(1, 2, 2);
  sim.Isolate(1, true);
  sim.RunMs(500);
  EXPECT_EQ(StateOf(&sim, 0, 1), State::kAlive);
  sim.RunMs(750);
  EXPECT_EQ(StateOf(&sim, 0, 1), State::kSuspected);
  sim.RunMs(1000);
  EXPECT_EQ(StateOf(&sim, 0, 1), State::kGone);
  EXPECT_THAT(sim.View(0).members, ElementsAre(sim.IdOf(0)));
}

TEST(Membership, AKilledCoordinatorIsReplacedBeforeItsLeasesEnd) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ClusterSim sim = AtRest(seed, 4, 4);
    const size_t killed = sim.CoordinatorOf(0), other = (killed + 1) % 4;
    sim.Crash(killed);
    sim.RunMs(900);
    EXPECT_EQ(StateOf(&sim, other, killed), State::kGone) << "seed " << seed << sim.Trace();
    sim.RunMs(900);
    EXPECT_EQ(sim.Unrest(), "") << "seed " << seed << sim.Trace();
    EXPECT_EQ(sim.View(other).members.size(), 3u) << "seed " << seed << sim.Trace();
    EXPECT_TRUE(sim.View(sim.CoordinatorOf(other)).settled) << "seed " << seed << sim.Trace();
  }
}

TEST(Membership, ANodeThatAFirewallRefusesIsThereWhileItIsHeard) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ClusterSim sim = AtRest(seed, 3, 3);
    const size_t refused = sim.CoordinatorOf(0), other = (refused + 1) % 3;
    sim.Refuse(other, refused);
    for (int step = 0; step < 100; ++step) {
      sim.RunMs(50);
      ASSERT_EQ(StateOf(&sim, other, refused), State::kAlive) << "seed " << seed << sim.Trace();
    }
    EXPECT_EQ(sim.violation(), "");
    EXPECT_EQ(sim.Unrest(), "") << "seed " << seed << sim.Trace();
    // From now on its refusals are ignored, even while it sleeps.
    sim.Pause(refused, 900);
    sim.RunMs(850);
    EXPECT_EQ(StateOf(&sim, other, refused), State::kAlive) << "seed " << seed << sim.Trace();
    // But those of the process after it count.
    sim.Heal();
    sim.Start(refused);
    sim.RunMs(5000);
    sim.Crash(refused);
    sim.RunMs(900);
    EXPECT_EQ(StateOf(&sim, other, refused), State::kGone) << "seed " << seed << sim.Trace();
  }
}

TEST(Membership, ANodeThatIsStartedAgainAtOnceIsTheSameButFree) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ClusterSim sim = AtRest(seed, 3, 3);
    const size_t again = sim.CoordinatorOf(0), other = (again + 1) % 3;
    sim.Crash(again);
    sim.RunMs(static_cast<int64_t>(sim.Random(400)));
    sim.Start(again);
    sim.RunMs(400);
    EXPECT_EQ(StateOf(&sim, other, again), State::kAlive) << "seed " << seed << sim.Trace();
    EXPECT_EQ(sim.CoordinatorOf(again), kNobody);
    sim.RunMs(5000);
    EXPECT_EQ(sim.Unrest(), "") << "seed " << seed << sim.Trace();
  }
}

// A firewall came up, and no request was sent through it before the coordinator fell silent.
TEST(Membership, AMemberThatAFirewallRefusesWaitsItsLeaseOutIfItSleptBefore) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ClusterSim sim = AtRest(seed, 3, 3);
    const size_t silent = sim.CoordinatorOf(0), member = (silent + 1) % 3;
    sim.Pause(member, 1'200);
    sim.Refuse(member, silent);
    sim.RunMs(1'150);
    sim.Pause(silent, 4'000);
    ASSERT_TRUE(sim.Refuses(member, silent));
    sim.RunMs(1'850);
    EXPECT_EQ(sim.CoordinatorOf(member), silent) << "seed " << seed << sim.Trace();
    sim.RunMs(500);
    EXPECT_NE(sim.CoordinatorOf(member), silent) << "seed " << seed << sim.Trace();
    EXPECT_EQ(sim.violation(), "") << "seed " << seed << sim.Trace();
  }
}

// Two tries in a row, to a node that was heard just before, or by one that has just slept.
TEST(Membership, OneRefusalOrALateOneIsIgnored) {
  ClusterSim sim = AtRest(1, 2, 2);
  const size_t at = sim.CoordinatorOf(0), other = 1 - at;
  const auto refused = [&](int64_t tried_ms_ago) {
    const int64_t now_us = sim.LocalUs(at);
    sim.membership(at).OnRefused(sim.IdOf(other), now_us - tried_ms_ago * 1000, now_us);
    return StateOf(&sim, at, other) == State::kGone;
  };
  sim.Cut(other, at);
  sim.RunMs(1000);
  EXPECT_FALSE(refused(300));
  EXPECT_FALSE(refused(200));
  EXPECT_FALSE(refused(300)) << "as old as the first";
  EXPECT_TRUE(refused(0));
  sim.Heal();
  sim.RunMs(5000);
  EXPECT_EQ(StateOf(&sim, at, other), State::kAlive);
  EXPECT_FALSE(refused(2000)) << "before it was heard";
  sim.Cut(other, at);
  sim.Pause(at, 900);
  sim.RunMs(901);
  EXPECT_FALSE(refused(900));
  EXPECT_FALSE(refused(600));
  EXPECT_FALSE(refused(0));
}

TEST(Membership, ANodeThatLeavesIsGoneAtOnceAndItsMembersAreFree) {
  ClusterSim sim = AtRest(1, 3, 3);
  const size_t leaver = sim.CoordinatorOf(0), other = (leaver + 1) % 3;
  sim.Leave(leaver);
  sim.RunMs(100);
  EXPECT_EQ(StateOf(&sim, other, leaver), State::kGone);
  EXPECT_EQ(sim.CoordinatorOf(other), other);
  sim.RunMs(1500);
  EXPECT_EQ(sim.Unrest(), "") << sim.Trace();
}

TEST(Membership, PeersTellEachOtherOfNodesTheyKnow) {
  ClusterSim sim({.seed = 1, .nodes = 6});
  // Each node knows one of those before it.
  sim.StartAll();
  sim.RunMs(1500);
  for (size_t a = 0; a < 6; ++a) {
    for (size_t b = 0; b < 6; ++b) EXPECT_EQ(StateOf(&sim, a, b), State::kAlive) << a << " " << b;
  }
}

TEST(Membership, ANodeThatNoOtherKnowsLearnsOfTheOthers) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ClusterSim sim = AtRest(seed, 3, 3);
    sim.Cut(2, 1);
    sim.Crash(0);
    sim.Crash(2);
    sim.RunMs(2500);
    // 0 and 2 know no other node, and 1 does not hear 2. Only 1 knows both.
    sim.Start(0, 0);
    sim.RunMs(1000);
    sim.Start(2, 0);
    sim.RunMs(2500);
    EXPECT_EQ(StateOf(&sim, 2, 0), State::kAlive) << "seed " << seed << sim.Trace();
    EXPECT_EQ(StateOf(&sim, 0, 2), State::kAlive) << "seed " << seed << sim.Trace();
  }
}

// Single state machines.

constexpr int64_t kStartUs = 5'000'000;

NodeRecord Record(uint64_t number, std::string cluster = "home") {
  NodeRecord record;
  record.id = NodeId{1, number};
  record.boot = 1000;
  record.name = "node";
  record.cluster = PrintableText::From(cluster);
  record.protocol = kProtocolVersion;
  record.addresses = {"10.0.0.1:7000"};
  return record;
}

// One request from `from` and its answer.
absl::Status Exchange(Membership* from, Membership* to, int64_t now_us) {
  const absl::StatusOr<Heartbeat> reply = to->OnRequest(from->Probe(now_us), now_us);
  if (!reply.ok()) return reply.status();
  return from->OnReply(*reply, now_us);
}

TEST(Membership, WaitsForALeaseOfTheBootBeforeUnlessItIsTheFirst) {
  NodeRecord first = Record(1);
  first.boot = 1;
  Membership first_boot({}, first, kStartUs);
  first_boot.Tick(kStartUs);
  EXPECT_TRUE(first_boot.view().is_coordinator);
  Membership started_again({}, Record(2), kStartUs);
  started_again.Tick(kStartUs);
  EXPECT_FALSE(started_again.view().is_coordinator);
  started_again.Tick(kStartUs + 2'100'000);
  EXPECT_TRUE(started_again.view().is_coordinator);
}

TEST(Membership, AProbeMakesBothKnown) {
  Membership a({}, Record(1), kStartUs), b({}, Record(2), kStartUs);
  ASSERT_THAT(Exchange(&a, &b, kStartUs), IsOk());
  ASSERT_NE(a.view().Find(NodeId{1, 2}), nullptr);
  EXPECT_EQ(a.view().Find(NodeId{1, 2})->state, State::kAlive);
  EXPECT_THAT(a.view().Find(NodeId{1, 2})->record.addresses, ElementsAre("10.0.0.1:7000"));
  ASSERT_NE(b.view().Find(NodeId{1, 1}), nullptr);
}

TEST(Membership, AnotherClusterIsRefusedAndNotKept) {
  Membership a({}, Record(1), kStartUs), b({}, Record(2, "office"), kStartUs);
  EXPECT_THAT(Exchange(&a, &b, kStartUs), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(a.Learn(Record(2, "office"), kStartUs), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(a.view().nodes.size(), 1u);
  EXPECT_EQ(b.view().nodes.size(), 1u);
}

TEST(Membership, AnotherVersionIsShownAndNotUsed) {
  NodeRecord newer = Record(2);
  newer.protocol = kProtocolVersion + 1;
  Membership a({}, Record(1), kStartUs), b({}, newer, kStartUs);
  for (int64_t now_us = kStartUs; now_us < kStartUs + 6'000'000; now_us += 100'000) {
    a.Tick(now_us);
    b.Tick(now_us);
    ASSERT_THAT(Exchange(&a, &b, now_us), IsOk());
    ASSERT_THAT(Exchange(&b, &a, now_us), IsOk());
  }
  const ClusterView::Node* shown = a.view().Find(newer.id);
  ASSERT_NE(shown, nullptr);
  EXPECT_EQ(shown->state, State::kOtherVersion);
  EXPECT_EQ(shown->record.protocol, kProtocolVersion + 1);
  EXPECT_FALSE(shown->reachable);
  EXPECT_THAT(a.view().members, ElementsAre(NodeId{1, 1}));
  EXPECT_THAT(b.view().members, ElementsAre(NodeId{1, 2}));
}

TEST(Membership, ARequestForAnotherNodeIsRefused) {
  Membership a({}, Record(1), kStartUs), b({}, Record(2), kStartUs);
  Heartbeat request = a.Probe(kStartUs);
  request.to = NodeId{1, 3};
  EXPECT_THAT(b.OnRequest(request, kStartUs), StatusIs(absl::StatusCode::kNotFound));
  request.to = NodeId{};
  HeartbeatBody body = *request.body;
  body.from = NodeId{};
  request.body = std::make_shared<const HeartbeatBody>(body);
  EXPECT_THAT(b.OnRequest(request, kStartUs), StatusIs(absl::StatusCode::kInvalidArgument));
  request = a.Probe(kStartUs);
  body = *request.body;
  body.floor.counter = UINT64_MAX;
  request.body = std::make_shared<const HeartbeatBody>(body);
  EXPECT_THAT(b.OnRequest(request, kStartUs), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(Membership, ANodeThatMovesIsTheSame) {
  Membership a({}, Record(1), kStartUs), b({}, Record(2), kStartUs);
  ASSERT_THAT(Exchange(&b, &a, kStartUs), IsOk());
  b.SetAddresses({"10.0.9.9:7000"}, kStartUs);
  b.Tick(kStartUs);
  ASSERT_THAT(Exchange(&b, &a, kStartUs), IsOk());
  ASSERT_EQ(a.view().nodes.size(), 2u);
  EXPECT_THAT(a.view().Find(NodeId{1, 2})->record.addresses, ElementsAre("10.0.9.9:7000"));
  // It restarts elsewhere, and its clock went back.
  NodeRecord again = Record(2);
  again.boot = 7;
  again.addresses = {"10.0.8.8:7000"};
  Membership restarted({}, again, kStartUs);
  ASSERT_THAT(Exchange(&restarted, &a, kStartUs + 1), IsOk());
  const int64_t later_us = kStartUs + 1'000'000;
  restarted.Tick(later_us);
  ASSERT_THAT(Exchange(&restarted, &a, later_us), IsOk());
  ASSERT_EQ(a.view().nodes.size(), 2u);
  EXPECT_THAT(a.view().Find(NodeId{1, 2})->record.addresses, ElementsAre("10.0.8.8:7000"));
  EXPECT_GT(a.view().Find(NodeId{1, 2})->record.boot, again.boot);
}

TEST(Membership, DiscoveryAddsAddressesToANodesOwn) {
  Membership a({}, Record(1), kStartUs), b({}, Record(2), kStartUs);
  ASSERT_THAT(Exchange(&b, &a, kStartUs), IsOk());
  NodeRecord found = Record(2);
  found.addresses = {"[fe80::1%3]:7000"};
  ASSERT_THAT(a.Learn(found, kStartUs), IsOk());
  EXPECT_THAT(a.view().Find(NodeId{1, 2})->record.addresses,
              ElementsAre("10.0.0.1:7000", "[fe80::1%3]:7000"));
}

TEST(Membership, KnowsNoMoreNodesThanItsBound) {
  Membership a({.nodes_max = 4}, Record(1), kStartUs);
  for (uint64_t n = 2; n < 100; ++n) EXPECT_THAT(a.Learn(Record(n), kStartUs), IsOk());
  EXPECT_EQ(a.view().nodes.size(), 4u);
  // Live nodes are not forgotten for unknown ones.
  for (uint64_t n = 200; n < 203; ++n) {
    Membership b({}, Record(n), kStartUs);
    ASSERT_THAT(Exchange(&b, &a, kStartUs), IsOk());
  }
  EXPECT_THAT(a.Learn(Record(300), kStartUs), StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(Membership, OnlyACoordinatorRaisesTheEpoch) {
  Membership a({}, Record(1), kStartUs);
  a.Tick(kStartUs);
  EXPECT_THAT(a.NextEpoch(kStartUs), StatusIs(absl::StatusCode::kFailedPrecondition));
  const int64_t later_us = kStartUs + 3'000'000;
  a.Tick(later_us);
  const absl::StatusOr<ClusterEpoch> first = a.NextEpoch(later_us);
  ASSERT_THAT(first, IsOk());
  EXPECT_EQ(first->coordinator, a.view().coordinator);
  EXPECT_GT(a.NextEpoch(later_us).value(), *first);
}

TEST(Membership, RandomHeartbeatsDoNoHarm) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&random](uint64_t n) { return random() % n; };
    const auto id = [&] { return NodeId{below(8) == 0 ? below(2) : 1, below(12)}; };
    const auto time = [&](int64_t now_us) {
      return below(9) == 0 ? static_cast<int64_t>(random())
                           : now_us - static_cast<int64_t>(below(1000));
    };
    Membership a({.nodes_max = 8}, Record(1), kStartUs);
    int64_t now_us = kStartUs;
    for (int i = 0; i < 20'000; ++i) {
      now_us += static_cast<int64_t>(below(20'000));
      Heartbeat message;
      HeartbeatBody body;
      body.protocol = kProtocolVersion + (below(40) == 0 ? 1 : 0);
      body.cluster = std::make_shared<const std::string>("home");
      body.from = id();
      body.boot = 1 + below(3);
      message.your_boot = below(100) == 0 ? random() >> below(64) : 1000 + below(2);
      message.sent_us = time(now_us);
      message.answers_us = time(now_us);
      body.leaving = below(50) == 0;
      body.epoch = {below(10), below(2) == 0 ? body.from : id()};
      body.obeys = below(2) == 0 ? body.from : id();
      body.wants = id();
      body.floor = {below(10), id()};
      body.live_requests = static_cast<uint32_t>(random());
      body.group_requests = static_cast<uint32_t>(below(3));
      body.group_size = static_cast<uint32_t>(below(4));
      message.offer = below(2) == 0;
      message.release = below(4) == 0;
      message.welcome = below(2) == 0;
      message.next = id();
      message.granted_us = time(now_us);
      body.details_version = below(100);
      message.your_details_version = below(100);
      if (below(2) == 0) {
        auto details = std::make_shared<HeartbeatDetails>();
        NodeRecord record = Record(2);
        record.id = below(9) == 0 ? id() : body.from;
        details->record = std::make_shared<const NodeRecord>(record);
        for (uint64_t n = below(9); n > 0; --n) details->reaches.push_back(id());
        for (uint64_t n = below(4); n > 0; --n) details->members.push_back(id());
        record.id = id();
        message.known.push_back(std::make_shared<const NodeRecord>(record));
        message.details = std::move(details);
      }
      message.body = std::make_shared<const HeartbeatBody>(body);
      if (below(2) == 0) {
        (void)a.OnRequest(message, now_us);
      } else {
        (void)a.OnReply(message, now_us);
      }
      if (below(4) == 0) a.Tick(now_us);
      ASSERT_LE(a.view().nodes.size(), 8u) << "seed " << seed;
    }
  }
}

TEST(Membership, IdsAreThirtyTwoHexDigits) {
  const std::string hex = "00ff00000000000000000000000000a1";
  ASSERT_THAT(NodeId::FromHex(hex), IsOk());
  EXPECT_EQ(NodeId::FromHex(hex)->ToHex(), hex);
  for (const std::string& bad : {std::string(), std::string(31, 'a'), std::string(32, 'g'),
                                 std::string(32, '0'), std::string(33, 'a')}) {
    EXPECT_THAT(NodeId::FromHex(bad), StatusIs(absl::StatusCode::kInvalidArgument)) << bad;
  }
}

// Nodes 0, 1 and 2 are linked with each other, 3 with all, 4 with 3 alone; 3 and 4 found each other
// first.
ClusterSim ANodeBetweenTwoGroups(uint64_t seed) {
  ClusterSim sim({.seed = seed, .nodes = 5});
  sim.Partition({0, 0, 0, 1, 1});
  sim.StartAll();
  sim.Introduce();
  sim.RunMs(6000);
  EXPECT_EQ(sim.Unrest(), "") << "seed " << seed << sim.Trace();
  EXPECT_EQ(sim.CoordinatorOf(3), sim.CoordinatorOf(4)) << "seed " << seed;
  return sim;
}

void LinkWithAll(ClusterSim* sim) {
  for (size_t n = 0; n < 3; ++n) {
    sim->Cut(n, 3, false);
    sim->Cut(3, n, false);
  }
  sim->Introduce();
}

TEST(Membership, AMemberMovesToTheGreaterGroupThatItIsLinkedWith) {
  size_t moved = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ClusterSim sim = ANodeBetweenTwoGroups(seed);
    const size_t coordinator = sim.CoordinatorOf(0);
    const bool is_member = sim.CoordinatorOf(3) == 4;
    LinkWithAll(&sim);
    sim.RunMs(12'000);
    EXPECT_EQ(sim.violation(), "") << "seed " << seed;
    EXPECT_EQ(sim.Unrest(), "") << "seed " << seed << sim.Trace();
    EXPECT_EQ(sim.CoordinatorOf(0), coordinator) << "seed " << seed;
    // A node that coordinates another stays with it.
    EXPECT_EQ(sim.CoordinatorOf(3), is_member ? coordinator : 3) << "seed " << seed << sim.Trace();
    moved += is_member;
  }
  EXPECT_GT(moved, 0u);
}

TEST(Membership, NoMemberMovesAwayFromLiveRequests) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ClusterSim sim = ANodeBetweenTwoGroups(seed);
    const size_t coordinator = sim.CoordinatorOf(3);
    sim.SetLive(4, 1);
    sim.SetLive(0, 5);
    sim.RunMs(1000);
    LinkWithAll(&sim);
    sim.RunMs(12'000);
    EXPECT_EQ(sim.violation(), "") << "seed " << seed;
    EXPECT_EQ(sim.CoordinatorOf(3), coordinator) << "seed " << seed << sim.Trace();
    EXPECT_EQ(sim.CoordinatorOf(4), coordinator) << "seed " << seed << sim.Trace();
  }
}

TEST(Membership, ASilentNodeGetsMoreRequestsUntilItCountsAsGone) {
  Membership membership({}, Record(1), kStartUs);
  Membership other({}, Record(2), kStartUs);
  ASSERT_THAT(membership.Learn(Record(2), kStartUs), IsOk());
  const auto requests = [&](int64_t from_ms, int64_t to_ms) {
    size_t n = 0;
    for (int64_t ms = from_ms; ms < to_ms; ++ms) n += membership.Tick(kStartUs + ms * 1000).size();
    return n;
  };
  int64_t ms = 0;
  for (; ms < 5000; ++ms) {
    for (const OutgoingHeartbeat& out : membership.Tick(kStartUs + ms * 1000)) {
      const auto reply = other.OnRequest(out.message, kStartUs + ms * 1000);
      ASSERT_THAT(reply, IsOk());
      ASSERT_THAT(membership.OnReply(*reply, kStartUs + ms * 1000), IsOk());
    }
  }
  const size_t at_once = requests(ms, ms + 500);
  EXPECT_LE(at_once, 3u);
  EXPECT_GE(requests(ms + 750, ms + 1750), 8u);
  requests(ms + 1750, ms + 4000);
  EXPECT_LE(requests(ms + 4000, ms + 5000), 3u);
}

// One group where nothing has changed for long.
ClusterSim Calm(uint64_t seed, size_t nodes) {
  ClusterSim sim = AtRest(seed, nodes, nodes);
  sim.RunMs(15'000);
  EXPECT_EQ(sim.Unrest(), "") << "seed " << seed << sim.Trace();
  EXPECT_EQ(sim.View(0).members.size(), nodes) << "seed " << seed;
  return sim;
}

uint64_t MessagesIn(ClusterSim* sim, int64_t ms) {
  const uint64_t before = sim->messages();
  sim->RunMs(ms);
  return sim->messages() - before;
}

TEST(Membership, ACalmClusterSendsFewMessagesForEachNode) {
  for (const size_t nodes : {2, 3, 8, 20, 50, 100}) {
    ClusterSim sim = Calm(1, nodes);
    // Requests and answers, in a second.
    EXPECT_LE(MessagesIn(&sim, 10'000), 10 * 12 * nodes) << nodes;
    EXPECT_EQ(sim.Unrest(), "") << sim.Trace();
  }
}

TEST(Membership, TwoCalmNodesExchangeARequestOnceASecond) {
  ClusterSim sim = Calm(1, 2);
  EXPECT_LE(MessagesIn(&sim, 10'000), 2u * 13);
}

// Each on a clock without drift, with messages that take a millisecond.
class CalmNodes {
 public:
  explicit CalmNodes(uint64_t nodes) : wakes_(nodes) {
    for (uint64_t n = 0; n < nodes; ++n) {
      NodeRecord self;
      // Far apart, as random ids are: each node sends at another time.
      self.id = NodeId{.high = n + 1, .low = n * 1'000'000 / nodes};
      self.boot = self.nonce = n + 1;
      self.cluster = "home";
      self.protocol = kProtocolVersion;
      self.addresses = {absl::StrCat("10.0.0.", n, ":7000")};
      nodes_.push_back(std::make_unique<Membership>(MembershipOptions(), self, now_us_));
      for (const NodeRecord& other : records_) {
        EXPECT_THAT(nodes_.back()->Learn(other, now_us_), IsOk());
      }
      records_.push_back(self);
    }
  }

  // How often each node woke to send or check, besides for messages.
  std::vector<int> WakesIn(int64_t ms) {
    wakes_.assign(nodes_.size(), 0);
    for (const int64_t until_us = now_us_ + ms * 1000; now_us_ < until_us; now_us_ += 1000) {
      for (size_t n = 0; n < nodes_.size(); ++n) {
        if (nodes_[n]->next_wake_us() > now_us_) continue;
        ++wakes_[n];
        for (const OutgoingHeartbeat& out : nodes_[n]->Tick(now_us_)) {
          const auto to = std::ranges::find(records_, out.to, &NodeRecord::id) - records_.begin();
          const absl::StatusOr<Heartbeat> reply =
              nodes_[static_cast<size_t>(to)]->OnRequest(out.message, now_us_ + 500);
          EXPECT_THAT(reply, IsOk());
          EXPECT_THAT(nodes_[n]->OnReply(*reply, now_us_ + 999), IsOk());
        }
      }
    }
    return wakes_;
  }

 private:
  int64_t now_us_ = 1'000'000;
  std::vector<std::unique_ptr<Membership>> nodes_;
  std::vector<NodeRecord> records_;
  std::vector<int> wakes_;
};

TEST(Membership, ACalmNodeWakesByItselfAboutOnceASecond) {
  for (const uint64_t count : {2, 3, 8}) {
    CalmNodes nodes(count);
    nodes.WakesIn(20'000);
    for (const int wakes : nodes.WakesIn(60'000)) EXPECT_LE(wakes, 90) << count;
  }
}

TEST(Membership, AfterAChangeRequestsAreAsFrequentAsBefore) {
  ClusterSim sim = Calm(1, 3);
  const uint64_t calm = MessagesIn(&sim, 3'000);
  sim.SetLive(0, 1);
  sim.RunMs(1'500);
  EXPECT_GE(MessagesIn(&sim, 3'000), 3 * calm);
}

TEST(Membership, SilenceOfACalmNodeIsNoticedAsSoonAsUsual) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    for (const size_t nodes : {3, 8}) {
      ClusterSim sim = Calm(seed, nodes);
      sim.RunMs(static_cast<int64_t>(sim.Random(1000)));
      const size_t silent = sim.Random(nodes);
      sim.Isolate(silent, true);
      sim.RunMs(2'050);
      for (size_t n = 0; n < nodes; ++n) {
        if (n == silent) continue;
        EXPECT_EQ(StateOf(&sim, n, silent), State::kGone) << "seed " << seed << sim.Trace();
        EXPECT_NE(sim.CoordinatorOf(n), silent) << "seed " << seed << sim.Trace();
      }
      sim.RunMs(3'000);
      EXPECT_EQ(sim.Unrest(), "") << "seed " << seed << sim.Trace();
    }
  }
}

TEST(Membership, ACoordinatorOfManyNoticesSilenceAsSoonAsUsual) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ClusterSim sim = Calm(seed, 30);
    const size_t coordinator = sim.CoordinatorOf(0), silent = (coordinator + 7) % 30;
    sim.RunMs(static_cast<int64_t>(sim.Random(1000)));
    sim.Isolate(silent, true);
    sim.RunMs(2'050);
    EXPECT_EQ(StateOf(&sim, coordinator, silent), State::kGone) << "seed " << seed << sim.Trace();
    sim.RunMs(3'000);
    for (size_t n = 0; n < 30; ++n) {
      if (n == silent) continue;
      EXPECT_EQ(StateOf(&sim, n, silent), State::kGone) << "seed " << seed;
    }
    EXPECT_EQ(sim.Unrest(), "") << "seed " << seed << sim.Trace();
  }
}

TEST(Membership, ACalmNodeThatSendsRequestsButAnswersNoneIsNotReached) {
  ClusterSim sim = Calm(1, 2);
  const size_t coordinator = sim.CoordinatorOf(0), other = 1 - coordinator;
  sim.Refuse(other, coordinator);
  sim.RunMs(9'000);
  EXPECT_FALSE(sim.View(coordinator).Find(sim.IdOf(other))->reachable);
  EXPECT_EQ(sim.Unrest(), "") << sim.Trace();
}

TEST(Membership, ACalmMemberThatAFirewallRefusesWaitsItsLeaseOut) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ClusterSim sim = Calm(seed, 3);
    const size_t silent = sim.CoordinatorOf(0), member = (silent + 1) % 3;
    sim.Refuse(member, silent);
    sim.RunMs(1'000 + static_cast<int64_t>(sim.Random(6'000)));
    sim.Pause(silent, 4'000);
    ASSERT_TRUE(sim.Refuses(member, silent));
    for (int step = 0; step < 300; ++step) {
      sim.RunMs(10);
      ASSERT_EQ(sim.violation(), "") << "seed " << seed << sim.Trace();
    }
    EXPECT_NE(sim.CoordinatorOf(member), silent) << "seed " << seed << sim.Trace();
  }
}

TEST(Membership, AKilledCalmCoordinatorIsReplaced) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ClusterSim sim = Calm(seed, 4);
    sim.RunMs(static_cast<int64_t>(sim.Random(1000)));
    const size_t killed = sim.CoordinatorOf(0), other = (killed + 1) % 4;
    sim.Crash(killed);
    sim.RunMs(2'050);
    EXPECT_EQ(StateOf(&sim, other, killed), State::kGone) << "seed " << seed << sim.Trace();
    EXPECT_NE(sim.CoordinatorOf(other), killed) << "seed " << seed << sim.Trace();
    sim.RunMs(1'000);
    EXPECT_EQ(sim.Unrest(), "") << "seed " << seed << sim.Trace();
  }
}

TEST(Membership, ACalmClusterKeepsItsCoordinator) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ClusterSim sim = Calm(seed, 6);
    const size_t coordinator = sim.CoordinatorOf(0);
    for (int i = 0; i < 600; ++i) {
      sim.RunMs(100);
      for (size_t n = 0; n < 6; ++n) {
        ASSERT_EQ(sim.CoordinatorOf(n), coordinator) << "seed " << seed << sim.Trace();
        ASSERT_EQ(StateOf(&sim, n, (n + 1) % 6), State::kAlive) << "seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace strata
