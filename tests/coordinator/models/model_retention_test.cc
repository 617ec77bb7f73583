#include "coordinator/models/model_retention.h"

#include <memory>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/models/placed_model.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::strata::testing::Continue;
using ::strata::testing::Loadable;
using ::strata::testing::Place;
using ::strata::testing::TinyLlama;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr bool kByHand = true, kByRequest = false;

class ModelRetentionTest : public ::testing::Test {
 protected:
  using DeploymentPtr = ModelTable::DeploymentPtr;

  // A model of so many layers, loaded and serving.
  DeploymentPtr Load(uint32_t n_layer, int64_t keep_alive_ms, bool pinned = false,
                     bool hold = false) {
    Deployment::Options options = Loadable();
    options.request.set_keep_alive_ms(keep_alive_ms);
    options.request.set_pinned(pinned);
    const DeploymentPtr model =
        Place(std::move(options), TinyLlama({.n_layer = n_layer})).deployment;
    EXPECT_THAT(model->Load(Continue), IsOk());
    table_.Put(model);
    lease_ = table_.OnLoaded(model, hold);
    retention_.Observe(table_, now_);
    return model;
  }
  void Pass(absl::Duration time) { now_ += time; }
  DeploymentPtr Expired() { return retention_.NextExpired(table_, now_); }
  std::shared_ptr<void> Begin(const DeploymentPtr& model) {
    return retention_.BeginRequest(model->model_id(), now_);
  }

  SteadyTime now_;
  ModelTable table_{1};
  ModelRetention retention_;
  uint64_t lease_ = 0;
};

TEST_F(ModelRetentionTest, AModelExpiresAfterItsKeepAlive) {
  const DeploymentPtr model = Load(2, 60'000);
  EXPECT_EQ(retention_.next_at(table_), now_ + absl::Seconds(60));
  Pass(absl::Seconds(59));
  EXPECT_EQ(Expired(), nullptr);
  EXPECT_EQ(retention_.IdleFor(table_, model->model_id(), now_), absl::Seconds(59));
  Pass(absl::Seconds(1));
  EXPECT_EQ(Expired(), model);
}

TEST_F(ModelRetentionTest, OneWithoutAKeepAliveStays) {
  Load(2, 0);
  Pass(absl::Hours(1'000));
  EXPECT_EQ(Expired(), nullptr);
  EXPECT_EQ(retention_.next_at(table_), SteadyTime::InfiniteFuture());
}

TEST_F(ModelRetentionTest, ARequestUnderWayKeepsItHoweverLongItTakes) {
  const DeploymentPtr model = Load(2, 1'000);
  std::shared_ptr<void> request = Begin(model);
  for (int i = 0; i < 100; ++i) {
    Pass(absl::Seconds(10));
    EXPECT_EQ(Expired(), nullptr);
    EXPECT_THAT(retention_.Evictable(table_, kByRequest, now_), IsEmpty());
  }
  EXPECT_TRUE(retention_.IsInUse(table_, model->model_id()));
  request.reset();
  EXPECT_EQ(Expired(), nullptr) << "it was in use just now";
  Pass(absl::Seconds(1));
  EXPECT_EQ(Expired(), model);
}

TEST_F(ModelRetentionTest, EachRequestBeginsTheKeepAliveAnew) {
  const DeploymentPtr model = Load(2, 10'000);
  Pass(absl::Seconds(9));
  Begin(model).reset();
  Pass(absl::Seconds(9));
  EXPECT_EQ(Expired(), nullptr);
  Pass(absl::Seconds(1));
  EXPECT_EQ(Expired(), model);
}

// A client that goes on, say behind a thought, does so at once.
TEST_F(ModelRetentionTest, TheShortestKeepAliveLeavesAMoment) {
  const DeploymentPtr model = Load(2, 1);
  Begin(model).reset();
  Pass(ModelRetention::kSettles / 2);
  EXPECT_EQ(Expired(), nullptr);
  Pass(ModelRetention::kSettles / 2);
  EXPECT_EQ(Expired(), model);
}

TEST_F(ModelRetentionTest, ALeaseKeepsIt) {
  const DeploymentPtr model = Load(2, 1'000);
  wire::LoadModelRequest hold;
  hold.set_hold(true);
  const std::optional<uint64_t> lease = table_.Join(model, hold);
  ASSERT_NE(lease.value_or(0), 0u);
  Pass(absl::Seconds(10));
  EXPECT_EQ(Expired(), nullptr);
  EXPECT_EQ(table_.Release(*lease), nullptr) << "it is not unloaded with the lease";
  Pass(absl::Seconds(1));
  EXPECT_EQ(Expired(), model);
}

TEST_F(ModelRetentionTest, ItsTimeCanBeChanged) {
  const DeploymentPtr model = Load(2, 0);
  Pass(absl::Seconds(30));
  table_.SetKeepAlive(model->model_id(), 20'000);
  EXPECT_EQ(Expired(), model);
  table_.SetKeepAlive(model->model_id(), 0);
  EXPECT_EQ(Expired(), nullptr);
}

TEST_F(ModelRetentionTest, EvictsWhatHasBeenIdleForLongest) {
  const DeploymentPtr first = Load(2, 60'000);
  Pass(absl::Seconds(5));
  const DeploymentPtr second = Load(3, 60'000);
  Pass(absl::Seconds(5));
  const DeploymentPtr third = Load(4, 0);
  Pass(absl::Seconds(5));
  Begin(first).reset();
  Pass(absl::Seconds(5));
  EXPECT_THAT(retention_.Evictable(table_, kByRequest, now_), ElementsAre(second, third, first));
  EXPECT_THAT(retention_.Evictable(table_, kByHand, now_), ElementsAre(second, first));
}

TEST_F(ModelRetentionTest, NeitherEvictsWhatIsPinnedNorWhatIsHeldOrWasJustUsed) {
  Load(2, 60'000, /*pinned=*/true);
  Load(3, 0, /*pinned=*/false, /*hold=*/true);
  const DeploymentPtr used = Load(4, 0);
  Pass(absl::Seconds(10));
  Begin(used).reset();
  EXPECT_THAT(retention_.Evictable(table_, kByRequest, now_), IsEmpty());
  EXPECT_TRUE(ModelRetention::AnyMayBeEvicted(table_, kByRequest)) << "the one just used";
  EXPECT_FALSE(ModelRetention::AnyMayBeEvicted(table_, kByHand));
}

TEST_F(ModelRetentionTest, AModelThatComesBackIsNew) {
  const DeploymentPtr model = Load(2, 10'000);
  Pass(absl::Seconds(10));
  ASSERT_EQ(Expired(), model);
  table_.Remove(model);
  Pass(absl::Seconds(10));
  retention_.Observe(table_, now_);
  const DeploymentPtr again = Load(2, 10'000);
  EXPECT_EQ(Expired(), nullptr);
  Pass(absl::Seconds(10));
  EXPECT_EQ(Expired(), again);
}

TEST_F(ModelRetentionTest, AModelThatIsBeingLoadedIsLeftAlone) {
  Deployment::Options options;
  options.request.set_keep_alive_ms(1'000);
  const DeploymentPtr model = Place(std::move(options)).deployment;
  table_.Put(model);
  table_.OnLoaded(model, /*hold=*/false);
  Pass(absl::Seconds(10));
  EXPECT_EQ(Expired(), nullptr);
  Pass(absl::Seconds(10));
  EXPECT_EQ(Expired(), nullptr);
  EXPECT_THAT(retention_.Evictable(table_, kByRequest, now_), IsEmpty());
}

}  // namespace
}  // namespace strata
