#include "coordinator/models/reload_queue.h"

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/models/placed_model.h"

namespace strata {
namespace {

using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Optional;
using ::testing::SizeIs;

const SteadyTime kStart = SteadyTime() + absl::Hours(1);

const ModelTable kNoModels(0);

wire::LoadModelRequest Of(const std::string& path) {
  wire::LoadModelRequest request;
  request.mutable_source()->set_path(path);
  return request;
}

TEST(ReloadQueue, NothingIsKnownUntilItHasLearnt) {
  ReloadQueue queue;
  queue.Forget();
  EXPECT_TRUE(queue.is_unknown());
  EXPECT_TRUE(queue.MayLoadSoon());
  EXPECT_FALSE(queue.Learn({}, kNoModels, 16));
  EXPECT_FALSE(queue.is_unknown());
  EXPECT_FALSE(queue.MayLoadSoon());
  queue.Forget();
  EXPECT_TRUE(queue.is_unknown());
}

TEST(ReloadQueue, LearnsAsManyAsThereIsRoomFor) {
  ReloadQueue queue;
  EXPECT_TRUE(queue.Learn({{"a", Of("/a.gguf")}, {"b", Of("/b.gguf")}, {"c", Of("/c.gguf")}},
                          kNoModels, 2));
  EXPECT_THAT(queue.entries(), SizeIs(2));
  EXPECT_TRUE(queue.MayLoadSoon());
}

TEST(ReloadQueue, AnEntryStaysUntilItIsLoaded) {
  ReloadQueue queue;
  queue.Learn({{"a", Of("/models/a.gguf")}}, kNoModels, 16);
  EXPECT_THAT(queue.WhyNotHere("a"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("is being loaded again")));
  queue.OnTried("a", absl::ResourceExhaustedError("no room on attic"));
  EXPECT_FALSE(queue.MayLoadSoon());
  EXPECT_TRUE(queue.entries().at("a").MayLoadLater());
  EXPECT_FALSE(queue.Learn({{"a", Of("/models/a.gguf")}}, kNoModels, 16));  // known, and why not
  EXPECT_THAT(queue.WhyNotHere("a"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no room on attic")));
  EXPECT_TRUE(queue.WhyNotHere("b").ok());
  queue.OnTried("a", absl::OkStatus());
  EXPECT_THAT(queue.entries(), IsEmpty());
  queue.OnTried("a", absl::InternalError("late"));
  EXPECT_THAT(queue.entries(), IsEmpty());
}

TEST(ReloadQueue, LearnsOfNoModelThatIsThere) {
  const ModelTable::DeploymentPtr there = testing::Place().deployment;
  ModelTable models(0);
  models.Put(there);
  ReloadQueue queue;
  EXPECT_FALSE(queue.Learn({{there->model_id(), Of("/a.gguf")}}, models, 16));
  EXPECT_THAT(queue.entries(), IsEmpty());
}

TEST(ReloadQueue, MatchesOneEntryAndNotSeveral) {
  ReloadQueue queue;
  queue.Add("a", Of("/models/tiny.gguf"), absl::OkStatus());
  EXPECT_THAT(queue.Match("tiny"), Optional(std::string("a")));
  EXPECT_EQ(queue.Match("other"), std::nullopt);
  queue.Add("b", Of("/backup/tiny.gguf"), absl::OkStatus());
  EXPECT_EQ(queue.Match("tiny"), std::nullopt);
  EXPECT_THAT(queue.Match("/backup/tiny.gguf"), Optional(std::string("b")));
}

TEST(ReloadQueue, StagesOfWhatIsAboutToBeLoadedAreKept) {
  ReloadQueue queue;
  queue.Add("a", Of("/a.gguf"), absl::OkStatus());
  queue.BeginLoad("b");
  queue.BeginLoad("b");  // two callers
  queue.Hold("c", kStart + absl::Seconds(10));
  EXPECT_THAT(queue.KeptIds(kStart), ElementsAre("a", "b", "c"));
  queue.EndLoad("b");
  EXPECT_THAT(queue.KeptIds(kStart + absl::Seconds(10)), ElementsAre("a", "b", "c"));
  queue.EndLoad("b");
  EXPECT_THAT(queue.KeptIds(kStart + absl::Seconds(11)), ElementsAre("a"));
}

}  // namespace
}  // namespace strata
