#include "node/api/llama/llama_rerank.h"

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
using Json = nlohmann::json;

TEST(ParseLlamaRerank, TakesDocumentsAsTextsAndAsObjects) {
  const auto rerank = ParseLlamaRerank(
      R"({"model":"m","query":"q","documents":["a",{"text":"b"}],"instruction":"i","top_n":1})");
  ASSERT_TRUE(rerank.ok()) << rerank.status();
  EXPECT_EQ(rerank->request.model, "m");
  EXPECT_EQ(rerank->request.query, "q");
  EXPECT_EQ(rerank->request.instruction, "i");
  EXPECT_THAT(rerank->request.documents, ElementsAre("a", "b"));
  EXPECT_EQ(rerank->n_top, 1);
  EXPECT_FALSE(rerank->has_texts);
  EXPECT_FALSE(rerank->returns_text);
}

TEST(ParseLlamaRerank, ReturnsAllWhereMoreAreWanted) {
  const auto rerank = ParseLlamaRerank(R"({"query":"q","texts":["a","b"],"top_n":9})");
  ASSERT_TRUE(rerank.ok()) << rerank.status();
  EXPECT_TRUE(rerank->has_texts);
  EXPECT_EQ(rerank->n_top, 2);
}

TEST(ParseLlamaRerank, NamesWhatIsWrong) {
  const std::vector<std::pair<const char*, const char*>> wrong = {
      {R"({"documents":["a"]})", "query: must be a string"},
      {R"({"query":"","documents":["a"]})", "query: must be a string"},
      {R"({"query":"q"})", "documents: is missing"},
      {R"({"query":"q","documents":[]})", "documents: must be an array of 1 to"},
      {R"({"query":"q","documents":"a"})", "documents: must be an array of 1 to"},
      {R"({"query":"q","texts":{}})", "texts: must be an array of 1 to"},
      {R"({"query":"q","documents":["a",7]})", "documents[1]: must be a string or an object"},
      {R"({"query":"q","documents":[{"title":"a"}]})", "documents[0]: must be a string"},
      {R"({"query":"q","documents":["a"],"top_n":0})", "top_n"},
      {R"({"query":"q","documents":["a"],"return_documents":1})", "return_documents"},
  };
  for (const auto& [body, words] : wrong) {
    EXPECT_THAT(ParseLlamaRerank(body),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(words)))
        << body;
  }
}

TEST(LlamaRerankJson, HasTheBestFirst) {
  const LlamaRerank rerank = {
      .request = {.query = "q", .documents = {"a", "b", "c"}}, .n_top = 2, .returns_text = true};
  const Json json =
      Json::parse(LlamaRerankJson("m", rerank, {.scores = {0.25, 0.5, 0.125}, .prompt_tokens = 7}));
  EXPECT_EQ(json["model"], "m");
  EXPECT_EQ(json["object"], "list");
  EXPECT_EQ(json["usage"], Json({{"prompt_tokens", 7}, {"total_tokens", 7}}));
  const Json first = {{"index", 1}, {"relevance_score", 0.5}, {"document", {{"text", "b"}}}};
  const Json second = {{"index", 0}, {"relevance_score", 0.25}, {"document", {{"text", "a"}}}};
  EXPECT_EQ(json["results"], Json::array({first, second}));
}

TEST(LlamaRerankJson, IsAnArrayOfTextEmbeddingsInference) {
  const LlamaRerank rerank = {.request = {.query = "q", .documents = {"a"}},
                              .n_top = 1,
                              .has_texts = true,
                              .returns_text = true};
  EXPECT_EQ(Json::parse(LlamaRerankJson("m", rerank, {.scores = {0.25}})),
            Json::array({{{"index", 0}, {"score", 0.25}, {"text", "a"}}}));
}

}  // namespace
}  // namespace strata
