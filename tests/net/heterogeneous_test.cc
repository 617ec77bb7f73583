// Machines unlike each other: one so slow that it is better left out, three that are too small for
// the model alone, and a fast one that joins a slow one. Slow and small by control
// groups; skipped where none can be made.
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "shard/device/engine.h"
#include "tests/integration/near_ties.h"
#include "tests/net/limits.h"
#include "tests/net/network.h"
#include "tests/support/sanitizer.h"
#include "tests/support/sized_model.h"
#include "tests/support/temp_folder.h"
#include "tests/support/whole_model.h"

namespace strata {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Memory of a small machine: the system, a worker with its buffers, and some 180 MiB of weights.
constexpr uint64_t kSmallBytes = 256 << 20;

class HeterogeneousTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::kHasAddressSanitizer) {
      GTEST_SKIP() << "what ASan keeps in memory does not fit into a small machine";
    }
    if (absl::Status status = CanMakeNetworks(); !status.ok()) GTEST_SKIP() << status.message();
    if (absl::Status status = CanMakeLimits(); !status.ok()) GTEST_SKIP() << status.message();
    lan_ = std::make_unique<Switch>("lan");
  }

  // A node on a host of its own, measured before the next one starts: they share this machine's
  // cores.
  void AddNode(const Limits::Options& options) {
    auto limits = Limits::Make(options);
    ASSERT_TRUE(limits.ok()) << limits.status();
    limits_.push_back(*std::move(limits));
    AddNode(options.name, limits_.back().get());
  }
  void AddNode(const std::string& name, const Limits* limits) {
    hosts_.push_back(std::make_unique<Host>(name));
    lan_->Plug(*hosts_.back(), "eth0", {absl::StrCat("10.80.0.", hosts_.size(), "/24")});
    nodes_.push_back(std::make_unique<NodeOn>(hosts_.back().get(), name, std::vector<std::string>{},
                                              NodeOn::Measure::kYes, limits));
    nlohmann::json status;
    const auto measured = [&] {
      status = Json("status");
      if (!status.is_object() || status["nodes"].size() != nodes_.size()) return false;
      for (const auto& node : status["nodes"]) {
        if (node["state"] != "alive" || node["devices"].empty()) return false;
        if (node["devices"][0]["memory_bytes_per_s"].get<double>() <= 0) return false;
      }
      return true;
    };
    // A tenth of a core takes its time, and other programs may want the cores as well.
    ASSERT_TRUE(Eventually(measured, absl::Minutes(2)))
        << nodes_.back()->errors() << status.dump(1);
  }

  // A model's file, with so many layers of 8 MiB.
  static std::string ModelOf(uint32_t n_layer) {
    const std::string path = absl::StrCat(testing::ProcessTempFolder(), "/", n_layer, ".gguf");
    EXPECT_TRUE(testing::WriteSizedModel({.name = "layers",
                                          .n_layer = n_layer,
                                          .n_embd = 1024,
                                          .n_ff = 4096,
                                          .n_head = 16,
                                          .n_head_kv = 4,
                                          .n_vocab = 8000,
                                          .n_ctx = 256},
                                         path)
                    .ok());
    return path;
  }

  // Runs a verb at the first node. Its output, with stderr where it failed.
  nlohmann::json Json(const std::string& verb_and_options) const {
    const std::string errors = testing::ProcessTempFolder() + "/errors";
    std::string out;
    const bool done =
        hosts_[0]->TryShell(absl::StrCat(STRATA_PROGRAM, " ", verb_and_options,
                                         " --json --node 127.0.0.1:", nodes_[0]->port(), " 2>",
                                         errors, " || { cat ", errors, "; exit 1; }"),
                            &out);
    if (!done) return out;
    return nlohmann::json::parse(out, nullptr, /*allow_exceptions=*/false);
  }

  std::unique_ptr<Switch> lan_;
  std::vector<std::unique_ptr<Limits>> limits_;  // outlive the nodes in them
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<std::unique_ptr<NodeOn>> nodes_;
};

