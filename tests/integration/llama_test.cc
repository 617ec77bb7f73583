// llama-server's own API, and Gemini's, over a real cluster: two nodes, the demo model over both.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
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
  // Either node finds the one with the first stage.
  const Json words = Answer(0, "/tokenize", {{"content", "The old captain"}})["tokens"];
  for (const size_t node : {0, 1}) {
    const Json text = Answer(node, "/detokenize", {{"tokens", words}});
    const std::string content = text["content"];
    EXPECT_EQ(absl::StripLeadingAsciiWhitespace(content), "The old captain") << text;
    EXPECT_EQ(text["prompt"], text["content"]);
  }
  EXPECT_EQ(Answer(0, "/detokenize", {{"tokens", Json::array()}})["content"], "");
}

TEST_F(Llama, AStreamSaysHowFarItsPromptIs) {
  std::string words;
  for (int i = 0; i < 200; ++i) words += absl::StrCat(i, " captains ");
  const auto progress_of = [](const HttpReply& reply) {
    std::vector<Json> all;
    for (absl::string_view event : absl::StrSplit(reply.body, "\n\n", absl::SkipEmpty())) {
      if (!absl::ConsumePrefix(&event, "data: {")) continue;
      const Json json = Json::parse(absl::StrCat("{", event), nullptr, false);
      if (json.contains("prompt_progress")) all.push_back(json["prompt_progress"]);
    }
    return all;
  };
  const Json ask = {
      {"prompt", words}, {"max_tokens", 2}, {"stream", true}, {"return_progress", true}};
  // One of the two nodes forwards the request to the other.
  for (const auto& [node, path] : {std::pair{0, "/completion"}, std::pair{1, "/v1/completions"}}) {
    const std::vector<Json> all = progress_of(Post(node, path, ask));
    ASSERT_GE(all.size(), 2u) << path;
    EXPECT_EQ(all.front()["processed"], all.front()["cache"]);
    EXPECT_EQ(all.back()["processed"], all.back()["total"]);
    EXPECT_GT(all.back()["total"], 200);
  }
  Json silent = ask;
  silent.erase("return_progress");
  EXPECT_TRUE(progress_of(Post(0, "/completion", silent)).empty());
}

TEST_F(Llama, GeminisMethodsAnswerAlike) {
  const std::string path =
      absl::StrCat("/v1beta/models/", absl::StrReplaceAll(name_, {{" ", "%20"}}), ":");
  const Json ask = Json::parse(
      R"({"contents":[{"parts":[{"text":"The old captain"}]}],
          "generationConfig":{"temperature":0,"maxOutputTokens":12}})");
  const Json whole = Answer(0, path + "generateContent", ask);
  const Json& candidate = whole["candidates"][0];
  const std::string text = candidate["content"]["parts"][0]["text"];
  EXPECT_FALSE(text.empty());
  EXPECT_EQ(candidate["finishReason"], "MAX_TOKENS");
  EXPECT_EQ(Answer(1, path + "countTokens", ask)["totalTokens"],
            whole["usageMetadata"]["promptTokenCount"]);
  std::string streamed;
  for (absl::string_view event : absl::StrSplit(
           Post(1, path + "streamGenerateContent?alt=sse", ask).body, "\n\n", absl::SkipEmpty())) {
    if (!absl::ConsumePrefix(&event, "data: ")) continue;
    const Json piece = Json::parse(event, nullptr, false);
    for (const Json& part : piece["candidates"][0]["content"]["parts"]) {
      streamed += part.value("text", "");
    }
  }
  EXPECT_EQ(streamed, text);
  const Json array = Answer(1, path + "streamGenerateContent", ask);
  ASSERT_TRUE(array.is_array()) << array;
  EXPECT_EQ(array.back()["usageMetadata"]["candidatesTokenCount"], 12);
  const Json models = Json::parse(Get(0, "/v1beta/models").body, nullptr, false);
  EXPECT_EQ(models["models"][0]["name"], absl::StrCat("models/", name_));
  const HttpReply wrong = Post(0, path + "dream", ask);
  EXPECT_EQ(wrong.status, 404);
  EXPECT_EQ(Json::parse(wrong.body)["error"]["status"], "NOT_FOUND");
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
  EXPECT_EQ(props["default_generation_settings"]["params"]["samplers"][0], "penalties");
  const Json slots = Json::parse(Get(0, "/slots").body, nullptr, false);
  ASSERT_EQ(slots.size(), 4u) << slots;
  EXPECT_EQ(slots[3], Json({{"id", 3},
                            {"id_task", -1},
                            {"n_ctx", 2048},
                            {"speculative", false},
                            {"is_processing", false}}));
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
  EXPECT_EQ(error_of(Post(0, "/detokenize", {{"tokens", {1, 99999}}})), "invalid_request_error");
  EXPECT_EQ(error_of(Post(0, "/props", Json::object())), "not_supported_error");
  std::string words;
  for (int i = 0; i < 3000; ++i) words += "captain ";
  EXPECT_EQ(error_of(Post(0, "/completion", {{"prompt", words}})), "exceed_context_size_error");
}

}  // namespace
}  // namespace strata
