#include "coordinator/models/node_drain.h"

#include <memory>
#include <string>

#include "absl/status/status_matchers.h"
#include "coordinator/request/request_status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/models/placed_model.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::strata::testing::Continue;
using ::strata::testing::Loadable;
using ::strata::testing::Place;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Step = NodeDrain::Step;
using Reuse = PlanningOptions::Reuse;

const absl::Status kGo = absl::OkStatus(), kGone = absl::CancelledError("interrupted"),
                   kNoRoom = absl::ResourceExhaustedError("no room");

class NodeDrainTest : public ::testing::Test {
 protected:
  // Serves, or has failed to load.
  ModelTable::DeploymentPtr Add(uint32_t layers = 2, bool serves = true) {
    Deployment::Options options = Loadable();
    options.broken = [] {};
    options.request.mutable_placement()->set_assign("slow=0-1");
    if (!serves) {
      options.build = [](const PipelineOptions&, Pipeline::Listener*,
                         const Pipeline::Progress&) -> absl::StatusOr<std::unique_ptr<Pipeline>> {
        return kNoRoom;
      };
    }
    const ModelTable::DeploymentPtr model =
        Place(std::move(options), testing::TinyLlama({.n_layer = layers})).deployment;
    EXPECT_EQ(model->Load(Continue).ok(), serves);
    models_.Put(model);
    return model;
  }
  void Lose(const ModelTable::DeploymentPtr& model) { model->LoseNode(kNode); }
  // A request that does not end by itself.
  static void Request(const ModelTable::DeploymentPtr& model) {
    GenerationRequest request;
    request.prompt = {1};
    request.tokens_max = 1;
    EXPECT_THAT(model->engine()->Add(std::move(request), std::make_shared<Ignore>()), IsOk());
  }
  // A drain whose first model found no room beside, but elsewhere: its requests are waited for.
  NodeDrain Awaiting() {
    NodeDrain drain(kNode, models_);
    EXPECT_EQ(drain.Next(models_, kGo), Step::kPlanBeside);
    drain.OnPlanned(kNoRoom);
    EXPECT_EQ(drain.Next(models_, kGo), Step::kPlanAnew);
    drain.OnPlanned(absl::OkStatus());
    return drain;
  }
  // Whether `model` takes requests.
  static wire::ModelStatus::State StateOf(const ModelTable::DeploymentPtr& model) {
    return model->Status().state();
  }

  class Ignore final : public GenerationListener {
    void OnToken(const wire::SampledToken&) override {}
    void OnEnd(absl::Status, FinishReason, const GenerationUsage&) override {}
  };
  const std::string kNode = std::string(32, 'a');
  ModelTable models_{0};
};

TEST_F(NodeDrainTest, ANodeWithoutModelsMayLeaveAtOnce) {
  Add();
  NodeDrain drain(std::string(32, 'b'), models_);
  EXPECT_EQ(drain.Next(models_, kGo), Step::kEnd);
  EXPECT_THAT(drain.status(), IsOk());
}

TEST_F(NodeDrainTest, ModelsMoveOneAfterTheOtherWhileTheyServe) {
  Add(2);
  Add(3);
  NodeDrain drain(kNode, models_);
  ModelTable::DeploymentPtr before;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(drain.Next(models_, kGo), Step::kPlanBeside);
    EXPECT_NE(drain.model(), before);
    before = drain.model();
    EXPECT_TRUE(drain.planning().beside);
    EXPECT_EQ(drain.planning().reuse, Reuse::kAround);
    EXPECT_THAT(drain.request().placement().assign(), IsEmpty());
    EXPECT_EQ(drain.request().placement().n_ctx(), 64u);
    drain.OnPlanned(absl::OkStatus());
    EXPECT_EQ(drain.Next(models_, kGo), Step::kMigrate);
    drain.OnMigrated(absl::OkStatus(), models_, kGo);
  }
  EXPECT_EQ(drain.Next(models_, kGo), Step::kEnd);
  EXPECT_THAT(drain.status(), IsOk());
}