// What users of others miss: more nodes that are slower without a word, llama.cpp #10047 #10654,
// distributed-llama #262 #179, exo #2070.
TEST_F(HeterogeneousTest, ASlowNodeIsLeftOut) {
  // Neither of the fast nodes can hold the model alone; both together can, and so could the slow
  // one.
  const std::string model = ModelOf(24);  // 203 MiB
  ASSERT_NO_FATAL_FAILURE(AddNode({.name = "desk", .memory_bytes = kSmallBytes}));
  ASSERT_NO_FATAL_FAILURE(AddNode({.name = "shelf", .memory_bytes = kSmallBytes}));
  ASSERT_NO_FATAL_FAILURE(AddNode({.name = "attic", .cpu_cores = 0.1}));

  const nlohmann::json plan = Json(absl::StrCat("plan ", model, " --ctx 128"));
  ASSERT_TRUE(plan.is_object()) << plan;
  for (const auto& stage : plan["stages"]) EXPECT_NE(stage["node"], "attic") << plan.dump(1);
  bool explained = false;
  for (const auto& device : plan["devices"]) {
    if (device["device"] != "attic") continue;
    EXPECT_FALSE(device["used"].get<bool>());
    explained = !device["why"].get<std::string>().empty();
  }
  EXPECT_TRUE(explained) << plan.dump(1);

  const nlohmann::json run =
      Json(absl::StrCat("run ", model, " \"one two\" --ctx 128 --max-tokens 8 --ignore-eos"));
  ASSERT_TRUE(run.is_object()) << run;
  for (const auto& stage : run["stages"]) EXPECT_NE(stage["node"], "attic");
  EXPECT_THAT(run["tokens"], SizeIs(8));
}

TEST_F(HeterogeneousTest, AModelThatFitsNoNodeRunsOnThree) {
  const std::string model = ModelOf(48);  // 395 MiB
  for (const char* name : {"one", "two", "three"}) {
    ASSERT_NO_FATAL_FAILURE(AddNode({.name = name, .memory_bytes = kSmallBytes}));
  }
  const std::string prompt_args =
      " \"one two\" --ctx 128 --max-tokens 8 --ignore-eos --temperature 0";

  const nlohmann::json alone = Json(absl::StrCat("plan ", model, " --ctx 128 --exclude two,three"));
  ASSERT_TRUE(alone.is_string()) << alone.dump(1);
  EXPECT_THAT(alone.get<std::string>(), HasSubstr("does not fit"));

  const nlohmann::json together = Json(absl::StrCat("run ", model, prompt_args));
  ASSERT_TRUE(together.is_object()) << together;
  EXPECT_THAT(together["stages"], SizeIs(3)) << together["stages"].dump(1);
  for (const auto& stage : together["stages"]) {
    EXPECT_LT(stage["resident_bytes"].get<uint64_t>(), kSmallBytes) << stage.dump(1);
  }
  for (const auto& limits : limits_) {
    EXPECT_LE(limits->PeakMemoryBytes(), kSmallBytes);
    EXPECT_EQ(limits->OutOfMemoryKills(), 0u);
  }

  // The same output as on one machine that is large enough.
  ASSERT_NO_FATAL_FAILURE(AddNode("large", nullptr));
  const nlohmann::json whole =
      Json(absl::StrCat("run ", model, prompt_args, " --assign large=0-47"));
  ASSERT_TRUE(whole.is_object()) << whole;
  EXPECT_THAT(whole["stages"], SizeIs(1));
  EXPECT_EQ(together["tokens"], whole["tokens"]);
}

TEST_F(HeterogeneousTest, AModelMovesToAFasterNodeThatJoinsWhileItsRequestRuns) {
  constexpr size_t kTokens = 600;
  const std::string path = ModelOf(24);
  ASSERT_NO_FATAL_FAILURE(AddNode({.name = "attic", .cpu_cores = 0.1}));
  const nlohmann::json loaded = Json(absl::StrCat("load ", path, " --ctx 1024"));
  ASSERT_TRUE(loaded.is_object()) << loaded;
  std::string out;
  std::thread writer([&] {
    hosts_[0]->TryShell(absl::StrCat(STRATA_PROGRAM, " run ", path, " \"one two\" --max-tokens ",
                                     kTokens, " --ignore-eos --temperature 0 --json --node ",
                                     "127.0.0.1:", nodes_[0]->port(), " 2>/dev/null"),
                        &out, absl::Minutes(3));
  });
  AddNode("desk", nullptr);
  writer.join();
  const nlohmann::json report = nlohmann::json::parse(out, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(report.is_object()) << nodes_[0]->errors();
  EXPECT_THAT(nodes_[0]->errors(),
              AllOf(HasSubstr("less with the nodes there are now"), HasSubstr("has moved"),
                    HasSubstr("requests that go on: 1, with their caches")));
  const nlohmann::json status = Json("status");
  for (const auto& node : status["nodes"]) {
    EXPECT_EQ(node["stages"].empty(), node["name"] != "desk") << status.dump(1);
  }
  StartEngine();
  auto whole = testing::WholeModel::Open(path, {.n_ctx = 1024, .n_seq_max = 1});
  ASSERT_TRUE(whole.ok()) << whole.status();
  const std::vector<int32_t> tokens = report["tokens"];
  EXPECT_THAT(tokens, SizeIs(kTokens));
  testing::NearTies(whole->get(), report["prompt"]["tokens"], tokens, testing::kNearTie);
}

}  // namespace
}  // namespace strata
