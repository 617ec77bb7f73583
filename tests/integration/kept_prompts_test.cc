// Prompts that were processed once are not processed again: real nodes, with what is on their
// disks.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/integration/api_cluster.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

class KeptPrompts : public testing::ApiCluster {
 protected:
  struct Outcome {
    std::string text;
    uint32_t prompt_tokens = 0;
    uint32_t cached_tokens = 0;
    bool operator==(const Outcome&) const = default;
  };
  Outcome Ask(const std::string& prompt) {
    const Json done = Completion(
        0,
        {{"model", name_}, {"prompt", prompt}, {"max_tokens", 4}, {"temperature", 0}, {"seed", 1}});
    if (!done.contains("usage")) return {.text = done.dump()};
    return {.text = done["choices"][0]["text"],
            .prompt_tokens = done["usage"]["prompt_tokens"],
            .cached_tokens = done["usage"]["prompt_tokens_details"]["cached_tokens"]};
  }
  // Each node has its stage again: one that is back before the other may have all layers meanwhile.
  bool IsLoadedOnBoth() {
    const Json status = Run(0, {"status", "--json"});
    if (!status.is_object() || status["nodes"].size() != 2) return false;
    return std::ranges::all_of(status["nodes"], [](const Json& node) {
      return node["state"] == "alive" && node["stages"].size() == 1 &&
             node["stages"][0]["state"] == "serving";
    });
  }
  // A node has all of the prompt's blocks of both stages: its own, and the copies of the other's.
  bool HasCopies(size_t node) {
    const Json shown = Run(0, {"cache", "show", "--json"});
    return std::ranges::any_of(shown["nodes"], [node](const Json& one) {
      return one["node"] == kNames[node] && one["caches"].size() == 2 &&
             std::ranges::all_of(one["caches"],
                                 [](const Json& cache) { return cache["blocks"] >= 5; });
    });
  }
  // The files of blocks of a node.
  std::vector<fs::path> Blocks(size_t node) const {
    std::vector<fs::path> blocks;
    for (const auto& file : fs::recursive_directory_iterator(folders_[node] + "/kv")) {
      if (file.path().filename().string().size() == 32 && !file.is_directory()) {
        blocks.push_back(file.path());
      }
    }
    return blocks;
  }

  // The four tokens that follow are far likelier than any others: another order of additions, as
  // rows come in other steps, does not decide between them (near_ties.h).
  const std::string prompt_ = [] {
    std::string text;
    for (int i = 0; i < 30; ++i) text += "The old captain looked at the sea and said nothing. ";
    return text;
  }();
};

TEST_F(KeptPrompts, APromptIsProcessedOnceWhateverHappens) {
  const Outcome first = Ask(prompt_);
  ASSERT_GT(first.prompt_tokens, 300u) << first.text;
  EXPECT_EQ(first.cached_tokens, 0u);
  const uint32_t blocks = (first.prompt_tokens - 1) / 64 * 64;
  EXPECT_TRUE(Eventually([&] { return Metric("strata_kv_blocks") * 64 >= blocks; }));
  const auto expect_loaded = [&](const char* when) {
    const Outcome again = Ask(prompt_);
    EXPECT_EQ(again.cached_tokens, blocks) << when;
    EXPECT_EQ(again.text, first.text) << when;
    EXPECT_EQ(Metric("strata_prompt_tokens_loaded_total"), blocks) << when;
  };

  ASSERT_TRUE(Run(0, {"unload", name_, "--json"}).is_object());
  ASSERT_TRUE(LoadOnBoth(seqs(), n_ctx()).is_object());
  expect_loaded("the model was loaded again");

  for (const auto& node : nodes_) (*node)->Kill();
  for (const size_t node : {0, 1}) StartAgain(node);
  ASSERT_TRUE(Eventually([&] { return IsLoadedOnBoth(); }));
  expect_loaded("both nodes were killed and started");

  // One of them is damaged.
  ASSERT_TRUE(Run(0, {"unload", name_, "--json"}).is_object());
  ASSERT_FALSE(Blocks(1).empty());
  for (const fs::path& block : Blocks(1)) {
    std::fstream(block, std::ios::in | std::ios::out | std::ios::binary).seekp(100).put('!');
  }
  ASSERT_TRUE(LoadOnBoth(seqs(), n_ctx()).is_object());
  EXPECT_EQ(Ask(prompt_).text, first.text) << "the blocks are damaged";
  ASSERT_TRUE(Run(0, {"unload", name_, "--json"}).is_object());
  ASSERT_TRUE(LoadOnBoth(seqs(), n_ctx()).is_object());
  expect_loaded("the damaged blocks were stored again");
}

