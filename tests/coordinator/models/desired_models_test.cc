#include "coordinator/models/desired_models.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/models/placed_model.h"

namespace strata {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Key;

wire::LoadModelRequest Of(const std::string& id, const std::string& path = "/a.gguf") {
  wire::LoadModelRequest request;
  request.set_model_id(id);
  request.mutable_source()->set_path(path);
  return request;
}

DesiredState List(const std::vector<wire::LoadModelRequest>& models) {
  DesiredState desired;
  for (const wire::LoadModelRequest& one : models) {
    desired.models.push_back(one.SerializeAsString());
  }
  return desired;
}

TEST(DesiredModels, WhatIsNoRequestIsLeftOut) {
  DesiredState desired = List({Of("a"), Of("")});
  desired.models.emplace_back("\xff\xff");
  EXPECT_THAT(ModelsOf(desired), ElementsAre(Key("a")));
}

TEST(DesiredModels, ModelsStayThatNobodyHolds) {
  EXPECT_TRUE(StaysLoaded(Of("a")));
  wire::LoadModelRequest held = Of("a"), idle = Of("a");
  held.set_hold(true);
  idle.set_keep_alive_ms(1000);
  EXPECT_FALSE(StaysLoaded(held));
  EXPECT_TRUE(StaysLoaded(idle));  // its requests go on when the coordinator is lost
}

TEST(DesiredModels, OnlyDecisionsMakeAnotherList) {
  DesiredModels decisions;
  const DesiredState desired = List({Of("a"), Of("b")});
  EXPECT_EQ(decisions.Next(desired), std::nullopt);
  decisions.Keep(Of("a"));  // as before
  decisions.Drop("c");      // is not there
  EXPECT_EQ(decisions.Next(desired), std::nullopt);
  decisions.Keep(Of("a", "/other.gguf"));
  decisions.Keep(Of("c"));
  decisions.Drop("b");
  EXPECT_EQ(decisions.Next(desired), List({Of("a", "/other.gguf"), Of("c")}).models);
  EXPECT_EQ(decisions.Next(desired), std::nullopt);  // once
}

TEST(DesiredModels, ADecisionWaitsForTheDisks) {
  DesiredModels decisions;
  decisions.Keep(Of("a"));
  decisions.OnStored();  // the list before
  EXPECT_LT(decisions.stored(), decisions.decided());
  EXPECT_NE(decisions.Next({}), std::nullopt);
  EXPECT_LT(decisions.stored(), decisions.decided());
  decisions.OnStored();
  EXPECT_EQ(decisions.stored(), decisions.decided());
  decisions.Drop("a");
  decisions.Forget();
  EXPECT_EQ(decisions.stored(), decisions.decided());
  EXPECT_EQ(decisions.Next(List({Of("a")})), std::nullopt);
}

class DesiredModelsFollow : public ::testing::Test {
 protected:
  DesiredModelsFollow() {
    models_.Put(there_);
    queue_.Learn({}, models_, 16);
  }
  DesiredModels::Followed Follow(const DesiredState& desired) {
    return decisions_.Follow(desired, 16, &models_, &queue_);
  }

  const ModelTable::DeploymentPtr there_ = testing::Place().deployment;
  ModelTable models_{0};
  ReloadQueue queue_;
  DesiredModels decisions_;
};

TEST_F(DesiredModelsFollow, WhatTheListHasIsLoadedAndWhatItHasNotIsUnloaded) {
  models_.OnLoaded(there_, /*hold=*/false);
  queue_.Add("b", Of("b"), absl::OkStatus());
  const auto followed = Follow(List({Of("c")}));
  EXPECT_THAT(followed.unloads, ElementsAre(there_));
  EXPECT_TRUE(followed.reloads);
  EXPECT_TRUE(models_.is_empty());
  EXPECT_THAT(queue_.entries(), ElementsAre(Key("c")));
}

TEST_F(DesiredModelsFollow, ModelsThatAreHeldAreLeftAlone) {
  models_.OnLoaded(there_, /*hold=*/true);
  EXPECT_THAT(Follow({}).unloads, IsEmpty());
  EXPECT_TRUE(models_.Has(there_));
}

TEST_F(DesiredModelsFollow, AHeldModelThatTheListHasStays) {
  const uint64_t lease = models_.OnLoaded(there_, /*hold=*/true);
  Follow(List({Of(there_->model_id())}));
  EXPECT_THAT(models_.pins(), ElementsAre(Key(there_->model_id())));
  EXPECT_FALSE(models_.HasLease(lease));
}

TEST_F(DesiredModelsFollow, AModelThatIsStillBeingLoadedForACallerIsPinnedNext) {
  EXPECT_TRUE(Follow(List({Of(there_->model_id())})).reloads);
  EXPECT_THAT(queue_.entries(), ElementsAre(Key(there_->model_id())));
  EXPECT_TRUE(models_.Has(there_));
}

TEST_F(DesiredModelsFollow, DecisionsThatAreInNoListYetCount) {
  models_.OnLoaded(there_, /*hold=*/false);
  decisions_.Keep(models_.pins().begin()->second);
  decisions_.Drop("b");
  const auto followed = Follow(List({Of("b")}));
  EXPECT_THAT(followed.unloads, IsEmpty());
  EXPECT_FALSE(followed.reloads);
  EXPECT_TRUE(models_.Has(there_));
  EXPECT_THAT(queue_.entries(), IsEmpty());
}

}  // namespace
}  // namespace strata