TEST_F(NodeDrainTest, AModelThatWasUnloadedMeanwhileHasLeft) {
  const ModelTable::DeploymentPtr model = Add();
  NodeDrain drain(kNode, models_);
  models_.Remove(model);
  EXPECT_EQ(drain.Next(models_, kGo), Step::kEnd);
  EXPECT_THAT(drain.status(), IsOk());
}

TEST_F(NodeDrainTest, AModelThatIsBeingRecoveredStays) {
  Lose(Add());
  NodeDrain drain(kNode, models_);
  EXPECT_EQ(drain.Next(models_, kGo), Step::kEnd);
  EXPECT_THAT(drain.status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("drain the node again")));
}

TEST_F(NodeDrainTest, WhoeverWaitedForItEndsItWhereItIsNotDoneYet) {
  const ModelTable::DeploymentPtr model = Add();
  NodeDrain drain(kNode, models_);
  EXPECT_EQ(drain.Next(models_, kGone), Step::kEnd);
  EXPECT_EQ(drain.status(), kGone);
  NodeDrain done(kNode, models_);
  EXPECT_EQ(done.Next(models_, kGo), Step::kPlanBeside);
  done.OnPlanned(absl::OkStatus());
  done.OnMigrated(absl::OkStatus(), models_, kGo);
  EXPECT_EQ(done.Next(models_, kGone), Step::kEnd);
  EXPECT_THAT(done.status(), IsOk());
}

// The models are not here any more, but have not left the node.
TEST_F(NodeDrainTest, TheNextCoordinatorIsToBeAskedWhereTheRoleHasGone) {
  const ModelTable::DeploymentPtr model = Add();
  NodeDrain drain(kNode, models_);
  models_.Clear();
  EXPECT_EQ(drain.Next(models_, AsLeaderChanged(absl::UnavailableError("not here"))), Step::kEnd);
  EXPECT_TRUE(IsLeaderChanged(drain.status()));
}

TEST_F(NodeDrainTest, AMigrationThatFailsEndsTheDrain) {
  Add();
  NodeDrain drain(kNode, models_);
  drain.Next(models_, kGo);
  drain.OnPlanned(absl::OkStatus());
  drain.OnMigrated(absl::UnavailableError("a link broke"), models_, kGo);
  EXPECT_EQ(drain.Next(models_, kGo), Step::kEnd);
  EXPECT_THAT(drain.status(), StatusIs(absl::StatusCode::kUnavailable, "a link broke"));
}

TEST_F(NodeDrainTest, AMigrationStopsForARecoveryAndForItsCaller) {
  const ModelTable::DeploymentPtr model = Add();
  EXPECT_TRUE(NodeDrain::MayMigrate(models_, true));
  EXPECT_FALSE(NodeDrain::MayMigrate(models_, false));
  const absl::Status cancelled = absl::CancelledError("cancelled");
  NodeDrain unloaded(kNode, models_), recovered(kNode, models_), left(kNode, models_);
  for (NodeDrain* drain : {&unloaded, &recovered, &left}) {
    drain->Next(models_, kGo);
    drain->OnPlanned(absl::OkStatus());
  }
  unloaded.OnMigrated(cancelled, models_, kGo);
  EXPECT_EQ(unloaded.status(), cancelled);
  Lose(model);
  EXPECT_FALSE(NodeDrain::MayMigrate(models_, true));
  recovered.OnMigrated(cancelled, models_, kGo);
  EXPECT_THAT(recovered.status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("drain the node again")));
  left.OnMigrated(cancelled, models_, kGone);
  EXPECT_EQ(left.status(), kGone);
}

