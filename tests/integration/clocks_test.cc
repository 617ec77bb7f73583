// Nodes whose wall clock is set while they work, by hours and by years.
#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/integration/api_cluster.h"
#include "tests/integration/processes.h"
#include "tests/support/program.h"
#include "tests/support/wall_clock_shift.h"
#include "transport/base/steady_time.h"

namespace strata {
namespace {

using ::strata::testing::ApiCluster;
constexpr absl::Duration kDay = absl::Hours(24);
constexpr absl::Duration kDelayMax = absl::Seconds(5);  // that a clock may cause

class Clocks : public ApiCluster {
 protected:
  std::unique_ptr<Program> BeginRequest(int n_tokens) {
    return Strata(0, {"run", name_, "The old captain", "--max-tokens", absl::StrCat(n_tokens),
                      "--ignore-eos", "--temperature", "0", "--json"});
  }
  bool WaitForTokens(double more) {
    const double before = Metric("strata_tokens_total");
    return Eventually([&] { return Metric("strata_tokens_total") >= before + more; });
  }

  void SetUp() override {
    clock_.Use();
    ASSERT_NO_FATAL_FAILURE(ApiCluster::SetUp());
  }

  testing::WallClockShift clock_;
};

TEST_F(Clocks, NoRequestWaitsForAClockThatJumps) {
  constexpr int kTokens = 600;
  const auto first = BeginRequest(kTokens);
  ASSERT_EQ(first->ExitStatus(), 0) << first->err();
  const Json tokens = Json::parse(first->out())["tokens"];
  ASSERT_EQ(tokens.size(), size_t{kTokens});
  for (const absl::Duration shift : {absl::Hours(-5), absl::Hours(5), absl::Hours(-12), 60 * kDay,
                                     -3652 * kDay, absl::ZeroDuration()}) {
    SCOPED_TRACE(absl::FormatDuration(shift));
    const auto run = BeginRequest(kTokens);
    ASSERT_TRUE(WaitForTokens(50));
    clock_.Set(shift);
    ASSERT_EQ(run->ExitStatus(), 0) << run->err();
    const Json report = Json::parse(run->out());
    EXPECT_EQ(report["tokens"], tokens);
    EXPECT_LT(absl::Milliseconds(report["longest_pause_ms"].get<double>()), kDelayMax);
    // Requests that begin then are not delayed either, through either node.
    for (const size_t node : {0, 1}) {
      const SteadyTime begun = SteadyTime::Now();
      EXPECT_EQ(Completion(node, Ask())["choices"].size(), 1u);
      EXPECT_LT(SteadyTime::Now() - begun, kDelayMax);
    }
  }
}

// Their certificates are good whatever the clock says.
TEST_F(Clocks, ANodeWhoseClockIsWrongIsAMemberAndStaysOneWhenItIsSet) {
  for (const absl::Duration shift : {60 * kDay, -3652 * kDay}) {
    SCOPED_TRACE(absl::FormatDuration(shift));
    testing::WallClockShift its_clock;
    its_clock.Set(shift);
    its_clock.Use();
    StartAgain(1);
    clock_.Use();
    ASSERT_TRUE(Eventually([this] { return Node(0, 1)["state"] == "alive"; }));
    ASSERT_TRUE(Eventually([this] { return Node(1, 0)["state"] == "alive"; }));
    ASSERT_TRUE(Eventually([this] { return Post(1, "/v1/completions", Ask()).status == 200; }));
    its_clock.Set(absl::ZeroDuration());
    const SteadyTime begun = SteadyTime::Now();
    EXPECT_EQ(Post(1, "/v1/completions", Ask()).status, 200);
    EXPECT_LT(SteadyTime::Now() - begun, kDelayMax);
    EXPECT_EQ(Node(0, 1)["state"], "alive");
  }
}

// gRPC's timers go on: calls of a node that hangs end.
TEST_F(Clocks, ANodeThatHangsIsNoticedAfterTheClockWasPutBack) {
  const auto run = BeginRequest(600);
  ASSERT_TRUE(WaitForTokens(50));
  clock_.Set(absl::Hours(-5));
  const std::vector<pid_t> frozen = WithDescendants((*nodes_[1])->pid());
  for (const pid_t pid : frozen) kill(pid, SIGSTOP);
  EXPECT_EQ(run->ExitStatus(), 0) << run->err();
  for (const pid_t pid : frozen) kill(pid, SIGCONT);
  EXPECT_EQ(Json::parse(run->out())["tokens"].size(), 600u);
}

}  // namespace
}  // namespace strata
