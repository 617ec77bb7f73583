// A model that was loaded with --exact: a request's output does not depend on others, bit for bit.
#include <signal.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/integration/api_cluster.h"

namespace strata {
namespace {

using ::testing::SizeIs;
using Json = nlohmann::json;

class Exact : public testing::ApiCluster {
 protected:
  uint32_t seqs() const override { return 8; }
  std::vector<std::string> LoadArgs() const override { return {"--exact"}; }

  // Long and short prompts, some of which begin alike, each with a seed.
  Json Ask(size_t i) const {
    std::string prompt = i % 3 == 0 ? absl::StrCat("Chapter ", i) : "The old captain of the ship";
    for (size_t more = 0; more < 40 * (i % 5); ++more) absl::StrAppend(&prompt, " and sea ", more);
    return {{"model", name_},
            {"prompt", prompt},
            {"max_tokens", 48},
            {"logprobs", 3},
            {"temperature", i % 2 == 0 ? 1.0 : 0.0},
            {"seed", i},
            {"ignore_eos", true}};
  }
  Json Choice(size_t node, const Json& ask) {
    const testing::HttpReply reply = Post(node, "/v1/completions", ask);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body, nullptr, false)["choices"];
  }
  std::vector<Json> AllAtOnce(size_t n) {
    std::vector<Json> choices(n);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < n; ++i) {
      threads.emplace_back([this, i, &choices] { choices[i] = Choice(i % 2, Ask(i)); });
    }
    for (std::thread& thread : threads) thread.join();
    return choices;
  }
};

// Missed elsewhere: the same output beside other requests, llama.cpp #7052, vllm
// #17524.
TEST_F(Exact, ManyRequestsAtOnceSayWhatEachSaysAlone) {
  constexpr size_t kRequests = 24;
  const std::vector<Json> first = AllAtOnce(kRequests);
  const std::vector<Json> again = AllAtOnce(kRequests);
  for (size_t i = 0; i < kRequests; ++i) {
    const Json alone = Choice(0, Ask(i));
    EXPECT_EQ(first[i], alone) << i;
    EXPECT_EQ(again[i], alone) << i;  // their prompts have been there
  }
}

TEST_F(Exact, EachChoiceIsWhatItsSeedSaysAlone) {
  Json ask = Ask(4);
  ask["n"] = 8;
  const Json together = Choice(0, ask);
  ASSERT_THAT(together, SizeIs(8));
  for (size_t i = 0; i < 8; ++i) {
    Json one = Ask(4);
    one["seed"] = 4 + i;
    Json alone = Choice(1, one)[0];
    alone["index"] = i;
    EXPECT_EQ(together[i], alone) << i;
  }
  ask["prompt"] = {ask["prompt"], ask["prompt"]};
  ask["n"] = 1;
  const Json twice = Choice(0, ask);
  EXPECT_EQ(twice[0]["text"], twice[1]["text"]);
  EXPECT_EQ(twice[0]["logprobs"], twice[1]["logprobs"]);
}

TEST_F(Exact, SequencesThatAreReplayedAfterALossSayTheSame) {
  std::vector<Json> alone;
  for (size_t i = 0; i < 4; ++i) {
    Json ask = Ask(i);
    ask["max_tokens"] = 400;
    alone.push_back(Choice(0, ask));
  }
  std::vector<Json> choices(alone.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < choices.size(); ++i) {
    threads.emplace_back([this, i, &choices] {
      Json ask = Ask(i);
      ask["max_tokens"] = 400;
      choices[i] = Choice(0, ask);
    });
  }
  EXPECT_TRUE(Eventually([this] { return Metric("strata_requests_running") == 4; }));
  const Json node = Node(0, 1);
  ASSERT_FALSE(node["stages"].empty()) << node;
  kill(node["stages"][0]["worker_pid"].get<pid_t>(), SIGKILL);
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < alone.size(); ++i) EXPECT_EQ(choices[i], alone[i]) << i;
}

TEST_F(Exact, TheModelSaysSo) {
  const Json models = Json::parse(Get(1, "/v1/models").body, nullptr, false);
  EXPECT_EQ(models["data"][0]["strata"]["exact"], true);
  const auto other = Strata(0, {"load", STRATA_DEMO_MODEL, "--exact", "--kv-cells", "1024"});
  EXPECT_NE(other->ExitStatus(), 0);
}

}  // namespace
}  // namespace strata