TEST_F(KeptPrompts, SlotsThatWereGivenToOthersAreLoaded) {
  ASSERT_TRUE(Run(0, {"unload", name_, "--json"}).is_object());
  ASSERT_TRUE(LoadOnBoth(/*seqs=*/1, n_ctx()).is_object());
  const Outcome first = Ask(prompt_);
  EXPECT_EQ(Ask("Something else, of which nothing is kept.").cached_tokens, 0u);
  const Outcome again = Ask(prompt_);
  EXPECT_EQ(again.text, first.text);
  EXPECT_EQ(again.cached_tokens, (first.prompt_tokens - 1) / 64 * 64);
  // A line at its beginning is another.
  EXPECT_EQ(Ask("Today is Monday. " + prompt_).cached_tokens, 0u);
  // And one in its middle: what is before it is not processed again.
  std::string other = prompt_;
  other.replace(other.size() / 2, 3, "XYZ");
  const uint32_t cached = Ask(other).cached_tokens;
  EXPECT_GT(cached, 0u);
  EXPECT_LT(cached, again.cached_tokens);
}

TEST_F(KeptPrompts, AreShownAndForgotten) {
  ASSERT_GT(Ask(prompt_).prompt_tokens, 300u);
  const auto kept = [this] {
    Json shown = Run(1, {"cache", "show", "--json"});
    EXPECT_TRUE(shown.is_object()) << shown;
    return shown;
  };
  EXPECT_TRUE(Eventually([&] {
    const Json shown = kept();
    return shown["nodes"].size() == 2 && std::ranges::all_of(shown["nodes"], [&](const Json& node) {
             // Its own, and the copies of the other's.
             return node["caches"].size() == 2 &&
                    std::ranges::all_of(node["caches"], [&](const Json& cache) {
                      return cache["model"] == name_ && cache["loaded"] == true &&
                             cache["blocks"] >= 4;
                    });
           });
  }));
  EXPECT_TRUE(Eventually([&] { return Node(0, 0)["stages"][0]["kv_disk_bytes"] > 0; }));
  const auto clear = [this](const std::string& model) {
    return Run(0, {"cache", "clear", model, "--json"});
  };
  const Json unknown = clear("No such model");
  ASSERT_TRUE(unknown.is_string());
  EXPECT_NE(unknown.get<std::string>().find("no prompts of No such model are kept"),
            std::string::npos);
  EXPECT_EQ(clear(name_)["cleared"], Json::array({name_}));
  EXPECT_TRUE(Eventually([&] { return Blocks(0).empty() && Blocks(1).empty(); }));
  EXPECT_EQ(Ask(prompt_).cached_tokens, 0u) << "neither in a slot";

  // The same where the model is not loaded.
  EXPECT_TRUE(Eventually([&] { return Blocks(0).size() >= 4; }));
  ASSERT_TRUE(Run(0, {"unload", name_, "--json"}).is_object());
  const Json cleared = Run(1, {"cache", "clear", "--json"});
  EXPECT_GT(cleared["freed_bytes"], 0) << cleared;
  EXPECT_TRUE(kept()["nodes"][0]["caches"].empty());
  EXPECT_TRUE(Blocks(1).empty());
}

