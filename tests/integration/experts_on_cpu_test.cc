// A model with experts on a node with a CPU and a second device: its layers are on the device, the
// experts in the CPU's memory.
#include <unistd.h>

#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shard/device/engine.h"
#include "tests/integration/near_ties.h"
#include "tests/integration/two_nodes.h"
#include "tests/support/program.h"
#include "tests/support/second_device.h"
#include "tests/support/sized_model.h"
#include "tests/support/whole_model.h"

namespace strata {
namespace {

using ::strata::testing::TwoNodes;
using ::strata::testing::WholeModel;
using ::testing::HasSubstr;
using ::testing::SizeIs;

const bool shown = (testing::ShowSoftwareDevices(), true);

constexpr uint32_t kLayers = 4;
constexpr float kNearTie = 0.05f;

class ExpertsOnCpu : public TwoNodes {
 protected:
  void SetUp() override {
    second_ = testing::SecondDevice();
    if (second_.empty()) GTEST_SKIP() << testing::kNoSecondDevice;
    model_ = absl::StrCat(::testing::TempDir(), "cpu_moe_", getpid(), ".gguf");
    // Every token passes every expert: none is chosen by a rounding.
    const absl::Status written = testing::WriteSizedModel({.name = "Random experts",
                                                           .n_layer = kLayers,
                                                           .n_embd = 256,
                                                           .n_ff = 256,
                                                           .n_head = 4,
                                                           .n_head_kv = 2,
                                                           .n_vocab = 512,
                                                           .n_ctx = 256,
                                                           .n_expert = 8,
                                                           .n_expert_used = 8},
                                                          model_);
    ASSERT_TRUE(written.ok()) << written;
    ASSERT_NO_FATAL_FAILURE(TwoNodes::SetUp());
    ASSERT_TRUE(WaitUntilMeasured()) << Run(0, {"status", "--json"});
  }
  void TearDown() override {
    TwoNodes::TearDown();
    if (!model_.empty()) unlink(model_.c_str());
  }
  std::vector<std::string> NodeArgsOf(size_t node) const override {
    if (node == 0) return {};
    return {"--device", "CPU"};
  }

  std::string second_, model_;
};

TEST_F(ExpertsOnCpu, TheLayersAreOnTheDeviceAndTheExpertsWithTheCpu) {
  const std::string assign = absl::StrCat("attic/", second_, "=0-2,cellar=3");
  const auto plan_with = [&](const std::string& which) {
    return Run(1,
               {"plan", model_, "--assign", assign, "--cpu-moe", which, "--ctx", "256", "--json"});
  };
  // A software device has no memory of its own: nothing is gained there.
  for (const char* which : {"none", "auto"}) {
    const Json plan = plan_with(which);
    ASSERT_TRUE(plan.is_object()) << plan;
    for (const auto& stage : plan["stages"]) EXPECT_EQ(stage["cpu_moe_layers"], 0) << which;
  }
  const Json plan = plan_with("all");
  ASSERT_TRUE(plan.is_object()) << plan;
  ASSERT_THAT(plan["stages"], SizeIs(2));
  EXPECT_EQ(plan["stages"][0]["cpu_moe_layers"], 3);
  EXPECT_EQ(plan["stages"][1]["cpu_moe_layers"], 0);
  const auto experts = plan["stages"][0]["cpu_moe_bytes"].get<uint64_t>();
  EXPECT_EQ(experts, 3 * 8 * 3 * 256 * 256 / 32 * 18) << "three matrices of Q4_0 each";

  StartEngine();
  auto whole = WholeModel::Open(model_, {.n_ctx = 256, .n_seq_max = 1});
  ASSERT_TRUE(whole.ok()) << whole.status();
  const Json run =
      Run(1, {"run", model_, "The old captain", "--assign", assign, "--cpu-moe", "all", "--ctx",
              "256", "--max-tokens", "40", "--temperature", "0", "--ignore-eos", "--json"});
  ASSERT_TRUE(run.is_object()) << run;
  const auto on_host = run["stages"][0]["host_bytes"].get<uint64_t>();
  EXPECT_GT(on_host + (64 << 10), experts) << "libllama rounds what it reports";
  EXPECT_EQ(run["stages"][1]["host_bytes"], 0);
  const std::vector<int32_t> tokens = run["tokens"];
  EXPECT_THAT(tokens, SizeIs(40));
  const size_t ties = testing::NearTies(whole->get(), run["prompt"]["tokens"], tokens, kNearTie);
  std::cout << ties << " of 40 tokens are as likely as the CPU's likeliest within " << kNearTie
            << ", the others are it\n";

  const auto wrong = Strata(0, {"plan", model_, "--cpu-moe", "some"});
  EXPECT_NE(wrong->ExitStatus(), 0);
  EXPECT_THAT(wrong->err(), HasSubstr("--cpu-moe"));
}

}  // namespace
}  // namespace strata
