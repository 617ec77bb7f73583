#include "coordinator/planner/placement_options.h"

#include <cstdint>
#include <utility>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST(PlanOptions, ParsesTheUsersOptions) {
  const auto assign = ParseAssign("a=0-19, b/CUDA0=20-30,c=31");
  ASSERT_THAT(*assign, SizeIs(3));
  EXPECT_EQ((*assign)[1].place, "b/CUDA0");
  EXPECT_EQ((*assign)[1].layers, (LayerRange{20, 31}));
  EXPECT_EQ((*assign)[2].layers, (LayerRange{31, 32}));
  for (const char* wrong :
       {"", "a", "a=", "=1-2", "a=x", "a=1-", "a=-1", "a=1-2-3", "a=1,,b=2", "a=5-4"}) {
    EXPECT_THAT(ParseAssign(wrong), StatusIs(absl::StatusCode::kInvalidArgument)) << wrong;
  }
  EXPECT_THAT(*ParseExclude("a, b/CPU"), ElementsAre("a", "b/CPU"));
  EXPECT_THAT(ParseExclude("a,"), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(*ParseObjective("throughput"), Objective::kThroughput);
  EXPECT_THAT(ParseObjective("speed"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("latency or throughput")));
}

TEST(PlanOptions, ParsesBytes) {
  const std::pair<const char*, uint64_t> cases[] = {{"4096", 4096},
                                                    {"100B", 100},
                                                    {"512M", 512ull << 20},
                                                    {"1.5GiB", 3ull << 29},
                                                    {"2 gb", 2ull << 30},
                                                    {"1T", 1ull << 40},
                                                    {"0", 0}};
  for (const auto& [text, bytes] : cases) EXPECT_EQ(*ParseBytes(text), bytes) << text;
  for (const char* wrong : {"", "G", "-1", "1X", "nan", "inf", "1e5", "99999999999T", "1 2"}) {
    EXPECT_THAT(ParseBytes(wrong), StatusIs(absl::StatusCode::kInvalidArgument)) << wrong;
  }
  const auto reserves = ParseReserve("1G,a=2GiB");
  ASSERT_THAT(*reserves, SizeIs(2));
  EXPECT_EQ((*reserves)[0].node, "");
  EXPECT_EQ((*reserves)[1].node, "a");
  EXPECT_EQ((*reserves)[1].bytes, 2ull << 30);
  for (const char* wrong : {"", "a=", "=1G", "a=x"}) {
    EXPECT_THAT(ParseReserve(wrong), StatusIs(absl::StatusCode::kInvalidArgument)) << wrong;
  }
}

}  // namespace
}  // namespace strata
