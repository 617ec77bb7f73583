#include "coordinator/models/model_recovery.h"

#include <memory>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/models/placed_model.h"

namespace strata {
namespace {

using ::absl_testing::StatusIs;
using ::strata::testing::Continue;
using ::strata::testing::Loadable;
using ::strata::testing::Place;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr bool kMayAct = true, kLeads = true;

class RecoveryTest : public ::testing::Test {
 protected:
  // Serves, and was recovered `in_a_row` times before.
  ModelTable::DeploymentPtr Serving(uint32_t in_a_row) {
    Deployment::Options options = Loadable();
    options.broken = [] {};
    options.now = [this] { return now_; };
    options.recoveries_in_a_row = in_a_row;
    const ModelTable::DeploymentPtr model = Place(std::move(options)).deployment;
    EXPECT_TRUE(model->Load(Continue).ok());
    models_.Put(model);
    return model;
  }
  // The same, lost after `served`.
  ModelTable::DeploymentPtr Lost(uint32_t in_a_row, absl::Duration served) {
    const ModelTable::DeploymentPtr model = Serving(in_a_row);
    now_ += served;
    model->LoseNode(std::string(32, 'a'));
    EXPECT_TRUE(model->recovering());
    return model;
  }
  RecoverySchedule::Round Begin() { return schedule_.Begin(models_, reloads_, kMayAct, now_); }
  void End(bool deferred = false) { schedule_.End(models_, reloads_, kLeads, deferred, now_); }

  SteadyTime now_ = SteadyTime() + absl::Hours(1);
  ModelTable models_{0};
  ReloadQueue reloads_;
  RecoverySchedule schedule_;
};

TEST_F(RecoveryTest, OnlyWhatLostAStageIsRecovered) {
  Serving(0);
  schedule_.OnLost();
  EXPECT_TRUE(schedule_.is_due());
  EXPECT_THAT(Begin().recover, IsEmpty());
  EXPECT_FALSE(schedule_.is_due());
  End();
  EXPECT_EQ(schedule_.next_at(), SteadyTime::InfiniteFuture());
}

TEST_F(RecoveryTest, WhatIsLostIsRecoveredAtOnceButOnlyByACoordinator) {
  const ModelTable::DeploymentPtr model = Lost(0, absl::Minutes(1));
  schedule_.OnLost();
  EXPECT_THAT(schedule_.Begin(models_, reloads_, /*may_act=*/false, now_).recover, IsEmpty());
  schedule_.OnLost();
  EXPECT_THAT(Begin().recover, ElementsAre(model));
}

TEST_F(RecoveryTest, WhatIsLostAgainSoonIsLeftAloneLongerEachTime) {
  const ModelTable::DeploymentPtr model = Lost(3, absl::Seconds(1));
  schedule_.OnLost();
  EXPECT_THAT(Begin().recover, IsEmpty());
  EXPECT_EQ(schedule_.next_at(), now_ + absl::Seconds(2));  // 250 ms, doubled three times
  now_ += absl::Seconds(2);
  EXPECT_THAT(Begin().recover, ElementsAre(model));
}

TEST_F(RecoveryTest, WhatServedForLongIsHealthy) {
  const RecoveryDecision soon = DecideRecovery(*Lost(3, absl::Seconds(29)));
  EXPECT_FALSE(soon.is_healthy);
  EXPECT_EQ(soon.in_a_row, 3u);
  EXPECT_EQ(soon.next_in_a_row, 4u);
  const RecoveryDecision late = DecideRecovery(*Lost(3, absl::Seconds(30)));
  EXPECT_TRUE(late.is_healthy);
  EXPECT_EQ(late.next_in_a_row, 1u);
  EXPECT_TRUE(late.give_up.ok());
}

TEST_F(RecoveryTest, WhatIsLostTimeAndAgainIsGivenUp) {
  EXPECT_TRUE(DecideRecovery(*Lost(4, absl::Seconds(1))).give_up.ok());
  EXPECT_THAT(DecideRecovery(*Lost(5, absl::Seconds(1))).give_up,
              StatusIs(absl::StatusCode::kAborted, HasSubstr("6 times")));
}

TEST_F(RecoveryTest, RequestsWaitForANodeThatMayReturn) {
  const ModelTable::DeploymentPtr model = Lost(0, absl::Minutes(1));
  const absl::Status away = absl::UnavailableError("attic is away");
  const absl::Status no_room = absl::ResourceExhaustedError("no room");
  EXPECT_TRUE(WaitsForReturn(*model, true, true, away));
  EXPECT_TRUE(WaitsForReturn(*model, true, true, no_room));
  EXPECT_FALSE(WaitsForReturn(*model, true, /*lost_a_node=*/false, no_room));
  EXPECT_FALSE(WaitsForReturn(*model, /*was_recovering=*/false, true, away));
  EXPECT_FALSE(WaitsForReturn(*model, true, true, absl::InternalError("broken")));
  now_ += absl::Seconds(10);
  EXPECT_FALSE(WaitsForReturn(*model, true, true, away));
}

TEST_F(RecoveryTest, WhatLackedRoomIsTriedAgainMoreAndMoreRarely) {
  reloads_.Add("a", {}, absl::OkStatus());
  schedule_.OnMembersChanged();
  for (const int seconds : {10, 20, 40, 60, 60}) {
    EXPECT_THAT(Begin().reload, ElementsAre("a"));
    reloads_.OnTried("a", absl::ResourceExhaustedError("no room"));
    End();
    EXPECT_EQ(schedule_.next_at(), now_ + absl::Seconds(seconds));
    now_ += absl::Seconds(seconds - 1);
    EXPECT_THAT(Begin().reload, IsEmpty());
    End();
    now_ += absl::Seconds(1);
  }
  schedule_.OnMembersChanged();  // which may help
  EXPECT_THAT(Begin().reload, ElementsAre("a"));
  End();
  EXPECT_EQ(schedule_.next_at(), now_ + absl::Seconds(10));
}

TEST_F(RecoveryTest, WhatLacksMoreThanRoomWaitsForAChange) {
  reloads_.Add("a", {}, absl::InvalidArgumentError("no such architecture"));
  schedule_.OnLost();
  EXPECT_THAT(Begin().reload, IsEmpty());
  End();
  EXPECT_EQ(schedule_.next_at(), SteadyTime::InfiniteFuture());
  schedule_.OnRoomMade();
  EXPECT_THAT(Begin().reload, ElementsAre("a"));
}

TEST_F(RecoveryTest, WhatWasDeferredIsTriedSoon) {
  reloads_.Add("a", {}, absl::OkStatus());
  schedule_.OnMembersChanged();
  Begin();
  End(/*deferred=*/true);
  EXPECT_EQ(schedule_.next_at(), now_ + absl::Milliseconds(50));
  now_ = schedule_.next_at();
  EXPECT_THAT(Begin().reload, ElementsAre("a"));
}

}  // namespace
}  // namespace strata
