#include "node/control/cluster_feed.h"

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using absl_testing::IsOk;
using absl_testing::StatusIs;
using ::testing::HasSubstr;

// Keeps what a client would be sent.
class FakeResponder final : public HttpResponder {
 public:
  void Answer(HttpResponse response) override { Write(response.body); }
  void Begin(HttpResponse head) override { Write(head.body); }
  void Write(absl::string_view bytes) override {
    absl::MutexLock lock(mu_);
    text_ += std::string(bytes);
  }
  void End() override {}
  void OnGone(absl::AnyInvocable<void() &&> fn) override { on_gone_ = std::move(fn); }
  void Run(absl::AnyInvocable<void() &&>) override {}

  void Go() { std::move(on_gone_)(); }
  std::string text() {
    absl::MutexLock lock(mu_);
    return text_;
  }
  // Waits for a text.
  bool Gets(absl::string_view text) {
    absl::MutexLock lock(mu_);
    const auto there = [this, text]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return absl::StrContains(text_, text);
    };
    return mu_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(30));
  }

 private:
  absl::Mutex mu_;
  std::string text_ ABSL_GUARDED_BY(mu_);
  absl::AnyInvocable<void() &&> on_gone_;
};

// A cluster whose name is the number of the look.
class Feed : public ::testing::Test {
 protected:
  ClusterFeed::Options Options() {
    return {.origin = "a",
            .fetch = [this]() -> absl::StatusOr<ClusterState> {
              const int look = ++looks_;
              if (fails_) return absl::UnavailableError("nobody answers");
              wire::ModelStatus model;
              model.set_name("tinz");
              model.set_loaded_s_ago(look);
              model.set_idle_ms(look);
              ClusterState state = {.models = std::vector<wire::ModelStatus>({model})};
              state.report.cluster.set_cluster(absl::StrCat("look", look));
              return state;
            },
            .every = absl::Milliseconds(10)};
  }
  std::atomic<int> looks_ = 0;
  std::atomic<bool> fails_ = false;
  ClusterFeed feed_{Options()};
};

TEST_F(Feed, LooksOnlyWhereSomebodyDoes) {
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_EQ(looks_, 0);
  absl::Notification told;
  ASSERT_THAT(feed_.Look([&](const absl::StatusOr<ClusterFeed::StateJson>& json) {
    EXPECT_THAT(json, IsOk());
    EXPECT_EQ(json->cluster["cluster"], "look1");
    EXPECT_EQ(json->cluster["models"][0]["name"], "tinz");
    EXPECT_EQ((*json->models)["models"][0]["model"], "tinz");
    told.Notify();
  }),
              IsOk());
  told.WaitForNotification();
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_EQ(looks_, 1);
}

TEST_F(Feed, StreamsWhatHasChangedUntilTheWatcherGoes) {
  const auto watcher = std::make_shared<FakeResponder>();
  ASSERT_THAT(feed_.Watch("", {}, watcher), IsOk());
  EXPECT_TRUE(watcher->Gets("event: cluster\ndata: {\"cluster\":\"look2\""));
  const std::string text = watcher->text();
  EXPECT_THAT(text, HasSubstr("event: models\n"));
  EXPECT_EQ(text.find("event: models"), text.rfind("event: models"));  // it has only aged
  watcher->Go();
  const int looks = looks_;
  absl::SleepFor(absl::Milliseconds(60));
  EXPECT_LE(looks_, looks + 1);
}

TEST_F(Feed, SaysWhyThereIsNoState) {
  fails_ = true;
  const auto watcher = std::make_shared<FakeResponder>();
  ASSERT_THAT(feed_.Watch("", {}, watcher), IsOk());
  EXPECT_TRUE(watcher->Gets("event: problem\ndata: {\"error\":{\"message\":\"nobody answers\""));
  fails_ = false;
  EXPECT_TRUE(watcher->Gets("event: cluster\n"));
  watcher->Go();
}

TEST_F(Feed, RefusesMoreThanItsWatchers) {
  std::vector<std::shared_ptr<FakeResponder>> watchers;
  for (size_t i = 0; i < kWatchersMax; ++i) {
    watchers.push_back(std::make_shared<FakeResponder>());
    ASSERT_THAT(feed_.Watch("", {}, watchers.back()), IsOk());
  }
  EXPECT_THAT(feed_.Watch("", {}, std::make_shared<FakeResponder>()),
              StatusIs(absl::StatusCode::kResourceExhausted));
  for (const auto& watcher : watchers) watcher->Go();
  const auto next = std::make_shared<FakeResponder>();
  EXPECT_THAT(feed_.Watch("", {}, next), IsOk());
  next->Go();
}

}  // namespace
}  // namespace strata
