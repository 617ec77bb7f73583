// The main job: several nodes with one model generate the same tokens as one node.
#include <sys/stat.h>

#include <cstdlib>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/program.h"
#include "tests/support/sanitizer.h"

namespace strata {
namespace {

using ::nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// One thread a stage: libllama splits attention over a long context among its threads, and adds up
// in another order with another number of them.
json Demo(std::vector<std::string> args) {
  args.insert(args.begin(), {"demo", "--json", "--threads", "1", "--model", STRATA_DEMO_MODEL});
  Program program(args);
  EXPECT_EQ(program.ExitStatus(), 0) << program.err();
  json out = json::parse(program.out(), nullptr, false);
  EXPECT_FALSE(out.is_discarded()) << program.out();
  return out;
}

TEST(Demo, AnyNumberOfNodesWritesTheSameTokens) {
  const json one = Demo({"--nodes", "1"});
  EXPECT_GT(one["tokens"].size(), 10);
  for (const char* nodes : {"2", "3", "5"}) {
    const json several = Demo({"--nodes", nodes});
    EXPECT_EQ(several["tokens"], one["tokens"]) << nodes << " nodes";
    EXPECT_EQ(several["stages"].size(), std::stoul(nodes));
  }
}

TEST(Demo, GreedyOutputIsTheSameOnThreeNodesAsOnOne) {
  const json one = Demo({"--nodes", "1", "--temperature", "0"});
  const json three = Demo({"--nodes", "3", "--temperature", "0"});
  EXPECT_EQ(three["tokens"], one["tokens"]);
  EXPECT_EQ(three["text"], one["text"]);
}

TEST(Demo, TheSeedChoosesTheOutput) {
  const json first = Demo({"--seed", "1"});
  EXPECT_EQ(Demo({"--seed", "1"})["tokens"], first["tokens"]);
  EXPECT_NE(Demo({"--seed", "2"})["tokens"], first["tokens"]);
}

TEST(Demo, CutsByHand) {
  const json out = Demo({"--cut", "1,2"});
  ASSERT_EQ(out["stages"].size(), 3);
  EXPECT_EQ(out["stages"][0]["layers"], json({0, 1}));
  EXPECT_EQ(out["stages"][1]["layers"], json({1, 2}));
  EXPECT_EQ(out["stages"][2]["layers"], json({2, out["model"]["layers"]}));
  EXPECT_EQ(out["tokens"], Demo({"--nodes", "1"})["tokens"]);
}

TEST(Demo, ALongPromptGoesThroughInChunks) {
  std::string prompt;
  for (int i = 0; i < 60; ++i) prompt += "The river runs to the sea and the road to the hill. ";
  const json one = Demo({"--nodes", "1", "--prompt", prompt, "--max-tokens", "8"});
  const json three = Demo({"--nodes", "3", "--prompt", prompt, "--max-tokens", "8"});
  EXPECT_GT(one["prompt"]["tokens"].size(), 256);
  EXPECT_GT(three["stages"][0]["prompt"]["steps"], 2);
  EXPECT_EQ(three["tokens"], one["tokens"]);
}

TEST(Demo, JsonHasTheTimesOfEveryStage) {
  if (testing::kHasAddressSanitizer) GTEST_SKIP() << "AddressSanitizer's own memory would count";
  const json out = Demo({"--nodes", "3"});
  for (const json& stage : out["stages"]) {
    EXPECT_GT(stage["decode"]["compute_ms_per_step"], 0) << stage;
    EXPECT_GT(stage["slice_bytes"], 0);
    EXPECT_LE(stage["resident_bytes"].get<uint64_t>(),
              stage["slice_bytes"].get<uint64_t>() + stage["kv_bytes"].get<uint64_t>() +
                  stage["compute_bytes"].get<uint64_t>() + (64u << 20))
        << stage;
  }
  EXPECT_GT(out["decode_tokens_per_second"], 0);
}

TEST(Demo, PrintsTheTextAloneToStdout) {
  Program program(
      {"demo", "--model", STRATA_DEMO_MODEL, "--max-tokens", "5", "--prompt", "The sea"});
  EXPECT_EQ(program.ExitStatus(), 0) << program.err();
  EXPECT_THAT(program.out(), StartsWith("The sea"));
  EXPECT_THAT(program.err(), HasSubstr("3 nodes"));
  EXPECT_THAT(program.err(), HasSubstr("tok/s"));
}

TEST(Demo, NeedsNoWritableFolder) {
  Program program({"demo", "--model", STRATA_DEMO_MODEL, "--max-tokens", "3"},
                  {"HOME=/nonexistent", "XDG_STATE_HOME=/nonexistent", "TMPDIR=/nonexistent"});
  EXPECT_EQ(program.ExitStatus(), 0) << program.err();
}

}  // namespace
}  // namespace strata
