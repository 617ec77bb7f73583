#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "coordinator/membership/membership.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sim/cluster_sim.h"
#include "transport/base/version.h"

namespace strata {
namespace {

using State = ClusterView::State;
using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr size_t kNobody = SIZE_MAX;
constexpr uint64_t kSeeds = 20;

// Nodes 0, 1 and 2 in one group; the last one is to be a clone of `of`.
ClusterSim WithAClone(uint64_t seed, size_t of) {
  ClusterSim sim({.seed = seed, .nodes = 4, .through_wire = true});
  for (size_t n = 0; n < 3; ++n) sim.Start(n);
  sim.RunMs(seed % 2 == 0 ? 6000 : 20'000);  // calm, or not yet
  EXPECT_EQ(sim.Unrest(), "") << "seed " << seed << sim.Trace();
  sim.Clone(3, of);
  return sim;
}

std::string AddressOf(size_t n) { return "10.0.0." + std::to_string(n) + ":7000"; }

// Whether nodes 0, 1 and 2 obey `coordinator`, and 3 obeys none.
testing::AssertionResult CloneIsOut(ClusterSim* sim, size_t coordinator) {
  for (size_t n = 0; n < 3; ++n) {
    if (sim->CoordinatorOf(n) != coordinator) {
      return testing::AssertionFailure()
             << "node " << n << " obeys " << sim->CoordinatorOf(n) << sim->Trace();
    }
  }
  if (sim->CoordinatorOf(3) != kNobody) {
    return testing::AssertionFailure() << "the clone obeys a coordinator" << sim->Trace();
  }
  return testing::AssertionSuccess();
}

TEST(SharedIds, ACloneIsRefusedAndTheFirstProcessKeepsItsPlace) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const size_t of = seed % 3;
    ClusterSim sim = WithAClone(seed, of);
    const size_t coordinator = sim.CoordinatorOf(0);
    const ClusterEpoch epoch = sim.View(0).epoch;
    sim.Start(3, 60);  // of all others, chosen at random
    for (int step = 0; step < 400; ++step) {
      sim.RunMs(50);
      ASSERT_TRUE(CloneIsOut(&sim, coordinator)) << "seed " << seed;
    }
    EXPECT_EQ(sim.violation(), "") << "seed " << seed;
    EXPECT_EQ(sim.View(0).epoch, epoch) << "seed " << seed;
    EXPECT_TRUE(sim.View(3).refused) << "seed " << seed << sim.Trace();
    for (size_t n = 0; n < 4; ++n) {
      const ClusterView& view = sim.View(n);
      ASSERT_THAT(view.shared_ids, SizeIs(1)) << "seed " << seed << ", node " << n;
      EXPECT_EQ(view.shared_ids[0].id, sim.IdOf(of));
      EXPECT_EQ(view.shared_ids[0].taken_address, AddressOf(of));
      EXPECT_EQ(view.shared_ids[0].refused_address, AddressOf(3));
      EXPECT_EQ(view.shared_ids[0].this_is_refused, n == 3);
      EXPECT_EQ(view.refused, n == 3);
    }
  }
}

TEST(SharedIds, ACloneJoinsWhenTheOtherOneIsGone) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const size_t of = seed % 3, other = (of + 1) % 3;
    ClusterSim sim = WithAClone(seed, of);
    sim.Start(3, 60);
    sim.RunMs(5000);
    EXPECT_TRUE(sim.View(3).refused) << "seed " << seed << sim.Trace();
    if (seed % 2 == 0) {
      sim.Leave(of);
    } else {
      sim.Crash(of);
    }
    sim.RunMs(10'000);
    EXPECT_FALSE(sim.View(3).refused) << "seed " << seed << sim.Trace();
    EXPECT_EQ(sim.View(3).coordinator, sim.View(other).coordinator)
        << "seed " << seed << sim.Trace();
    EXPECT_THAT(sim.View(other).members, SizeIs(3)) << "seed " << seed << sim.Trace();
    EXPECT_THAT(sim.View(other).shared_ids, IsEmpty()) << "seed " << seed;
    EXPECT_THAT(sim.View(3).shared_ids, IsEmpty()) << "seed " << seed;
  }
}

TEST(SharedIds, ANodeThatIsStartedAgainIsNoClone) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ClusterSim sim = WithAClone(seed, 0);
    const size_t again = sim.CoordinatorOf(0);
    for (int times = 0; times < 3; ++times) {
      sim.Crash(again);
      sim.RunMs(static_cast<int64_t>(sim.Random(1500)));
      sim.Start(again);
      for (int step = 0; step < 60; ++step) {
        sim.RunMs(50);
        for (size_t n = 0; n < 3; ++n) {
          ASSERT_THAT(sim.View(n).shared_ids, IsEmpty()) << "seed " << seed << sim.Trace();
          ASSERT_FALSE(sim.View(n).refused) << "seed " << seed << sim.Trace();
        }
      }
      sim.RunMs(2000);
      EXPECT_EQ(sim.Unrest(), "") << "seed " << seed << sim.Trace();
      EXPECT_THAT(sim.View(again).members, SizeIs(3)) << "seed " << seed << sim.Trace();
    }
  }
}

