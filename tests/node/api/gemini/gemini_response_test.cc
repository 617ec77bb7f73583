#include "node/api/gemini/gemini_response.h"

#include <string>

#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace strata {
namespace {

using Json = nlohmann::json;

const GeminiWriter::Answer kAnswer = {.id = "1", .model = "m"};

Json EventOf(absl::string_view event) {
  EXPECT_TRUE(absl::ConsumePrefix(&event, "data: "));
  EXPECT_TRUE(absl::ConsumeSuffix(&event, "\n\n"));
  return Json::parse(event);
}

ApiPiece Call(const std::string& arguments) {
  return {.calls = {{.id = "c1", .name = "f", .arguments = arguments}}};
}

TEST(GeminiResponse, PartsAreThoughtsTextAndCalls) {
  GeminiWriter writer(kAnswer);
  ApiPiece piece = Call(R"({"z":1})");
  piece.thought = "hm";
  piece.text = "Look:";
  piece.finish_reason = "tool_calls";
  const Json whole = Json::parse(writer
                                     .Whole({piece}, {.prompt_tokens = 5,
                                                      .cached_tokens = 2,
                                                      .completion_tokens = 7,
                                                      .reasoning_tokens = 3})
                                     .body);
  EXPECT_EQ(whole["candidates"][0],
            Json::parse(R"({"content":{"role":"model","parts":[{"text":"hm","thought":true},
              {"text":"Look:"},{"functionCall":{"id":"c1","name":"f","args":{"z":1}}}]},
              "finishReason":"STOP","index":0})"));
  EXPECT_EQ(whole["usageMetadata"],
            Json::parse(R"({"promptTokenCount":5,"candidatesTokenCount":4,"totalTokenCount":12,
              "cachedContentTokenCount":2,"thoughtsTokenCount":3})"));
  EXPECT_EQ(whole["modelVersion"], "m");
}

TEST(GeminiResponse, CallsOfAStreamComeWhole) {
  GeminiWriter writer(kAnswer);
  EXPECT_EQ(EventOf(writer.Piece({.text = "a"}))["candidates"][0]["content"]["parts"][0]["text"],
            "a");
  EXPECT_EQ(writer.Piece(Call("{\"x\"")), "");
  EXPECT_EQ(writer.Piece({.calls = {{.arguments = ":1}"}}}), "");
  const Json last = EventOf(writer.Piece({.finish_reason = "tool_calls"}));
  EXPECT_EQ(last["candidates"][0]["content"]["parts"][0]["functionCall"]["args"], Json({{"x", 1}}));
  EXPECT_EQ(last["candidates"][0]["finishReason"], "STOP");
  EXPECT_EQ(writer.End({}), "");
}

TEST(GeminiResponse, WithoutEventsAStreamIsOneArray) {
  for (const bool fails : {false, true}) {
    GeminiWriter writer({.id = "1", .model = "m", .has_events = false});
    std::string body = writer.Begin({}, {}).body;
    body += writer.Piece({.text = "a"});
    body += fails ? writer.Failure(absl::UnavailableError("gone"))
                  : writer.Piece({.text = "b", .finish_reason = "length"}) + writer.End({});
    const Json array = Json::parse(body);
    ASSERT_EQ(array.size(), 2u);
    if (fails) {
      EXPECT_EQ(array[1]["error"]["status"], "UNAVAILABLE");
    } else {
      EXPECT_EQ(array[1]["candidates"][0]["finishReason"], "MAX_TOKENS");
    }
  }
}

TEST(GeminiResponse, TellsLogprobs) {
  wire::SampledToken token;
  token.set_token(7);
  token.set_piece("a");
  token.set_logprob(-2);
  *token.add_top() = wire::TokenLogprob();
  GeminiWriter writer(kAnswer);
  const Json whole =
      Json::parse(writer.Whole({{.text = "a", .logprobs = true, .tokens = {token}}}, {}).body);
  const Json& candidate = whole["candidates"][0];
  EXPECT_EQ(candidate["avgLogprobs"], -2.0);
  EXPECT_EQ(candidate["logprobsResult"]["chosenCandidates"][0]["tokenId"], 7);
  EXPECT_EQ(candidate["logprobsResult"]["topCandidates"][0]["candidates"].size(), 1u);
}

TEST(GeminiResponse, EmbeddingsAreOneOrSeveral) {
  const ApiEmbeddings embeddings = {.vectors = {{1, 0}}};
  EXPECT_EQ(Json::parse(GeminiEmbeddingsJson(embeddings, /*is_batch=*/false)),
            Json::parse(R"({"embedding":{"values":[1.0,0.0]}})"));
  EXPECT_EQ(Json::parse(GeminiEmbeddingsJson(embeddings, /*is_batch=*/true)),
            Json::parse(R"({"embeddings":[{"values":[1.0,0.0]}]})"));
}

}  // namespace
}  // namespace strata
