#include "node/gateway/load_queue.h"

#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "coordinator/request/request_status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class LoadQueueTest : public ::testing::Test {
 protected:
  struct Client {
    std::vector<std::string> words;
    std::vector<absl::StatusOr<wire::ModelStatus>> ends;
  };
  LoadQueue::Place Join(const std::string& key, Client* client) {
    return queue_.Join(
        key, key,
        {.on_progress = [client](const std::string& w) { client->words.push_back(w); },
         .on_end =
             [client](const absl::StatusOr<wire::ModelStatus>& end) {
               client->ends.push_back(end);
             }},
        now_);
  }
  static wire::StageProgress Progress(uint32_t stage, uint64_t done, uint64_t total) {
    wire::StageProgress progress;
    progress.set_stage(stage);
    progress.mutable_progress()->set_bytes_done(done);
    progress.mutable_progress()->set_bytes_total(total);
    return progress;
  }

  SteadyTime now_;
  LoadQueue queue_{{.waiters_max = 3, .wait_time = absl::Seconds(60)}};
};

TEST_F(LoadQueueTest, OneLoadIsForAllThatNameIt) {
  Client a, b, other;
  EXPECT_TRUE(Join("m", &a).is_first);
  EXPECT_FALSE(Join("m", &b).is_first);
  EXPECT_TRUE(Join("n", &other).is_first);
  queue_.OnEnd("m", wire::ModelStatus());
  for (const Client* client : {&a, &b}) {
    ASSERT_EQ(client->ends.size(), 1u);
    EXPECT_THAT(client->ends[0], IsOk());
  }
  EXPECT_THAT(other.ends, IsEmpty());
  EXPECT_TRUE(Join("m", &a).is_first) << "a new load";
}

TEST_F(LoadQueueTest, AFailureIsEverybodysAndIsNotTriedAgain) {
  Client a, b;
  Join("m", &a);
  Join("m", &b);
  queue_.OnEnd("m", absl::ResourceExhaustedError("no room"));
  ASSERT_EQ(a.ends.size(), 1u);
  EXPECT_THAT(b.ends[0], StatusIs(absl::StatusCode::kResourceExhausted, "no room"));
  EXPECT_TRUE(queue_.is_empty());
}

TEST_F(LoadQueueTest, SaysHowFarTheLoadIs) {
  Client client;
  Join("m", &client);
  queue_.OnNote("m", "the next one");
  queue_.OnProgress("m", Progress(0, 50, 100));
  queue_.OnProgress("m", Progress(1, 0, 100));
  queue_.Tick(now_);
  EXPECT_THAT(client.words, ElementsAre("loading m: the next one", "loading m 50 %",
                                        "loading m 25 %", "loading m 25 %"));
}

TEST_F(LoadQueueTest, WhoLeavesHearsNothingAndTheLoadGoesOn) {
  Client left, stays;
  const LoadQueue::Place place = Join("m", &left);
  Join("m", &stays);
  queue_.Leave(place.number);
  queue_.Leave(place.number);
  queue_.OnProgress("m", Progress(0, 1, 2));
  queue_.OnEnd("m", wire::ModelStatus());
  EXPECT_THAT(left.words, IsEmpty());
  EXPECT_THAT(left.ends, IsEmpty());
  EXPECT_EQ(stays.ends.size(), 1u);
}

TEST_F(LoadQueueTest, ALoadThatNobodyWaitsForAnyMoreIsStillOne) {
  Client client;
  queue_.Leave(Join("m", &client).number);
  EXPECT_TRUE(queue_.is_empty());
  EXPECT_FALSE(Join("m", &client).is_first);
}

TEST_F(LoadQueueTest, RejectsWhenTooManyWait) {
  Client clients[4];
  for (Client& client : clients) Join("m", &client);
  EXPECT_THAT(clients[2].ends, IsEmpty());
  ASSERT_EQ(clients[3].ends.size(), 1u);
  EXPECT_THAT(clients[3].ends[0], StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_TRUE(RetryAfterMs(clients[3].ends[0].status()).has_value());
}

TEST_F(LoadQueueTest, WaitsForABoundedTime) {
  Client early, late;
  Join("m", &early);
  now_ += absl::Seconds(30);
  Join("m", &late);
  now_ += absl::Seconds(31);
  queue_.Tick(now_);
  ASSERT_EQ(early.ends.size(), 1u);
  EXPECT_THAT(early.ends[0], StatusIs(absl::StatusCode::kUnavailable, HasSubstr("loading m")));
  EXPECT_THAT(late.ends, IsEmpty());
  queue_.OnEnd("m", wire::ModelStatus());
  EXPECT_EQ(early.ends.size(), 1u);
  EXPECT_EQ(late.ends.size(), 1u);
}

}  // namespace
}  // namespace strata