TEST(SharedIds, WhereTwoPartsThatEachHaveTheIdMeetTheOlderOneStays) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ClusterSim sim = WithAClone(seed, 0);
    sim.Partition({0, 0, 1, 1});
    sim.RunMs(3000);
    sim.Start(3, 60);
    sim.RunMs(8000);
    EXPECT_EQ(sim.CoordinatorOf(0), sim.CoordinatorOf(1)) << "seed " << seed;
    EXPECT_EQ(sim.View(2).coordinator, sim.View(3).coordinator) << "seed " << seed << sim.Trace();
    EXPECT_THAT(sim.View(2).members, SizeIs(2)) << "seed " << seed << sim.Trace();
    sim.Heal();
    sim.Introduce();
    for (int step = 0; step < 300; ++step) {
      sim.RunMs(50);
      ASSERT_FALSE(sim.View(0).refused) << "seed " << seed << sim.Trace();
    }
    EXPECT_EQ(sim.violation(), "") << "seed " << seed << sim.Trace();
    EXPECT_TRUE(sim.View(3).refused) << "seed " << seed << sim.Trace();
    ASSERT_TRUE(CloneIsOut(&sim, sim.CoordinatorOf(0))) << "seed " << seed;
    EXPECT_THAT(sim.View(0).members, SizeIs(3)) << "seed " << seed << sim.Trace();
  }
}

// As coordinator/cluster/cluster_runtime.cc does with addresses that are reported to it.
void LookAtEachOther(ClusterSim* sim) {
  for (size_t a = 0; a < 4; ++a) {
    for (size_t b = 0; b < 4; ++b) {
      if (a == b || !sim->running(a) || !sim->running(b) || !sim->Linked(a, b)) continue;
      OtherProcess process = sim->membership(b).Self(sim->LocalUs(b));
      process.address = AddressOf(b);
      sim->membership(a).OnProcess(sim->IdOf(b), process, sim->LocalUs(a));
    }
  }
}

TEST(SharedIds, TwoClustersOfOneImageBothServe) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ClusterSim sim({.seed = seed, .nodes = 4});
    sim.Clone(2, 0);
    sim.Clone(3, 1);
    sim.Partition({0, 0, 1, 1});
    sim.StartAll();
    sim.RunMs(200);
    sim.Introduce();
    sim.RunMs(7000);
    const NodeId first = sim.View(0).coordinator, second = sim.View(2).coordinator;
    ASSERT_THAT(sim.View(0).members, SizeIs(2)) << "seed " << seed << sim.Trace();
    ASSERT_THAT(sim.View(2).members, SizeIs(2)) << "seed " << seed << sim.Trace();
    sim.Heal();
    for (int step = 0; step < 600; ++step) {
      if (step % 100 == 0) LookAtEachOther(&sim);
      sim.RunMs(50);
      for (size_t n = 0; n < 4; ++n) {
        ASSERT_FALSE(sim.View(n).refused) << "seed " << seed << ", node " << n << sim.Trace();
        ASSERT_EQ(sim.View(n).coordinator, n < 2 ? first : second) << "seed " << seed;
        ASSERT_THAT(sim.View(n).members, SizeIs(2)) << "seed " << seed;
      }
    }
    for (size_t n = 0; n < 4; ++n) EXPECT_THAT(sim.View(n).shared_ids, SizeIs(2)) << n;
  }
}

TEST(SharedIds, OfTwoAloneTheOlderStays) {
  ClusterSim sim({.seed = 1, .nodes = 4});
  sim.Clone(1, 0);
  sim.Start(0);
  sim.RunMs(5000);
  sim.Start(1);
  sim.RunMs(5000);
  for (int step = 0; step < 10; ++step) {
    LookAtEachOther(&sim);
    sim.RunMs(1000);
    EXPECT_TRUE(sim.View(0).is_coordinator);
    EXPECT_TRUE(sim.View(1).refused);
    EXPECT_EQ(sim.CoordinatorOf(1), kNobody);
  }
  sim.Crash(0);
  sim.RunMs(6000);
  EXPECT_FALSE(sim.View(1).refused);
  EXPECT_TRUE(sim.View(1).is_coordinator);
}

