#include "coordinator/request/fair_queue.h"

#include <map>
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

class FairQueueTest : public ::testing::Test {
 protected:
  // The request's number names its client: 101, 102 … are of client 1.
  static std::string ClientOf(uint64_t id) { return std::to_string(id / 100); }
  void Add(std::vector<uint64_t> ids, bool begun = false) {
    for (const uint64_t id : ids) EXPECT_THAT(queue_.Add(id, ClientOf(id), begun), IsOk());
  }
  // Gives so many a turn, after which they run.
  std::vector<uint64_t> Take(size_t n) {
    std::vector<uint64_t> taken;
    for (; n > 0 && queue_.Next().has_value(); --n) {
      taken.push_back(*queue_.Next());
      queue_.Take(taken.back(), ClientOf(taken.back()));
    }
    return taken;
  }
  bool Leave(uint64_t id) { return queue_.Leave(id, ClientOf(id)); }

  FairQueue queue_{100};
};

TEST_F(FairQueueTest, ClientsTakeTurns) {
  Add({101, 102, 103, 201, 202, 301});
  EXPECT_EQ(queue_.size(), 6u);
  EXPECT_THAT(Take(9), ElementsAre(101, 201, 301, 102, 202, 103));
  EXPECT_EQ(queue_.size(), 0u);
}

TEST_F(FairQueueTest, AClientIsRememberedWhileItsRequestsRun) {
  Add({101, 201});
  Take(2);
  // Client 1 was served before client 2.
  Add({202, 102});
  EXPECT_THAT(Take(2), ElementsAre(102, 202));
}

TEST_F(FairQueueTest, AClientThatComesBackIsServedAfterThoseThatWait) {
  Add({101});
  Take(1);
  Add({201, 301});
  EXPECT_TRUE(Leave(101));
  Add({102});
  EXPECT_THAT(Take(3), ElementsAre(201, 301, 102));
}

TEST_F(FairQueueTest, RequestsThatHaveBegunGoFirstAndTakeNoTurn) {
  Add({101, 201});
  Add({202, 203}, /*begun=*/true);
  EXPECT_EQ(queue_.n_begun(), 2u);
  EXPECT_THAT(Take(3), ElementsAre(202, 203, 101));
  queue_.PutBack(203);
  EXPECT_THAT(Take(2), ElementsAre(203, 201));
}

TEST_F(FairQueueTest, OnlyTheFirstRequestOfAClientIsAskedFor) {
  Add({101, 102, 201});
  Add({301, 302}, /*begun=*/true);
  std::vector<uint64_t> asked;
  const auto none = [&asked](uint64_t id) {
    asked.push_back(id);
    return false;
  };
  EXPECT_EQ(queue_.NextNew(none), std::nullopt);
  EXPECT_THAT(asked, ElementsAre(101, 201));
  EXPECT_EQ(queue_.NextNew([](uint64_t id) { return id != 101; }), 201u);
  // Of those that have begun each is asked for.
  EXPECT_EQ(queue_.NextBegun(none), std::nullopt);
  EXPECT_EQ(queue_.NextBegun([](uint64_t id) { return id == 302; }), 302u);
}

TEST_F(FairQueueTest, ARequestThatWaitsMayLeave) {
  Add({101, 102, 201});
  Add({301}, /*begun=*/true);
  EXPECT_FALSE(Leave(101));
  EXPECT_TRUE(Leave(301));
  EXPECT_THAT(Take(9), ElementsAre(102, 201));
  EXPECT_TRUE(Leave(102));
  EXPECT_TRUE(Leave(201));
  EXPECT_EQ(queue_.size(), 0u);
}

TEST_F(FairQueueTest, OneClientFillsThreeQuartersAtMost) {
  FairQueue queue(4);
  for (uint64_t id = 1; id <= 3; ++id) EXPECT_THAT(queue.Add(id, "a"), IsOk());
  const absl::Status share = queue.Add(4, "a");
  EXPECT_THAT(share, StatusIs(absl::StatusCode::kResourceExhausted,
                              HasSubstr("3 requests are waiting, 3 of them from this client")));
  EXPECT_TRUE(IsClientLimit(share));
  EXPECT_THAT(queue.Add(4, "b"), IsOk());
  const absl::Status full = queue.Add(5, "b");
  EXPECT_THAT(full, StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_FALSE(IsClientLimit(full));
  // What was refused has left nothing behind.
  EXPECT_FALSE(queue.Leave(1, "a"));
  EXPECT_THAT(queue.Add(5, "c"), IsOk());
  EXPECT_TRUE(queue.Leave(5, "c"));
}

TEST_F(FairQueueTest, ARequestThatHasBegunIsBoundByTheWholeQueueOnly) {
  FairQueue queue(4);
  for (uint64_t id = 1; id <= 3; ++id) EXPECT_THAT(queue.Add(id, "a"), IsOk());
  EXPECT_THAT(queue.Add(4, "a", /*begun=*/true), IsOk());
  const absl::Status full = queue.Add(5, "a", /*begun=*/true);
  EXPECT_THAT(full, StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_FALSE(IsClientLimit(full));
  queue.PutBack(6);
  EXPECT_EQ(queue.size(), 5u);
}

TEST_F(FairQueueTest, EachClientMayHaveOneRequestInTheSmallestQueue) {
  FairQueue queue(1);
  EXPECT_THAT(queue.Add(1, "a"), IsOk());
  EXPECT_THAT(queue.Add(2, "b"), StatusIs(absl::StatusCode::kResourceExhausted));
}

}  // namespace
}  // namespace strata
