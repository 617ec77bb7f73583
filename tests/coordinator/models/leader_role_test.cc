#include "coordinator/models/leader_role.h"

#include "gtest/gtest.h"

namespace strata {
namespace {

ClusterView View(bool leads, bool settled, size_t members) {
  ClusterView view;
  view.is_coordinator = leads;
  view.settled = settled;
  view.members.resize(members);
  return view;
}

TEST(LeaderRole, SaysOnceThatTheRoleHasGone) {
  LeaderRole role;
  EXPECT_FALSE(role.Refresh(View(false, true, 2), "", false));
  EXPECT_FALSE(role.Refresh(View(true, false, 2), "attic", false));
  EXPECT_TRUE(role.is_leader());
  EXPECT_FALSE(role.may_act());
  EXPECT_EQ(role.missed_nodes(), "attic");
  EXPECT_FALSE(role.Refresh(View(true, true, 2), "", false));
  EXPECT_TRUE(role.may_act());
  EXPECT_TRUE(role.Refresh(View(false, true, 2), "", false));
  EXPECT_FALSE(role.may_act());
  EXPECT_FALSE(role.Refresh(View(false, true, 2), "", false));
}

TEST(LeaderRole, ANodeThatStopsKeepsItsSuccessors) {
  LeaderRole role;
  role.Refresh(View(true, true, 2), "", false);
  EXPECT_TRUE(role.has_successors());
  role.Refresh(View(true, true, 1), "", /*stops=*/true);
  EXPECT_TRUE(role.has_successors());
  role.Refresh(View(true, true, 1), "", /*stops=*/false);
  EXPECT_FALSE(role.has_successors());
}

}  // namespace
}  // namespace strata
