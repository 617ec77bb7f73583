#include "coordinator/models/model_table.h"

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/models/placed_model.h"

namespace strata {
namespace {

using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::strata::testing::Place;
using ::strata::testing::TinyLlama;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Optional;
using ::testing::SizeIs;

wire::LoadModelRequest Request(bool hold, int64_t keep_alive_ms = 0, bool pinned = false) {
  wire::LoadModelRequest request;
  request.set_hold(hold);
  request.set_keep_alive_ms(keep_alive_ms);
  request.set_pinned(pinned);
  return request;
}
const wire::LoadModelRequest kHold = Request(true), kStay = Request(false);

class ModelTableTest : public ::testing::Test {
 protected:
  const ModelTable::DeploymentPtr small_ = Place().deployment;
  const ModelTable::DeploymentPtr large_ = Place({}, TinyLlama({.n_layer = 3})).deployment;
  ModelTable table_{100};
};

TEST_F(ModelTableTest, AHeldModelGoesWithItsLastLease) {
  table_.Put(small_);
  const uint64_t first = table_.OnLoaded(small_, /*hold=*/true);
  const std::optional<uint64_t> second = table_.Join(small_, kHold);
  ASSERT_TRUE(second.has_value());
  EXPECT_NE(first, *second);
  EXPECT_GT(first, 100u);
  EXPECT_THAT(table_.pins(), IsEmpty());
  EXPECT_EQ(table_.Release(first), nullptr);
  EXPECT_FALSE(table_.HasLease(first));
  EXPECT_TRUE(table_.HasLease(*second));
  EXPECT_EQ(table_.Release(first), nullptr);  // it counts once
  EXPECT_EQ(table_.Release(*second), small_);
  EXPECT_FALSE(table_.Has(small_));
  EXPECT_TRUE(table_.is_empty());
}

TEST_F(ModelTableTest, AHeldModelThatIsLoadedToStayStays) {
  table_.Put(small_);
  const uint64_t lease = table_.OnLoaded(small_, /*hold=*/true);
  EXPECT_THAT(table_.Join(small_, kStay), Optional(0u));
  EXPECT_FALSE(table_.HasLease(lease));
  EXPECT_EQ(table_.Release(lease), nullptr);
  EXPECT_TRUE(table_.Has(small_));
  ASSERT_THAT(table_.pins(), SizeIs(1));
  EXPECT_EQ(table_.pins().begin()->second.model_id(), small_->model_id());
}

TEST_F(ModelTableTest, AHolderOfAPinnedModelHasNoLease) {
  table_.Put(small_);
  EXPECT_EQ(table_.OnLoaded(small_, /*hold=*/false), 0u);
  EXPECT_THAT(table_.Join(small_, kHold), Optional(0u));
}

class ModelTableKeepAliveTest : public ModelTableTest {
 protected:
  // Loaded by a request.
  ModelTable::DeploymentPtr Load(int64_t keep_alive_ms) {
    Deployment::Options options;
    options.request = Request(/*hold=*/false, keep_alive_ms);
    options.request.set_make_room(true);
    const ModelTable::DeploymentPtr model = Place(options).deployment;
    table_.Put(model);
    table_.OnLoaded(model, /*hold=*/false);
    return model;
  }
  const wire::LoadModelRequest& Pin(const ModelTable::DeploymentPtr& model) const {
    return table_.pins().at(model->model_id());
  }
};

TEST_F(ModelTableKeepAliveTest, AReloadKeepsItAndMakesNoRoom) {
  const auto model = Load(5'000);
  EXPECT_EQ(Pin(model).keep_alive_ms(), 5'000);
  EXPECT_FALSE(Pin(model).make_room());
}

TEST_F(ModelTableKeepAliveTest, OfTwoLoadsTheLongerTimeCounts) {
  const auto model = Load(5'000);
  table_.Join(model, Request(/*hold=*/false, 3'000));
  EXPECT_EQ(Pin(model).keep_alive_ms(), 5'000);
  table_.Join(model, Request(/*hold=*/false, 9'000, /*pinned=*/true));
  EXPECT_EQ(Pin(model).keep_alive_ms(), 9'000);
  table_.Join(model, kStay);
  table_.Join(model, Request(/*hold=*/false, 9'000));
  EXPECT_EQ(Pin(model).keep_alive_ms(), 0) << "it stays";
  EXPECT_TRUE(Pin(model).pinned());
}

TEST_F(ModelTableKeepAliveTest, AHeldModelGetsThatOfTheLoadThatJoins) {
  table_.Put(small_);
  table_.OnLoaded(small_, /*hold=*/true);
  table_.Join(small_, Request(/*hold=*/false, 5'000));
  EXPECT_EQ(Pin(small_).keep_alive_ms(), 5'000);
}

TEST_F(ModelTableKeepAliveTest, ItHasLeasesBesideItsPin) {
  const auto model = Load(5'000);
  const uint64_t lease = table_.Join(model, kHold).value();
  EXPECT_TRUE(table_.HasLease(lease));
  EXPECT_TRUE(table_.IsHeld(model->model_id()));
  EXPECT_EQ(table_.Release(lease), nullptr);
  EXPECT_FALSE(table_.IsHeld(model->model_id()));
  EXPECT_TRUE(table_.Has(model));
}

TEST_F(ModelTableKeepAliveTest, RequestsChangeItButWherePeoplePin) {
  const auto model = Load(5'000);
  table_.SetKeepAlive(model->model_id(), 1);
  EXPECT_EQ(Pin(model).keep_alive_ms(), 1);
  table_.Join(model, Request(/*hold=*/false, 0, /*pinned=*/true));
  table_.SetKeepAlive(model->model_id(), 1);
  EXPECT_EQ(Pin(model).keep_alive_ms(), 0);
}

TEST_F(ModelTableTest, APinIsNoHold) {
  Deployment::Options options;
  options.request.set_hold(true);
  const ModelTable::DeploymentPtr held = Place(options).deployment;
  table_.Put(held);
  table_.OnLoaded(held, /*hold=*/true);
  table_.Join(held, kStay);
  EXPECT_FALSE(table_.pins().at(held->model_id()).hold());
}

TEST_F(ModelTableTest, WhatTakesAPlaceHasItsPinAndItsLeases) {
  const ModelTable::DeploymentPtr next = Place().deployment;
  ASSERT_EQ(next->model_id(), small_->model_id());
  table_.Put(small_);
  const uint64_t lease = table_.OnLoaded(small_, /*hold=*/true);
  EXPECT_TRUE(table_.Replace(small_, next));
  EXPECT_FALSE(table_.Replace(small_, next));
  EXPECT_FALSE(table_.Remove(small_));
  EXPECT_TRUE(table_.Has(next));
  EXPECT_TRUE(table_.HasLease(lease));
  EXPECT_THAT(table_.Join(small_, kHold), ::testing::Eq(std::nullopt));
}

TEST_F(ModelTableTest, WhatWasUnloadedWhileItWasLoadedIsNotPinned) {
  EXPECT_EQ(table_.OnLoaded(small_, /*hold=*/false), 0u);
  EXPECT_THAT(table_.pins(), IsEmpty());
  const uint64_t lease = table_.OnLoaded(small_, /*hold=*/true);
  EXPECT_FALSE(table_.HasLease(lease));
}

TEST_F(ModelTableTest, FindsByNameAndListsWhatThereIs) {
  EXPECT_THAT(table_.Find(""), StatusIs(absl::StatusCode::kNotFound, HasSubstr("strata load")));
  table_.Put(small_);
  EXPECT_THAT(table_.Find(""), IsOkAndHolds(small_));
  EXPECT_THAT(table_.Find("tiny"), IsOkAndHolds(small_));
  table_.Put(large_);  // of the same name
  EXPECT_THAT(table_.Find(""), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("which")));
  EXPECT_THAT(table_.Find("tiny"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("several")));
  EXPECT_THAT(table_.Find(table_.ShownName(large_).str()), IsOkAndHolds(large_));
  EXPECT_THAT(table_.Find("other"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("tiny")));
}

TEST_F(ModelTableTest, IsEmptyAfterTheRoleHasGone) {
  table_.Put(small_);
  table_.OnLoaded(small_, /*hold=*/true);
  table_.Put(large_);
  table_.OnLoaded(large_, /*hold=*/false);
  EXPECT_THAT(table_.Clear(), SizeIs(2));
  EXPECT_TRUE(table_.is_empty());
  EXPECT_THAT(table_.pins(), IsEmpty());
}

}  // namespace
}  // namespace strata
