// A model on real nodes of a network: their measurements, the plan made from them, and the output.
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/net/three_hosts.h"

namespace strata {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

using RunTest = testing::ThreeHosts;

TEST_F(RunTest, PlansFromMeasurementsAndWritesTheSameTokensAsOneMachine) {
  const std::string run_options = "\"The old captain\" --max-tokens 24 --seed 7";

  // Everything is measured: the plan waits for that.
  const nlohmann::json plan = Json(0, absl::StrCat("plan ", STRATA_DEMO_MODEL));
  ASSERT_TRUE(plan.is_object());
  EXPECT_THAT(plan["devices"], SizeIs(3)) << plan.dump(1);
  ASSERT_FALSE(plan["stages"].empty());
  EXPECT_GT(plan["steps"][0]["step_ms"].get<double>(), 0);

  const nlohmann::json status = Json(1, "status");
  ASSERT_TRUE(status.is_object());
  ASSERT_THAT(status["nodes"], SizeIs(3));
  for (const auto& node : status["nodes"]) {
    EXPECT_EQ(node["state"], "alive");
    EXPECT_GT(node["devices"][0]["memory_bytes_per_s"].get<double>(), 0) << node.dump(1);
    EXPECT_THAT(node["links"], SizeIs(2)) << node.dump(1);
  }

  const nlohmann::json one =
      Json(0, absl::StrCat("run ", STRATA_DEMO_MODEL, " ", run_options, " --assign host-1=0-5"));
  const nlohmann::json three = Json(2, absl::StrCat("run ", STRATA_DEMO_MODEL, " ", run_options,
                                                    " --assign host-2=0-1,host-1=2-3,host-3=4-5"));
  ASSERT_TRUE(one.is_object() && three.is_object());
  ASSERT_THAT(three["stages"], SizeIs(3));
  EXPECT_EQ(three["stages"][0]["node"], "host-2");
  EXPECT_EQ(three["stages"][2]["node"], "host-3");
  EXPECT_THAT(one["tokens"], SizeIs(24));
  EXPECT_EQ(one["tokens"], three["tokens"]);

  // The run is over: nothing is loaded any more.
  const nlohmann::json after = Json(0, "status");
  for (const auto& node : after["nodes"]) EXPECT_TRUE(node["stages"].empty());
}

// The node has no layers itself, so it could find at once that the model does not fit.
TEST_F(RunTest, ANodeThatIsCutOffWaitsForTheOthersThatHaveItsModel) {
  const nlohmann::json nodes = Json(0, "nodes");
  ASSERT_TRUE(nodes.is_object());
  size_t alone = 0;  // the one that coordinates
  for (const auto& node : nodes["nodes"]) {
    if (node["id"] != nodes["coordinator"]) continue;
    while (hosts_[alone]->name() != node["name"].get<std::string>()) ++alone;
  }
  const Host& host = *hosts_[alone];
  const Outcome loaded =
      Strata(alone, absl::StrCat("load ", STRATA_DEMO_MODEL, " --exclude ", host.name()));
  ASSERT_TRUE(loaded.ok) << loaded.text;

  // The second cut is long enough for the others to get another coordinator.
  for (const auto cut : {absl::Milliseconds(1700), absl::Milliseconds(2500)}) {
    nlohmann::json report;
    std::thread client([&] {
      report = Json(alone, "run \"Strata demo\" \"The old captain\" --max-tokens 900 --ignore-eos");
    });
    absl::SleepFor(absl::Milliseconds(500));
    lan_->SetCable(host, "eth0", false);
    absl::SleepFor(cut);
    lan_->SetCable(host, "eth0", true);
    client.join();
    ASSERT_TRUE(report.is_object());
    EXPECT_THAT(report["tokens"], SizeIs(900));
    EXPECT_GT(report["longest_pause_ms"].get<double>(), 500);  // it was running
  }
}

TEST_F(RunTest, WrongOptionsGetOneLine) {
  const auto run = [&](const std::string& options) {
    const Outcome outcome = Strata(0, absl::StrCat("plan ", STRATA_DEMO_MODEL, " ", options));
    EXPECT_FALSE(outcome.ok) << outcome.text;
    return outcome.text;
  };
  EXPECT_THAT(run("--assign cellar=0-5"), HasSubstr("cellar"));
  EXPECT_THAT(run("--assign host-1=0-2"), HasSubstr("3"));
  EXPECT_THAT(run("--objective speed"), HasSubstr("latency"));
  EXPECT_THAT(run("--exclude host-1,host-2,host-3"), HasSubstr("strata: "));
  EXPECT_THAT(run("--reserve 900GiB"), HasSubstr("does not fit"));
  const Outcome missing = Strata(0, "plan no-such-model.gguf");
  EXPECT_FALSE(missing.ok);
  EXPECT_THAT(missing.text, HasSubstr("no-such-model.gguf"));
}

}  // namespace
}  // namespace strata