// Nodes come, go, sleep and are cut off, and a clone is started again and again; but the one that
// it is a clone of lives all the while.
TEST(SharedIds, WhateverHappensTheFirstProcessKeepsItsPlace) {
  for (uint64_t seed = 1; seed <= 3 * kSeeds; ++seed) {
    const size_t of = seed % 3;
    ClusterSim sim = WithAClone(seed, of);
    for (int event = 0; event < 12; ++event) {
      const size_t other = (of + 1 + sim.Random(2)) % 3;
      switch (sim.Random(6)) {
        case 0:
          sim.Start(3, 60);
          break;
        case 1:
          sim.Crash(3);
          break;
        case 2:
          if (sim.running(other)) sim.Crash(other);
          sim.RunMs(static_cast<int64_t>(sim.Random(3000)));
          sim.Start(other, 3);
          break;
        case 3:
          sim.Pause(other, static_cast<int64_t>(sim.Random(3000)));
          break;
        case 4:
          sim.Isolate(other, true);
          sim.RunMs(static_cast<int64_t>(sim.Random(5000)));
          sim.Isolate(other, false);
          break;
        default:
          sim.SetLoss(0.1);
          sim.RunMs(2000);
          sim.SetLoss(0);
      }
      sim.RunMs(static_cast<int64_t>(sim.Random(4000)));
      ASSERT_FALSE(sim.View(of).refused) << "seed " << seed << sim.Trace();
    }
    sim.Start(3, 60);
    sim.Introduce();
    sim.RunMs(15'000);
    EXPECT_EQ(sim.violation(), "") << "seed " << seed << sim.Trace();
    EXPECT_TRUE(sim.View(3).refused) << "seed " << seed << sim.Trace();
    ASSERT_TRUE(CloneIsOut(&sim, sim.CoordinatorOf(of))) << "seed " << seed;
    EXPECT_THAT(sim.View(of).members, SizeIs(3)) << "seed " << seed << sim.Trace();
  }
}

// Single state machines.

constexpr int64_t kStartUs = 5'000'000;

NodeRecord Record(uint64_t number, uint64_t nonce) {
  NodeRecord record;
  record.id = NodeId{1, number};
  record.boot = 1000;
  record.nonce = nonce;
  record.name = "node";
  record.cluster = "home";
  record.protocol = kProtocolVersion;
  record.addresses = {AddressOf(number)};
  return record;
}

// One request from `from` and its answer.
absl::Status Exchange(Membership* from, Membership* to, int64_t from_us, int64_t to_us) {
  const absl::StatusOr<Heartbeat> reply = to->OnRequest(from->Probe(from_us), to_us);
  if (!reply.ok()) return reply.status();
  return from->OnReply(*reply, from_us);
}

// Passes the due heartbeats of `from` to `to`, whose clock is `ahead_us` ahead.
void Pump(Membership* from, Membership* to, int64_t from_us, int64_t ahead_us) {
  for (const OutgoingHeartbeat& out : from->Tick(from_us)) {
    const absl::StatusOr<Heartbeat> reply = to->OnRequest(out.message, from_us + ahead_us);
    if (reply.ok()) (void)from->OnReply(*reply, from_us);
  }
}

TEST(SharedIds, ANodeThatComesBackElsewhereHasItsPlaceOnceTheOldOneWasSilent) {
  Membership a({}, Record(1, 11), kStartUs), b({}, Record(2, 22), kStartUs);
  ASSERT_THAT(Exchange(&b, &a, kStartUs, kStartUs), IsOk());
  NodeRecord moved = Record(2, 23);
  moved.addresses = {"10.0.8.8:7000"};
  Membership again({}, moved, kStartUs);
  for (int64_t us = 0; us < 2'500'000; us += 100'000) {
    a.Tick(kStartUs + us);
    ASSERT_THAT(Exchange(&again, &a, kStartUs + us, kStartUs + us), IsOk());
    EXPECT_EQ(a.view().Find(NodeId{1, 2})->record.nonce, us < 2'000'000 ? 22u : 23u);
    EXPECT_THAT(a.view().shared_ids, IsEmpty());
    EXPECT_THAT(again.view().shared_ids, IsEmpty());
  }
}

// A machine is set back to a snapshot: its state and clock are those of when it was made.
TEST(SharedIds, AProcessThatGoesOnFromASnapshotIsNotObeyedAndStartsOver) {
  Membership other({}, Record(1, 11), kStartUs), lost({}, Record(2, 22), kStartUs);
  Membership snapshot({}, Record(2, 22), kStartUs);
  // Both processes get the same messages until the snapshot is made.
  int64_t now_us = kStartUs;
  ASSERT_THAT(lost.Learn(Record(1, 0), now_us), IsOk());
  ASSERT_THAT(snapshot.Learn(Record(1, 0), now_us), IsOk());
  const auto step = [&](bool both) {
    now_us += 50'000;
    if (both) snapshot.Tick(now_us);
    for (const OutgoingHeartbeat& out : lost.Tick(now_us)) {
      const absl::StatusOr<Heartbeat> reply = other.OnRequest(out.message, now_us);
      ASSERT_THAT(reply, IsOk());
      ASSERT_THAT(lost.OnReply(*reply, now_us), IsOk());
      if (both) (void)snapshot.OnReply(*reply, now_us);
    }
    for (const OutgoingHeartbeat& out : other.Tick(now_us)) {
      const absl::StatusOr<Heartbeat> reply = lost.OnRequest(out.message, now_us);
      ASSERT_THAT(reply, IsOk());
      if (both) (void)snapshot.OnRequest(out.message, now_us);
      ASSERT_THAT(other.OnReply(*reply, now_us), IsOk());
    }
  };
  while (now_us < kStartUs + 6'000'000) step(true);
  const int64_t made_us = now_us;
  ASSERT_EQ(snapshot.view().coordinator, lost.view().coordinator);
  ASSERT_THAT(lost.view().members, SizeIs(2));
  while (now_us < made_us + 20'000'000) step(false);
  // A plan was made since.
  Membership& coordinator = other.view().is_coordinator ? other : lost;
  ASSERT_THAT(coordinator.NextEpoch(now_us), IsOk());
  step(false);
  const ClusterEpoch epoch = coordinator.epoch();
  // The machine comes back after a while.
  for (int i = 0; i < 60; ++i) other.Tick(now_us += 50'000);
  EXPECT_TRUE(other.view().is_coordinator);
  const int64_t ahead_us = now_us - made_us;
  const auto both = [&](int64_t from_us, int64_t to_us) {
    for (int64_t us = from_us; us < to_us; us += 50'000) {
      Pump(&snapshot, &other, made_us + us, ahead_us);
      Pump(&other, &snapshot, now_us + us, -ahead_us);
      ASSERT_TRUE(other.view().is_coordinator);
    }
  };
  both(0, 1'500'000);
  EXPECT_TRUE(snapshot.view().coordinator.is_nobody());
  EXPECT_FALSE(snapshot.HoldsLease(NodeId{1, 1}, made_us + 1'500'000));
  EXPECT_NE(snapshot.Self(made_us).nonce, 22u);
  // And it joins as if it had been restarted.
  both(1'500'000, 9'000'000);
  EXPECT_THAT(other.view().members, SizeIs(2));
  EXPECT_EQ(snapshot.view().coordinator, other.view().coordinator);
  EXPECT_GE(snapshot.view().epoch, epoch);
}

TEST(SharedIds, ManyClonesTakeNoMoreThanOne) {
  Membership a({.nodes_max = 4}, Record(1, 11), kStartUs), b({}, Record(2, 22), kStartUs);
  int64_t now_us = kStartUs;
  for (uint64_t n = 0; n < 2000; ++n) {
    now_us += 5'000;
    if (n % 20 == 0) {
      a.Tick(now_us);
      ASSERT_THAT(Exchange(&b, &a, now_us, now_us), IsOk());
    }
    NodeRecord record = Record(2, 1000 + n % 500);
    record.addresses = {AddressOf(n)};
    Membership clone({}, record, now_us);
    const absl::StatusOr<Heartbeat> reply = a.OnRequest(clone.Probe(now_us), now_us);
    ASSERT_THAT(reply, IsOk());
    EXPECT_TRUE(reply->refused);
    EXPECT_EQ(a.view().Find(NodeId{1, 2})->record.nonce, 22u);
    ASSERT_LE(a.view().shared_ids.size(), 1u);
    ASSERT_THAT(a.view().nodes, SizeIs(2));
  }
}

TEST(SharedIds, AProcessThatSendsToItselfIsRefused) {
  Membership a({}, Record(1, 11), kStartUs);
  EXPECT_THAT(Exchange(&a, &a, kStartUs, kStartUs), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(a.view().shared_ids, IsEmpty());
}

// --peer names the other machine.
TEST(SharedIds, ACloneThatSendsToTheOtherProcessKnowsAtOnce) {
  Membership a({}, Record(1, 11), kStartUs);
  const int64_t now_us = kStartUs + 10'000'000;
  a.Tick(now_us);
  NodeRecord record = Record(1, 12);
  record.addresses = {AddressOf(9)};
  Membership clone({}, record, now_us);
  ASSERT_THAT(Exchange(&clone, &a, now_us, now_us), IsOk());
  EXPECT_TRUE(clone.view().refused);
  ASSERT_THAT(clone.view().shared_ids, SizeIs(1));
  EXPECT_EQ(clone.view().shared_ids[0].taken_address, AddressOf(1));
  EXPECT_FALSE(a.view().refused);
  ASSERT_THAT(a.view().shared_ids, SizeIs(1));
  EXPECT_EQ(a.view().shared_ids[0].refused_address, AddressOf(9));
}

}  // namespace
}  // namespace strata
