#include "node/api/openai/openai_embeddings.h"

#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace strata {
namespace {

using absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Json = nlohmann::json;

TEST(ParseEmbeddings, TakesTextsAndTokensAloneAndInArrays) {
  const auto one = ParseEmbeddings(R"({"model":"m","input":"Hi"})");
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(one->model, "m");
  ASSERT_THAT(one->inputs, SizeIs(1));
  EXPECT_EQ(one->inputs[0].text, "Hi");
  EXPECT_FALSE(one->is_base64);
  EXPECT_FALSE(one->dimensions);
  const auto tokens =
      ParseEmbeddings(R"({"input":[1,2],"encoding_format":"base64","dimensions":8})");
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  ASSERT_THAT(tokens->inputs, SizeIs(1));
  EXPECT_THAT(tokens->inputs[0].tokens, ElementsAre(1, 2));
  EXPECT_TRUE(tokens->is_base64);
  EXPECT_EQ(tokens->dimensions, 8);
  const auto several = ParseEmbeddings(R"({"input":["a",[1,2],"b"]})");
  ASSERT_TRUE(several.ok()) << several.status();
  ASSERT_THAT(several->inputs, SizeIs(3));
  EXPECT_EQ(several->inputs[2].text, "b");
}

TEST(ParseEmbeddings, NamesWhatIsWrong) {
  const std::vector<std::pair<const char*, const char*>> wrong = {
      {R"({})", "input: is missing"},
      {R"({"input":""})", "input: must not be empty"},
      {R"({"input":[]})", "input: must have 1 to"},
      {R"({"input":["a",""]})", "input[1]: must not be empty"},
      {R"({"input":["a",7]})", "input[1]: must be a string or an array of tokens"},
      {R"({"input":7})", "input: must be a string or an array of tokens"},
      {R"({"input":"a","encoding_format":"hex"})", "encoding_format"},
      {R"({"input":"a","dimensions":0})", "dimensions"},
  };
  for (const auto& [body, words] : wrong) {
    EXPECT_THAT(ParseEmbeddings(body),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(words)))
        << body;
  }
}

TEST(EmbeddingsJson, HasTheVectorsInOrder) {
  const ApiEmbeddings embeddings = {.vectors = {{1, 0}, {0, -1}}, .prompt_tokens = 5};
  const Json json = Json::parse(EmbeddingsJson("m", /*is_base64=*/false, embeddings));
  EXPECT_EQ(json["object"], "list");
  EXPECT_EQ(json["model"], "m");
  EXPECT_EQ(json["usage"]["prompt_tokens"], 5);
  EXPECT_EQ(json["usage"]["total_tokens"], 5);
  EXPECT_EQ(json["data"][1],
            Json({{"object", "embedding"}, {"index", 1}, {"embedding", {0.0, -1.0}}}));
}

TEST(EmbeddingsJson, HasFloatsAsBase64) {
  const Json json = Json::parse(EmbeddingsJson("m", /*is_base64=*/true, {.vectors = {{1, -2}}}));
  EXPECT_EQ(json["data"][0]["embedding"], "AACAPwAAAMA=");  // 3f800000 c0000000, little-endian
}

}  // namespace
}  // namespace strata
