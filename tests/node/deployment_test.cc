#include "node/deployment.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status_matchers.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/node/weights_fixture.h"
#include "tests/support/silent_node.h"

namespace strata {
namespace {

using ::absl_testing::StatusIs;
using ::strata::testing::Opened;
using ::strata::testing::SilentNode;
using ::strata::testing::TinyLlama;
using ::strata::testing::Write;
using ::testing::HasSubstr;

// A node whose loads last until they are cancelled.
class SlowNode final : public SilentNode {
 public:
  SlowNode() : SilentNode("slow", std::string(32, 'a')) {}
  absl::StatusOr<wire::StageInfo> LoadStage(const wire::StageSpec&, Progress progress) override {
    loading.Notify();
    if (loads) {
      wire::StageInfo info;
      info.set_link_address("127.0.0.1:1");
      return info;
    }
    while (progress({})) std::this_thread::yield();
    return absl::CancelledError("slow: cancelled");
  }
  absl::StatusOr<std::string> ShareModel(const std::string&) override { return model_id; }
  absl::Status UnloadStage(const wire::UnloadStageRequest&, GoOn go_on) override {
    while (go_on()) std::this_thread::yield();
    return absl::CancelledError("slow: cancelled");
  }

  absl::Notification loading;
  std::string model_id;
  bool loads = false;  // at once, and unloads never
};

struct Placed {
  std::shared_ptr<Deployment> deployment;
  SlowNode* node = nullptr;
};

Placed Place(Deployment::Options options = {}) {
  auto planned = std::make_unique<PlannedModel>();
  planned->model = Opened(Write(TinyLlama({.n_layer = 2})));
  planned->report.nodes.resize(1);
  NodeReport& report = planned->report.nodes[0];
  auto node = std::make_unique<SlowNode>();
  node->model_id = planned->model->id();
  SlowNode* const slow = node.get();
  report.seen.mutable_record()->set_node_id(std::string(16, '\xaa'));
  report.client = std::move(node);
  planned->source.set_node(std::string(32, 'a'));
  planned->inputs.places = {0};
  planned->inputs.request.devices.resize(1);
  planned->inputs.request.cache.n_ctx = 64;
  planned->plan.stages.resize(1);
  planned->plan.stages[0].layers = {0, 2};
  return {std::make_shared<Deployment>(std::move(options), std::move(planned)), slow};
}

bool GoOn(uint32_t, const wire::LoadProgress&) { return true; }

TEST(Deployment, ALoadEndsWithTheReasonForWhichItIsUnloaded) {
  const Placed placed = Place();
  absl::Status loaded;
  std::thread loader([&] { loaded = placed.deployment->Load(GoOn); });
  placed.node->loading.WaitForNotification();
  placed.deployment->Unload(absl::UnavailableError("the node is stopping"));
  loader.join();
  EXPECT_THAT(loaded, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("is stopping")));
  EXPECT_FALSE(placed.deployment->serving());
}

TEST(Deployment, WhatIsUnloadedBeforeItsLoadIsNotLoaded) {
  const Placed placed = Place();
  placed.deployment->Unload(absl::UnavailableError("it was unloaded"));
  EXPECT_THAT(placed.deployment->Load(GoOn),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("it was unloaded")));
  EXPECT_FALSE(placed.node->loading.HasBeenNotified());
}

// Its links cannot be made, so what is loaded is unloaded again.
TEST(Deployment, ANodeThatIsGoneIsNotWaitedForWhenItsStageIsUnloaded) {
  std::string asked;
  Deployment::Options options;
  options.listen_host = "127.0.0.1";
  options.gone = [&](const std::string& node_id) {
    asked = node_id;
    return true;
  };
  const Placed placed = Place(std::move(options));
  placed.node->loads = true;
  EXPECT_THAT(placed.deployment->Load(GoOn),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("nobody there")));
  EXPECT_EQ(asked, placed.node->id());
}

TEST(Deployment, ACancelledLoadIsCancelled) {
  const Placed placed = Place();
  const auto stop = [](uint32_t, const wire::LoadProgress&) { return false; };
  EXPECT_THAT(placed.deployment->Load(stop), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_FALSE(placed.deployment->serving());
}

}  // namespace
}  // namespace strata
