// The desired state: which list of models a group has.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sim/cluster_sim.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kSeeds = 10;

class MembershipDesired : public ::testing::TestWithParam<uint64_t> {
 protected:
  static constexpr size_t kNodes = 4;

  void SetUp() override {
    sim_.StartAll();
    Rest();
  }
  void Rest() {
    sim_.RunMs(8000);
    ASSERT_EQ(sim_.Unrest(), "") << sim_.Trace();
  }
  size_t Leader(size_t of = 0) { return sim_.CoordinatorOf(of); }
  void Change(size_t leader, std::vector<std::string> models) {
    ASSERT_THAT(sim_.membership(leader).ChangeDesired(std::move(models), sim_.LocalUs(leader)),
                IsOk());
    sim_.Touch(leader);
  }
  void Store(size_t n) {
    sim_.membership(n).OnDesiredStored(Of(n).version, sim_.LocalUs(n));
    sim_.Touch(n);
  }
  const DesiredState& Of(size_t n) { return *sim_.membership(n).desired(); }
  // As after a power cut, with what its disk has.
  void StartWith(size_t n, const DesiredState& desired) {
    sim_.Start(n, /*introduce=*/3);
    sim_.membership(n).OpenDesired(std::make_shared<const DesiredState>(desired));
  }

  ClusterSim sim_{{.seed = GetParam(), .nodes = kNodes, .through_wire = true}};
};

TEST_P(MembershipDesired, AChangeIsEverywhereAtOnceAndStoredWhenAllSaySo) {
  const size_t leader = Leader();
  EXPECT_TRUE(sim_.membership(leader).KnowsMembersDesired());
  Change(leader, {"one"});
  sim_.RunMs(300);
  for (size_t n = 0; n < kNodes; ++n) EXPECT_THAT(Of(n).models, ElementsAre("one")) << sim_.Trace();
  for (size_t n = 0; n < kNodes; ++n) {
    EXPECT_FALSE(sim_.membership(leader).IsDesiredStored());
    Store(n);
    sim_.RunMs(300);
  }
  EXPECT_TRUE(sim_.membership(leader).IsDesiredStored());
  const DesiredVersion version = Of(leader).version;
  Change(leader, {});
  EXPECT_GT(Of(leader).version, version);
  EXPECT_FALSE(sim_.membership(leader).IsDesiredStored());
  const size_t member = (leader + 1) % kNodes;
  EXPECT_THAT(sim_.membership(member).ChangeDesired({"two"}, sim_.LocalUs(member)),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_P(MembershipDesired, ALeaderThatGoesLeavesTheVersionAsItIs) {
  Change(Leader(), {"one"});
  sim_.RunMs(300);
  const DesiredState before = Of(0);
  const size_t gone = Leader();
  sim_.Crash(gone);
  Rest();
  const size_t next = Leader((gone + 1) % kNodes);
  ASSERT_NE(next, gone);
  sim_.Plan(next);
  sim_.RunMs(300);
  EXPECT_EQ(Of(next), before);
}

TEST_P(MembershipDesired, ANodeWithAnOlderListYields) {
  Change(Leader(), {"one"});
  sim_.RunMs(300);
  const size_t away = (Leader() + 1) % kNodes;
  const DesiredState older = Of(away);
  sim_.Crash(away);
  Change(Leader((away + 1) % kNodes), {});  // an unload
  sim_.RunMs(300);
  StartWith(away, older);
  Rest();
  for (size_t n = 0; n < kNodes; ++n) EXPECT_THAT(Of(n).models, IsEmpty()) << sim_.Trace();
}

TEST_P(MembershipDesired, OneNodesNewestListIsEverybodysAfterAPowerCut) {
  Change(Leader(), {"one"});
  sim_.RunMs(300);
  const DesiredState older = Of(0);
  Change(Leader(), {"two"});
  const DesiredState newer = Of(Leader());
  for (size_t n = 0; n < kNodes; ++n) sim_.Crash(n);
  const size_t last = sim_.Random(kNodes);
  for (size_t n = 0; n < kNodes; ++n) {
    if (n != last) StartWith(n, older);
  }
  sim_.RunMs(static_cast<int64_t>(sim_.Random(8000)));
  // The group's epochs begin anew, and are no changes.
  if (const size_t leader = Leader((last + 1) % kNodes); leader < kNodes) sim_.Plan(leader);
  StartWith(last, newer);
  Rest();
  for (size_t n = 0; n < kNodes; ++n) EXPECT_EQ(Of(n), newer) << sim_.Trace();
  // The next decision is newer than any of these.
  Change(Leader(), {"three"});
  EXPECT_GT(Of(Leader()).version, newer.version);
}

TEST_P(MembershipDesired, OfTwoSidesThatChangedItTheGreaterVersionStays) {
  Change(Leader(), {"one"});
  sim_.RunMs(300);
  sim_.Partition({0, 0, 1, 1});
  sim_.RunMs(8000);
  Change(Leader(0), {"left"});
  Change(Leader(2), {"right"});
  sim_.RunMs(300);
  const DesiredState greater = std::max(Of(0), Of(2));
  sim_.Heal();
  Rest();
  for (size_t n = 0; n < kNodes; ++n) EXPECT_EQ(Of(n), greater) << sim_.Trace();
}

TEST_P(MembershipDesired, OneOfTwoGroupsThatCannotJoinLeavesItToTheOther) {
  Change(Leader(), {"one"});
  sim_.RunMs(300);
  // 0 and 1 hear both, 2 and 3 do not hear each other.
  sim_.Cut(2, 3);
  sim_.Cut(3, 2);
  sim_.RunMs(20000);
  const size_t left = Leader(2), right = Leader(3);
  ASSERT_NE(left, right) << sim_.Trace();
  const bool left_leaves = sim_.membership(left).LeavesDesiredToAnother(sim_.LocalUs(left));
  const bool right_leaves = sim_.membership(right).LeavesDesiredToAnother(sim_.LocalUs(right));
  EXPECT_FALSE(left_leaves && right_leaves) << sim_.Trace();
  EXPECT_EQ(left_leaves || right_leaves, sim_.Linked(left, right)) << sim_.Trace();
}

INSTANTIATE_TEST_SUITE_P(Seeds, MembershipDesired, ::testing::Range<uint64_t>(1, kSeeds + 1));

}  // namespace
}  // namespace strata
