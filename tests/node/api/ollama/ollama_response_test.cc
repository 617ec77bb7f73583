#include "node/api/ollama/ollama_response.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace strata {
namespace {

using Json = nlohmann::json;

std::vector<Json> LinesOf(const std::string& text) {
  std::vector<Json> lines;
  EXPECT_TRUE(text.empty() || absl::EndsWith(text, "\n"));
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    lines.push_back(Json::parse(line, nullptr, false));
    EXPECT_TRUE(lines.back().is_object()) << line;
  }
  return lines;
}

const ApiUsage kUsage = {.prompt_tokens = 5,
                         .completion_tokens = 3,
                         .first_token = absl::Milliseconds(2),
                         .total = absl::Milliseconds(7)};

TEST(OllamaWriter, StreamsLinesOfJson) {
  OllamaWriter writer("m", /*chat=*/true);
  const HttpResponse head = writer.Begin({{.first = true}}, {});
  EXPECT_EQ(head.content_type, "application/x-ndjson");
  EXPECT_EQ(head.body, "");
  EXPECT_EQ(head.when_quiet, "");  // an empty line is no JSON
  const auto thought = LinesOf(writer.Piece({.text = "", .thought = "Hm"}));
  ASSERT_EQ(thought.size(), 1u);
  EXPECT_EQ(thought[0]["message"],
            Json({{"role", "assistant"}, {"content", ""}, {"thinking", "Hm"}}));
  const auto text = LinesOf(writer.Piece({.text = "Hi\xFF\n"}));
  ASSERT_EQ(text.size(), 1u);
  EXPECT_EQ(text[0]["message"]["content"], "Hi\uFFFD\n");
  EXPECT_EQ(text[0]["done"], false);
  EXPECT_EQ(text[0]["model"], "m");
  EXPECT_FALSE(text[0].contains("done_reason"));
  EXPECT_EQ(writer.Piece({.text = "", .finish_reason = "length"}), "");
  const auto end = LinesOf(writer.End(kUsage));
  ASSERT_EQ(end.size(), 1u);
  EXPECT_EQ(end[0]["done"], true);
  EXPECT_EQ(end[0]["done_reason"], "length");
  EXPECT_EQ(end[0]["message"]["content"], "");
  EXPECT_EQ(end[0]["total_duration"], 7'000'000);
  EXPECT_EQ(end[0]["load_duration"], 0);
  EXPECT_EQ(end[0]["prompt_eval_count"], 5);
  EXPECT_EQ(end[0]["prompt_eval_duration"], 2'000'000);
  EXPECT_EQ(end[0]["eval_count"], 3);
  EXPECT_EQ(end[0]["eval_duration"], 5'000'000);
}

TEST(OllamaWriter, ACallIsToldOnceItIsComplete) {
  OllamaWriter writer("m", /*chat=*/true);
  EXPECT_EQ(writer.Piece({.calls = {{.index = 0, .id = "a", .name = "f", .arguments = "{\"x\":"}}}),
            "");
  const auto first = LinesOf(writer.Piece(
      {.calls = {{.index = 0, .arguments = "1}"}, {.index = 1, .id = "b", .name = "g"}}}));
  ASSERT_EQ(first.size(), 1u);
  const Json& call = first[0]["message"]["tool_calls"];
  ASSERT_EQ(call.size(), 1u);
  EXPECT_EQ(call[0]["function"]["name"], "f");
  EXPECT_EQ(call[0]["function"]["arguments"], Json({{"x", 1}}));
  const auto second = LinesOf(writer.Piece({.text = "", .finish_reason = "tool_calls"}));
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0]["message"]["tool_calls"][0]["function"]["name"], "g");
  EXPECT_EQ(second[0]["message"]["tool_calls"][0]["function"]["arguments"], Json::object());
  EXPECT_EQ(LinesOf(writer.End(kUsage))[0]["done_reason"], "stop");
}

TEST(OllamaWriter, ACallThatIsCutIsNotTold) {
  OllamaWriter writer("m", /*chat=*/true);
  EXPECT_EQ(writer.Piece({.calls = {{.id = "a", .name = "f", .arguments = "{\"x\":"}}}), "");
  EXPECT_EQ(writer.Piece({.text = "", .finish_reason = "length"}), "");
  EXPECT_EQ(LinesOf(writer.End(kUsage))[0]["done_reason"], "length");
}

TEST(OllamaWriter, AWholeAnswerHasAllOfIt) {
  OllamaWriter writer("m", /*chat=*/true);
  const HttpResponse response =
      writer.Whole({{.text = "Hi",
                     .thought = "Hm",
                     .finish_reason = "tool_calls",
                     .calls = {{.id = "a", .name = "f", .arguments = R"({"x":1})"}}}},
                   kUsage);
  EXPECT_EQ(response.content_type, "application/json");
  const Json json = Json::parse(response.body);
  EXPECT_EQ(json["message"]["content"], "Hi");
  EXPECT_EQ(json["message"]["thinking"], "Hm");
  EXPECT_EQ(json["message"]["tool_calls"][0]["function"]["arguments"]["x"], 1);
  EXPECT_EQ(json["done"], true);
  EXPECT_EQ(json["done_reason"], "stop");
  EXPECT_EQ(json["eval_count"], 3);
}

TEST(OllamaWriter, AGeneratedTextIsAResponse) {
  OllamaWriter writer("m", /*chat=*/false);
  const auto piece = LinesOf(writer.Piece({.text = "Hi", .thought = "Hm"}));
  EXPECT_EQ(piece[0]["response"], "Hi");
  EXPECT_EQ(piece[0]["thinking"], "Hm");
  EXPECT_FALSE(piece[0].contains("message"));
  EXPECT_EQ(Json::parse(OllamaLoaded("m", /*chat=*/false))["done_reason"], "load");
  EXPECT_EQ(Json::parse(OllamaLoaded("m", /*chat=*/true))["message"]["content"], "");
}

TEST(OllamaWriter, ErrorsAreWords) {
  OllamaWriter writer("m", /*chat=*/true);
  EXPECT_EQ(LinesOf(writer.Failure(absl::UnavailableError("no stage")))[0],
            Json({{"error", "no stage"}}));
  const HttpResponse response = writer.Error(absl::NotFoundError("no model"));
  EXPECT_EQ(response.status, 404);
  EXPECT_EQ(Json::parse(response.body), Json({{"error", "no model"}}));
}

}  // namespace
}  // namespace strata
