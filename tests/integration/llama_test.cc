// llama-server's own API over a real cluster: two nodes, the demo model over both.
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/integration/api_cluster.h"

namespace strata {
namespace {

using ::strata::testing::HttpReply;
using Json = nlohmann::json;

class Llama : public testing::SharedApiCluster {
 protected:
  uint32_t seqs() const override { return 4; }

  Json Answer(size_t node, const std::string& path, const Json& body) {
    const HttpReply reply = Post(node, path, body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body, nullptr, false);
  }
};

TEST_F(Llama, CompletionsAreThoseOfTheSameRequestElsewhere) {
  const Json openai = Completion(0, Ask({{"temperature", 0}}));
  const std::string text = openai["choices"][0]["text"];
  const Json ask = {{"prompt", "The old captain"},
                    {"n_predict", 24},
                    {"temperature", 0},
                    {"return_tokens", true},
                    {"n_probs", 3}};
  const Json whole = Answer(1, "/completion", ask);
  EXPECT_EQ(whole["content"], text);
  EXPECT_EQ(whole["stop_type"], "limit");
  EXPECT_EQ(whole["tokens_predicted"], 24);
  EXPECT_EQ(whole["tokens_evaluated"], openai["usage"]["prompt_tokens"]);
  EXPECT_EQ(whole["tokens"].size(), 24u);
  EXPECT_EQ(whole["completion_probabilities"].size(), 24u);
  EXPECT_EQ(whole["completion_probabilities"][0]["top_logprobs"].size(), 3u);
  EXPECT_GT(whole["timings"]["predicted_per_second"], 0);
  EXPECT_EQ(whole["generation_settings"]["n_ctx"], 2048);

  Json streaming = ask;
  streaming["stream"] = true;
  std::string streamed;
  std::vector<Json> tokens;
  Json last;
  const HttpReply reply = Post(0, "/completion", streaming);
  for (absl::string_view event : absl::StrSplit(reply.body, "\n\n", absl::SkipEmpty())) {
    if (!absl::ConsumePrefix(&event, "data: ")) continue;
    last = Json::parse(event, nullptr, false);
    streamed += last.value("content", "");
    for (const Json& token : last["tokens"]) tokens.push_back(token);
  }
  EXPECT_EQ(streamed, text);
  EXPECT_EQ(Json(tokens), whole["tokens"]);
  EXPECT_EQ(last["stop"], true) << last;
  EXPECT_EQ(last["tokens_predicted"], 24);
}

TEST_F(Llama, TokensOfAPromptGiveTheSameCompletion) {
  const Json tokens =
      Answer(0, "/tokenize", {{"content", "The old captain"}, {"add_special", true}})["tokens"];
  ASSERT_GT(tokens.size(), 2u) << tokens;
  const Json list = Answer(
      1, "/completion",
      {{"prompt", Json::array({tokens, "The old captain"})}, {"n_predict", 8}, {"temperature", 0}});
  ASSERT_EQ(list.size(), 2u) << list;
  EXPECT_EQ(list[0]["content"], list[1]["content"]);
  EXPECT_EQ(list[0]["tokens_predicted"], 8);
  EXPECT_EQ(Answer(0, "/tokenize", {{"content", ""}})["tokens"], Json::array());
}

TEST_F(Llama, TellsOfTheModelAndItsTemplate) {
  const Json prompt =
      Answer(0, "/apply-template",
             {{"messages", Json::array({{{"role", "user"}, {"content", "The old captain"}}})}});
  EXPECT_EQ(prompt, Json({{"prompt", "The old captain\n\n"}}));
  const Json props = Json::parse(Get(1, "/props").body, nullptr, false);
  EXPECT_EQ(props["default_generation_settings"]["n_ctx"], 2048) << props;
  EXPECT_EQ(props["total_slots"], 4);
  EXPECT_EQ(props["model_alias"], name_);
  EXPECT_EQ(Get(0, "/v1/health").body, Get(0, "/health").body);
}

TEST_F(Llama, WrongInputIsRefusedInItsForm) {
  const auto error_of = [](const HttpReply& reply) {
    const Json json = Json::parse(reply.body, nullptr, false);
    EXPECT_EQ(json["error"]["code"], reply.status) << reply.body;
    return json["error"]["type"].get<std::string>();
  };
  EXPECT_EQ(error_of(Post(0, "/completion", Json::object())), "invalid_request_error");
  EXPECT_EQ(error_of(Post(0, "/completion", {{"prompt", "a"}, {"model", "nothing"}})),
            "not_found_error");
  EXPECT_EQ(error_of(Post(0, "/tokenize", {{"content", 1}})), "invalid_request_error");
  EXPECT_EQ(error_of(Post(0, "/detokenize", {{"tokens", {1}}})), "not_supported_error");
  EXPECT_EQ(error_of(Get(0, "/slots")), "not_supported_error");
  std::string words;
  for (int i = 0; i < 3000; ++i) words += "captain ";
  EXPECT_EQ(error_of(Post(0, "/completion", {{"prompt", words}})), "exceed_context_size_error");
}

}  // namespace
}  // namespace strata