TEST_F(KeptPrompts, ARequestMayHaveNothingKept) {
  for (int i = 0; i < 2; ++i) {
    const Json done = Completion(
        0, {{"model", name_}, {"prompt", prompt_}, {"max_tokens", 4}, {"cache_prompt", false}});
    EXPECT_EQ(done["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  }
  EXPECT_TRUE(Blocks(0).empty());
}

TEST_F(KeptPrompts, AWorkerThatDiesCostsNoPrompt) {
  Json body = Json{{"model", name_},   {"prompt", prompt_},  {"max_tokens", 400},
                   {"temperature", 0}, {"ignore_eos", true}, {"stream", true}};
  testing::HttpClient client(ports_[0]);
  ASSERT_TRUE(client.Post("/v1/completions", body.dump()));
  ASSERT_TRUE(Eventually([this] { return Metric("strata_kv_blocks") >= 5; }));
  const Json stages = Node(0, 1)["stages"];
  ASSERT_EQ(stages.size(), 1u);
  ASSERT_EQ(kill(stages[0]["worker_pid"].get<int>(), SIGKILL), 0);
  const testing::HttpReply reply = client.Read();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body.find("error"), std::string::npos) << reply.body.substr(0, 2000);
  EXPECT_NE(reply.body.find("[DONE]"), std::string::npos);
  EXPECT_GE(Metric("strata_prompt_tokens_loaded_total"), 300);
}

TEST_F(KeptPrompts, ANodeThatIsLostForGoodCostsNoPrompt) {
  Json body = Json{{"model", name_},   {"prompt", prompt_},  {"max_tokens", 1500},
                   {"temperature", 0}, {"ignore_eos", true}, {"stream", true}};
  testing::HttpClient client(ports_[0]);
  ASSERT_TRUE(client.Post("/v1/completions", body.dump()));
  ASSERT_TRUE(Eventually([this] { return HasCopies(0); })) << Node(0, 1);
  (*nodes_[1])->Kill();
  const testing::HttpReply reply = client.Read();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body.find("error"), std::string::npos) << reply.body.substr(0, 2000);
  EXPECT_NE(reply.body.find("[DONE]"), std::string::npos);
  EXPECT_GE(MetricOf(0, "strata_prompt_tokens_loaded_total"), 300)
      << "from the copies of its layers";
}

TEST_F(KeptPrompts, LayersThatAreCutOtherwiseCostNoPrompt) {
  const Outcome first = Ask(prompt_);
  ASSERT_TRUE(Eventually([this] { return HasCopies(0) && HasCopies(1); })) << Node(0, 1);
  for (const std::string cut : {"attic=0-3,cellar=4-5", "attic=0-5", "attic=0,cellar=1-5"}) {
    ASSERT_TRUE(Run(0, {"unload", name_, "--json"}).is_object());
    const Json loaded = Run(0, {"load", STRATA_DEMO_MODEL, "--assign", cut, "--seqs",
                                absl::StrCat(seqs()), "--ctx", absl::StrCat(n_ctx()), "--json"});
    ASSERT_TRUE(loaded.is_object()) << loaded;
    const Outcome again = Ask(prompt_);
    EXPECT_EQ(again.cached_tokens, (first.prompt_tokens - 1) / 64 * 64) << cut;
    EXPECT_EQ(again.text, first.text) << cut;
  }
}

class KeptNowhere : public KeptPrompts {
 protected:
  std::vector<std::string> NodeArgsOf(size_t node) const override {
    if (node == 0) return {};
    return {"--kv-cache-disk", "0"};
  }
};

TEST_F(KeptNowhere, WhereOneStageKeepsNothingAllDo) {
  const Outcome first = Ask(prompt_);
  EXPECT_EQ(Metric("strata_kv_blocks"), 0);
  EXPECT_TRUE(Blocks(0).empty());
  EXPECT_FALSE(fs::exists(folders_[1] + "/kv"));
  EXPECT_EQ(Ask(prompt_).cached_tokens, first.prompt_tokens - 1) << "its slot has it";
}

}  // namespace
}  // namespace strata
