// Nodes with a second device beside the CPU: what they offer, and sequences that pass through both.
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shard/device/engine.h"
#include "tests/integration/near_ties.h"
#include "tests/integration/two_nodes.h"
#include "tests/support/program.h"
#include "tests/support/second_device.h"
#include "tests/support/whole_model.h"

namespace strata {
namespace {

using ::strata::testing::NearTies;
using ::strata::testing::TwoNodes;
using ::strata::testing::WholeModel;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

const bool shown = (testing::ShowSoftwareDevices(), true);

// For logits up to 20: see second_device_test.cc.
constexpr float kNearTie = 0.5f;

// The demo model's last three layers need 64 MiB of a device by the plan, and all of it 67; 4 MiB
// less of one with memory of its own, as logits come back through the machine's.
constexpr char kTooLittleForAll[] = "65MiB";
constexpr char kTooLittleOfItsOwn[] = "62MiB";

class Devices : public TwoNodes {
 protected:
  void SetUp() override {
    second_ = testing::SecondDevice();
    if (second_.empty()) GTEST_SKIP() << testing::kNoSecondDevice;
    ASSERT_NO_FATAL_FAILURE(TwoNodes::SetUp());
    ASSERT_TRUE(WaitUntilMeasured()) << Run(0, {"status", "--json"});
  }
  // The first has both, the other one its second device alone.
  std::vector<std::string> NodeArgsOf(size_t node) const override {
    const std::string memory = OwnMemory() ? kTooLittleOfItsOwn : kTooLittleForAll;
    if (node == 1) return {"--device", second_, "--memory", memory};
    return {"--memory", absl::StrCat("CPU=", kTooLittleForAll, ",", second_, "=", memory)};
  }
  bool OwnMemory() const {
    for (const DeviceFacts& device : ListDevices()) {
      if (device.name == second_) return !device.shares_machine_memory;
    }
    return false;
  }

  std::string second_;
};

// One test, because each start measures the devices anew.
// What users of others miss: devices of several kinds together, exo #913 #1102, gpustack #1343.
TEST_F(Devices, OnlyOfferedDevicesAreUsedAndSequencesPassThroughThoseOfOneNodeAndOfTwo) {
  const Json status = Run(0, {"status", "--json"});
  for (const auto& node : status["nodes"]) {
    for (const auto& device : node["devices"]) {
      if (node["name"] == kNames[1]) {
        EXPECT_EQ(device["name"], second_);
      }
      EXPECT_LE(device["memory_free"].get<uint64_t>(), 65u << 20);
    }
  }
  const auto not_offered = Strata(0, {"plan", STRATA_DEMO_MODEL, "--assign", "cellar/CPU=0-5"});
  EXPECT_NE(not_offered->ExitStatus(), 0);
  EXPECT_THAT(not_offered->err(), HasSubstr("cellar/CPU"));

  StartEngine();
  auto whole = WholeModel::Open(STRATA_DEMO_MODEL, {.n_ctx = 256, .n_seq_max = 1});
  ASSERT_TRUE(whole.ok()) << whole.status();
  const auto expect_right = [&](const std::vector<std::string>& placed) {
    std::vector<std::string> args = {"run",
                                     STRATA_DEMO_MODEL,
                                     "The old captain",
                                     "--ctx",
                                     "256",
                                     "--max-tokens",
                                     "60",
                                     "--temperature",
                                     "0",
                                     "--ignore-eos",
                                     "--json"};
    args.insert(args.end(), placed.begin(), placed.end());
    const Json run = Run(1, args);
    ASSERT_TRUE(run.is_object()) << run;
    const std::vector<int32_t> tokens = run["tokens"];
    EXPECT_EQ(tokens.size(), 60u);
    const size_t ties = NearTies(whole->get(), run["prompt"]["tokens"], tokens, kNearTie);
    std::cout << placed[1] << ": " << ties << " of 60 tokens are as likely as the CPU's likeliest "
              << "within " << kNearTie << ", the others are it\n";
  };
  for (const std::string& assign :
       {absl::StrCat("attic/CPU=0-2,attic/", second_, "=3-5"),
        absl::StrCat("attic/", second_, "=0-2,attic/CPU=3-5"),
        absl::StrCat("cellar/", second_, "=0-2,attic/CPU=3-5"),
        absl::StrCat("attic/CPU=0-1,cellar/", second_, "=2-3,attic/", second_, "=4-5")}) {
    SCOPED_TRACE(assign);
    expect_right({"--assign", assign});
  }

  // Placed by the planner: over both devices of one node, and over two nodes.
  const std::string other = absl::StrCat("attic/", second_);
  for (const auto& [excluded, used] :
       {std::pair{std::string("cellar"), UnorderedElementsAre("attic/CPU", other)},
        std::pair{other, UnorderedElementsAre("attic/CPU", absl::StrCat("cellar/", second_))}}) {
    SCOPED_TRACE(absl::StrCat("without ", excluded));
    const Json plan =
        Run(1, {"plan", STRATA_DEMO_MODEL, "--ctx", "256", "--exclude", excluded, "--json"});
    ASSERT_TRUE(plan.is_object()) << plan;
    std::vector<std::string> places;
    for (const auto& stage : plan["stages"]) {
      places.push_back(
          absl::StrCat(stage["node"].get<std::string>(), "/", stage["device"].get<std::string>()));
    }
    EXPECT_THAT(places, used);
    expect_right({"--exclude", excluded});
  }
}

}  // namespace
}  // namespace strata
