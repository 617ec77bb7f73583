#include "coordinator/models/deployment.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/synchronization/notification.h"
#include "coordinator/generation/generation_call.h"
#include "coordinator/generation/pipeline.h"
#include "coordinator/request/generation_request.h"
#include "coordinator/request/request_status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "node/api/api_error.h"
#include "tests/coordinator/models/placed_model.h"

namespace strata {
namespace {

using ::absl_testing::StatusIs;
using ::strata::testing::Continue;
using ::strata::testing::EndlessPipeline;
using ::strata::testing::Place;
using ::strata::testing::Placed;
using ::testing::HasSubstr;

TEST(Deployment, ALoadEndsWithTheReasonForWhichItIsUnloaded) {
  const Placed placed = Place();
  absl::Status loaded;
  std::thread loader([&] { loaded = placed.deployment->Load(Continue); });
  placed.node->loading.WaitForNotification();
  placed.deployment->Unload(absl::UnavailableError("the node is stopping"));
  loader.join();
  EXPECT_THAT(loaded, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("is stopping")));
  EXPECT_FALSE(placed.deployment->serving());
}

TEST(Deployment, AModelUnloadedBeforeItsLoadIsNotLoaded) {
  const Placed placed = Place();
  placed.deployment->Unload(absl::UnavailableError("it was unloaded"));
  EXPECT_THAT(placed.deployment->Load(Continue),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("it was unloaded")));
  EXPECT_FALSE(placed.node->loading.HasBeenNotified());
}

// Its links cannot be made, so its loaded stage is unloaded again.
TEST(Deployment, ANodeThatIsGoneIsNotWaitedForWhenItsStageIsUnloaded) {
  std::string queried;
  Deployment::Options options;
  options.listen_host = "127.0.0.1";
  options.gone = [&](const std::string& node_id) {
    queried = node_id;
    return true;
  };
  const Placed placed = Place(std::move(options));
  placed.node->loads = true;
  EXPECT_THAT(placed.deployment->Load(Continue),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("nobody there")));
  EXPECT_EQ(queried, placed.node->id());
}

// An idle link does not notice the loss.
TEST(Deployment, ANodeThatIsGoneLosesItsStage) {
  int broken = 0;
  Pipeline::Listener* listener = nullptr;
  Deployment::Options options = ::strata::testing::Loadable(&listener);
  options.broken = [&] { ++broken; };
  const Placed placed = Place(std::move(options));
  ASSERT_TRUE(placed.deployment->Load(Continue).ok());
  placed.deployment->LoseNode(std::string(32, 'b'));
  EXPECT_TRUE(placed.deployment->serving());
  placed.deployment->LoseNode(std::string(32, 'a'));
  EXPECT_TRUE(placed.deployment->recovering());
  EXPECT_THAT(placed.deployment->why(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("has gone")));
  // The link notices later, and again and again the node is gone.
  listener->OnBroken(absl::UnavailableError("keepalive"));
  placed.deployment->LoseNode(std::string(32, 'a'));
  EXPECT_EQ(broken, 1);
  EXPECT_THAT(placed.deployment->why(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("gone")));
}

class RecordingSink final : public GenerationListener {
 public:
  void OnStarted(const std::vector<int32_t>&) override {}
  void OnToken(const wire::SampledToken&) override {}
  void OnEnd(absl::Status status, FinishReason, const GenerationUsage&) override {
    how = std::move(status);
    ended.Notify();
  }
  absl::Status how;  // once it has ended
  absl::Notification ended;
};

// Its client may go long before the model is there.
TEST(Deployment, ARequestThatWaitsForTheModelEndsWhenItsClientCancels) {
  Deployment::Options options;
  options.requests_wait = true;
  options.gone = [](const std::string&) { return true; };  // its unloads never end
  const Placed placed = Place(std::move(options));
  std::thread loader([&] { placed.deployment->Load(Continue).IgnoreError(); });
  placed.node->loading.WaitForNotification();
  const auto waits = std::make_shared<RecordingSink>(), leaves = std::make_shared<RecordingSink>();
  placed.deployment->Generate({}, std::make_shared<GenerationCall>(waits));
  const auto call = std::make_shared<GenerationCall>(leaves);
  placed.deployment->Generate({}, call);
  EXPECT_FALSE(leaves->ended.HasBeenNotified());
  call->Cancel();
  ASSERT_TRUE(leaves->ended.HasBeenNotified());
  EXPECT_THAT(leaves->how, StatusIs(absl::StatusCode::kCancelled));
  const auto gone = std::make_shared<RecordingSink>();
  const auto late = std::make_shared<GenerationCall>(gone);
  late->Cancel();
  placed.deployment->Generate({}, late);
  EXPECT_TRUE(gone->ended.HasBeenNotified());
  EXPECT_FALSE(waits->ended.HasBeenNotified());
  placed.deployment->Unload(absl::UnavailableError("the node is stopping"));
  loader.join();
  EXPECT_THAT(waits->how, StatusIs(absl::StatusCode::kUnavailable));
}

// As when the coordinator stops after it has made a plan, and before it carries it out.
TEST(Deployment, RequestsThatItNeverTookOverGoOn) {
  const Placed lost = Place();
  wire::StageInfo info;
  info.set_n_ctx(64);
  info.set_n_seq_max(1);
  info.set_n_batch(16);
  EndlessPipeline pipeline({info});
  ASSERT_TRUE(lost.deployment->engine()->Start(&pipeline).ok());
  GenerationRequest request;
  request.prompt = {1, 2, 3};
  request.tokens_max = 5;
  const auto sink = std::make_shared<RecordingSink>();
  ASSERT_TRUE(lost.deployment->engine()->Add(request, sink).ok());
  Deployment::Options options;
  options.inherited = lost.deployment->engine();
  Place(options).deployment->Unload(absl::CancelledError("not wanted any more"));
  EXPECT_FALSE(sink->ended.HasBeenNotified());
  lost.deployment->AnnounceLeaderChange(absl::UnavailableError("the node is stopping"));
  ASSERT_TRUE(sink->ended.HasBeenNotified());
  EXPECT_TRUE(IsLeaderChanged(sink->how)) << sink->how;
}

TEST(Deployment, AModelWithoutItsFileIsOutOfServiceNotUnknown) {
  for (const absl::Status& why :
       {absl::NotFoundError("attic: /models/a.gguf: no such file"),
        absl::FailedPreconditionError("attic: /models/a.gguf is another model now"),
        absl::InternalError("a worker said so"), absl::AbortedError("lost 6 times"),
        absl::ResourceExhaustedError("no room on attic"),
        absl::UnavailableError("attic is away")}) {
    const Placed placed = Place();
    placed.deployment->Fail(why);
    const auto sink = std::make_shared<RecordingSink>();
    placed.deployment->Generate({}, std::make_shared<GenerationCall>(sink));
    sink->ended.WaitForNotification();
    EXPECT_EQ(HttpStatusOf(sink->how), 503) << sink->how;
    EXPECT_THAT(std::string(sink->how.message()), HasSubstr(why.message()));
    EXPECT_THAT(std::string(placed.deployment->why_not_serving().message()),
                HasSubstr(why.message()));
    EXPECT_EQ(placed.deployment->why(), why);
  }
}

TEST(Deployment, ACancelledLoadIsCancelled) {
  const Placed placed = Place();
  const auto stop = [](uint32_t, const wire::LoadProgress&) { return false; };
  EXPECT_THAT(placed.deployment->Load(stop), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_FALSE(placed.deployment->serving());
}

}  // namespace
}  // namespace strata
