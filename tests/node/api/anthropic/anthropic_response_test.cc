#include "node/api/anthropic/anthropic_response.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace strata {
namespace {

using ::testing::ElementsAre;
using Json = nlohmann::json;

// The data of a stream's events, whose names must be those of their types.
std::vector<Json> EventsOf(const std::string& stream) {
  std::vector<Json> events;
  for (absl::string_view event : absl::StrSplit(stream, "\n\n", absl::SkipEmpty())) {
    const std::vector<std::string> lines = absl::StrSplit(event, '\n');
    EXPECT_EQ(lines.size(), 2u) << event;
    if (lines.size() != 2) continue;
    events.push_back(Json::parse(absl::StripPrefix(lines[1], "data: "), nullptr, false));
    EXPECT_TRUE(events.back().is_object()) << event;
    if (!events.back().is_object()) continue;
    EXPECT_EQ(absl::StripPrefix(lines[0], "event: "), events.back().value("type", ""));
  }
  return events;
}
std::vector<std::string> TypesOf(const std::vector<Json>& events) {
  std::vector<std::string> types;
  for (const Json& event : events) types.push_back(event["type"]);
  return types;
}

AnthropicWriter NewWriter() {
  return AnthropicWriter({.id = "msg_1", .model = "m", .request_id = "r1"});
}

const ApiUsage kUsage = {.prompt_tokens = 10, .cached_tokens = 4, .completion_tokens = 3};
const ApiPiece kPiece = {
    .text = "It is",
    .thought = "Hm.",
    .finish_reason = "tool_calls",
    .calls = {{.index = 0, .id = "c1", .name = "f", .arguments = R"({"b":1,"a":2})"},
              {.index = 1, .id = "c2", .name = "g", .arguments = R"({"cut)"}}};

TEST(AnthropicResponse, AWholeMessageHasItsBlocks) {
  AnthropicWriter writer = NewWriter();
  const HttpResponse response = writer.Whole({kPiece}, kUsage);
  const auto message = nlohmann::ordered_json::parse(response.body);
  EXPECT_EQ(message["type"], "message");
  EXPECT_EQ(message["role"], "assistant");
  EXPECT_EQ(message["id"], "msg_1");
  EXPECT_EQ(message["model"], "m");
  EXPECT_EQ(message["stop_reason"], "tool_use");
  EXPECT_TRUE(message["stop_sequence"].is_null());
  const auto& content = message["content"];
  ASSERT_EQ(content.size(), 4u) << content;
  EXPECT_EQ(content[0]["type"], "thinking");
  EXPECT_EQ(content[0]["thinking"], "Hm.");
  EXPECT_TRUE(content[0]["signature"].is_string());
  EXPECT_EQ(content[1].dump(), R"({"type":"text","text":"It is"})");
  EXPECT_EQ(content[2].dump(),
            R"({"type":"tool_use","id":"toolu_c1","name":"f","input":{"b":1,"a":2}})");
  EXPECT_EQ(content[3]["input"].dump(), "{}");  // it was cut
  EXPECT_EQ(message["usage"]["input_tokens"], 6);
  EXPECT_EQ(message["usage"]["cache_read_input_tokens"], 4);
  EXPECT_EQ(message["usage"]["output_tokens"], 3);
}

TEST(AnthropicResponse, SaysWhyItEnded) {
  const auto stop_of = [](const ApiPiece& piece) {
    AnthropicWriter writer = NewWriter();
    const Json message = Json::parse(writer.Whole({piece}, {}).body);
    return std::pair(message["stop_reason"], message["stop_sequence"]);
  };
  EXPECT_EQ(stop_of({.text = "a", .finish_reason = "stop"}), std::pair(Json("end_turn"), Json()));
  EXPECT_EQ(stop_of({.text = "a", .finish_reason = "length"}),
            std::pair(Json("max_tokens"), Json()));
  EXPECT_EQ(stop_of({.text = "a", .finish_reason = "stop", .stop_string = "END"}),
            std::pair(Json("stop_sequence"), Json("END")));
}

TEST(AnthropicResponse, AStreamOpensAndEndsEachBlock) {
  AnthropicWriter writer = NewWriter();
  // A piece may come before the head.
  const std::string early = writer.Piece({.text = "", .thought = "H"});
  const HttpResponse head = writer.Begin({{.first = true, .text = ""}}, {.prompt_tokens = 10});
  EXPECT_TRUE(absl::StartsWith(head.content_type, "text/event-stream"));
  EXPECT_TRUE(absl::StartsWith(head.when_quiet, "event: ping\n"));
  std::string stream = head.body + early;
  stream += writer.Piece({.text = "It", .thought = "m."});
  stream += writer.Piece({.text = " is\xFF"});
  stream += writer.Piece({.text = "", .calls = {{.index = 0, .id = "c1", .name = "f"}}});
  stream += writer.Piece({.text = "", .calls = {{.index = 0, .arguments = R"({"a")"}}});
  stream += writer.Piece({.text = "",
                          .finish_reason = "tool_calls",
                          .calls = {{.index = 0, .arguments = ":1}"},
                                    {.index = 1, .id = "c2", .name = "g", .arguments = "{}"}}});
  stream += writer.End(kUsage);

  const std::vector<Json> events = EventsOf(stream);
  const char* const kStart = "content_block_start";
  const char* const kDelta = "content_block_delta";
  const char* const kStop = "content_block_stop";
  ASSERT_THAT(TypesOf(events),
              ElementsAre("message_start", "ping",                //
                          kStart, kDelta, kDelta, kDelta, kStop,  // the thought, its signature
                          kStart, kDelta, kDelta, kStop,          // the text
                          kStart, kDelta, kDelta, kStop,          // the first call
                          kStart, kDelta, kStop, "message_delta", "message_stop"));
  const Json& message = events[0]["message"];
  EXPECT_EQ(message["content"], Json::array());
  EXPECT_TRUE(message["stop_reason"].is_null());
  EXPECT_EQ(message["usage"]["input_tokens"], 10);
  EXPECT_EQ(events[2]["content_block"]["type"], "thinking");
  EXPECT_EQ(events[3]["delta"], Json({{"type", "thinking_delta"}, {"thinking", "H"}}));
  EXPECT_EQ(events[5]["delta"]["type"], "signature_delta");
  EXPECT_EQ(events[7]["index"], 1);
  EXPECT_EQ(events[7]["content_block"], Json({{"type", "text"}, {"text", ""}}));
  EXPECT_EQ(events[9]["delta"], Json({{"type", "text_delta"}, {"text", " is\uFFFD"}}));
  EXPECT_EQ(events[11]["content_block"],
            Json::parse(R"({"type":"tool_use","id":"toolu_c1","name":"f","input":{}})"));
  EXPECT_EQ(events[13]["delta"], Json({{"type", "input_json_delta"}, {"partial_json", ":1}"}}));
  EXPECT_EQ(events[15]["content_block"]["id"], "toolu_c2");
  EXPECT_EQ(events[15]["index"], 3);
  EXPECT_EQ(events[17], Json({{"type", "content_block_stop"}, {"index", 3}}));
  EXPECT_EQ(events[18]["delta"]["stop_reason"], "tool_use");
  EXPECT_EQ(events[18]["usage"]["input_tokens"], 6);
  EXPECT_EQ(events[18]["usage"]["output_tokens"], 3);
}

TEST(AnthropicResponse, ErrorsAreEventsOfAStream) {
  AnthropicWriter writer = NewWriter();
  const std::vector<Json> events = EventsOf(writer.Failure(absl::UnavailableError("gone")));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0]["error"]["type"], "overloaded_error");
  EXPECT_EQ(events[0]["error"]["message"], "gone");
  EXPECT_EQ(events[0]["request_id"], "r1");
  EXPECT_EQ(writer.Error(absl::NotFoundError("no")).status, 404);
}

TEST(AnthropicResponse, ListsModels) {
  wire::ModelStatus model;
  model.set_name("Strata demo");
  model.set_n_ctx(1024);
  model.set_loaded_s_ago(60);
  const Json list = Json::parse(AnthropicModelsJson({model}, 60));
  EXPECT_EQ(list["data"][0]["id"], "Strata demo");
  EXPECT_EQ(list["data"][0]["type"], "model");
  EXPECT_EQ(list["data"][0]["created_at"], "1970-01-01T00:00:00Z");
  EXPECT_EQ(list["data"][0]["max_input_tokens"], 1024);
  EXPECT_EQ(list["has_more"], false);
  EXPECT_EQ(list["last_id"], "Strata demo");
  EXPECT_TRUE(Json::parse(AnthropicModelsJson({}, 60))["first_id"].is_null());
}

}  // namespace
}  // namespace strata