TEST_F(NodeDrainTest, WithoutRoomBesideItsMemoryCountsAsFree) {
  const ModelTable::DeploymentPtr model = Add();
  NodeDrain drain(kNode, models_);
  drain.Next(models_, kGo);
  drain.OnPlanned(kNoRoom);
  EXPECT_EQ(drain.Next(models_, kGo), Step::kPlanAnew);
  EXPECT_FALSE(drain.planning().beside);
  EXPECT_EQ(drain.planning().reuse, Reuse::kIgnored);
  ASSERT_EQ(drain.freed().size(), 1u);
  EXPECT_EQ(drain.freed()[0].node_id, kNode);
  drain.OnPlanned(kNoRoom);
  EXPECT_EQ(drain.Next(models_, kGo), Step::kEnd);
  EXPECT_EQ(drain.status(), kNoRoom);
  EXPECT_EQ(StateOf(model), wire::ModelStatus::SERVING);
}

TEST_F(NodeDrainTest, AModelThatServesNotHasNoMemoryToFree) {
  Add(2, /*serves=*/false);
  NodeDrain drain(kNode, models_);
  EXPECT_EQ(drain.Next(models_, kGo), Step::kPlanAnew);
  EXPECT_THAT(drain.freed(), IsEmpty());
}

TEST_F(NodeDrainTest, RequestsEndBeforeItIsLoadedElsewhere) {
  const ModelTable::DeploymentPtr model = Add();
  Request(model);
  NodeDrain drain = Awaiting();
  EXPECT_EQ(StateOf(model), wire::ModelStatus::MOVING);
  EXPECT_EQ(drain.Next(models_, kGo), Step::kAwaitRequests);
  model->engine()->Stop(absl::OkStatus());
  EXPECT_EQ(drain.Next(models_, kGo), Step::kReload);
  EXPECT_FALSE(drain.planning().beside);
  drain.OnReloaded(absl::OkStatus(), /*comes_back=*/false);
  EXPECT_EQ(drain.Next(models_, kGone), Step::kEnd);
  EXPECT_THAT(drain.status(), IsOk());
}

TEST_F(NodeDrainTest, AModelTakesRequestsAgainWhereTheyAreNotWaitedForAnyMore) {
  const ModelTable::DeploymentPtr model = Add();
  Request(model);
  NodeDrain drain = Awaiting();
  EXPECT_EQ(drain.Next(models_, kGone), Step::kEnd);
  EXPECT_EQ(StateOf(model), wire::ModelStatus::SERVING);
}

TEST_F(NodeDrainTest, ARecoveryOfAnotherModelEndsTheWait) {
  const ModelTable::DeploymentPtr other = Add(3);
  const ModelTable::DeploymentPtr model = Add(2);
  NodeDrain drain(kNode, models_);
  drain.Next(models_, kGo);
  Request(drain.model());
  drain.OnPlanned(kNoRoom);
  drain.OnPlanned(absl::OkStatus());
  Lose(drain.model() == model ? other : model);
  EXPECT_EQ(drain.Next(models_, kGo), Step::kEnd);
  EXPECT_THAT(drain.status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("drain the node again")));
}

TEST_F(NodeDrainTest, WhatBecomesOfAModelThatIsNotLoadedElsewhereIsSaid) {
  Add();
  NodeDrain back = Awaiting(), gone = Awaiting(), next = Awaiting();
  back.OnReloaded(kNoRoom, /*comes_back=*/true);
  EXPECT_THAT(back.status(),
              StatusIs(kNoRoom.code(), AllOf(HasSubstr("no room"), HasSubstr("loaded again"))));
  gone.OnReloaded(kNoRoom, /*comes_back=*/false);
  EXPECT_THAT(gone.status(), StatusIs(kNoRoom.code(), HasSubstr("strata load")));
  EXPECT_FALSE(IsLeaderChanged(gone.status()));
  next.OnReloaded(AsLeaderChanged(kNoRoom), /*comes_back=*/false);
  EXPECT_TRUE(IsLeaderChanged(next.status()));
}

}  // namespace
}  // namespace strata
