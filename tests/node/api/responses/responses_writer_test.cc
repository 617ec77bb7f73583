#include "node/api/responses/responses_writer.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace strata {
namespace {

using Json = nlohmann::json;

std::vector<Json> EventsOf(const std::string& text) {
  std::vector<Json> events;
  for (absl::string_view part : absl::StrSplit(text, "\n\n", absl::SkipEmpty())) {
    const std::vector<absl::string_view> lines = absl::StrSplit(part, '\n');
    EXPECT_EQ(lines.size(), 2u) << part;
    events.push_back(Json::parse(absl::StripPrefix(lines.at(1), "data: ")));
    EXPECT_EQ(lines[0], absl::StrCat("event: ", events.back()["type"].get<std::string>()));
    EXPECT_EQ(events.back()["sequence_number"], events.size() - 1);
  }
  return events;
}

std::string TypesOf(const std::vector<Json>& events) {
  return absl::StrJoin(events, " ", [](std::string* out, const Json& event) {
    const std::string type = event["type"];
    absl::StrAppend(out, absl::StripPrefix(type, "response."));
  });
}

class ResponsesWriterTest : public ::testing::Test {
 protected:
  ResponsesWriter Writer() {
    return ResponsesWriter({.key = "k",
                            .created_s = 7,
                            .model = "m",
                            .echo = {{"temperature", 1.0}, {"store", true}},
                            .renamed = {{.shown = "sky.look", .name_space = "sky", .name = "look"},
                                        {.shown = "patch", .name = "patch", .is_custom = true}},
                            .on_end = [this](const std::string& id, StoredResponse response) {
                              EXPECT_EQ(id, "resp_k");
                              EXPECT_EQ(Json::parse(response.output),
                                        Json::parse(response.response)["output"]);
                              stored_ = response.response;
                              item_ids_ = absl::StrJoin(response.output_ids, " ");
                            }});
  }
  std::string stored_, item_ids_;
};

const ApiUsage kUsage = {
    .prompt_tokens = 5, .cached_tokens = 2, .completion_tokens = 3, .reasoning_tokens = 1};

TEST_F(ResponsesWriterTest, EveryItemOfAStreamHasItsEventsInOrder) {
  ResponsesWriter writer = Writer();
  const std::string early = writer.Piece({.thought = "Hm"});  // before the head
  std::string text = writer.Begin({}, {}).body + early;
  text += writer.Piece({.text = "Hel"});
  text += writer.Piece({.text = "lo", .calls = {{.id = "c1", .name = "f", .arguments = "{\"a\""}}});
  text += writer.Piece({.text = "", .calls = {{.arguments = ":1}"}}});
  text += writer.Piece({.text = "", .finish_reason = "tool_calls"});
  text += writer.End(kUsage);
  const std::vector<Json> events = EventsOf(text);
  EXPECT_EQ(TypesOf(events),
            "created in_progress "
            "output_item.added content_part.added reasoning_text.delta "
            "reasoning_text.done content_part.done output_item.done "
            "output_item.added content_part.added output_text.delta output_text.delta "
            "output_text.done content_part.done output_item.done "
            "output_item.added function_call_arguments.delta function_call_arguments.delta "
            "function_call_arguments.done output_item.done completed");
  EXPECT_EQ(events[0]["response"]["status"], "in_progress");
  EXPECT_EQ(events[0]["response"]["output"], Json::array());
  EXPECT_EQ(events[0]["response"]["temperature"], 1.0);
  EXPECT_EQ(events[2]["item"]["type"], "reasoning");
  EXPECT_EQ(events[2]["item"]["status"], "in_progress");
  EXPECT_EQ(events[4]["item_id"], events[2]["item"]["id"]);
  EXPECT_EQ(events[7]["item"]["content"][0]["text"], "Hm");
  EXPECT_EQ(events[8]["output_index"], 1);
  EXPECT_EQ(events[8]["item"]["content"], Json::array());
  EXPECT_EQ(events[10]["delta"], "Hel");
  EXPECT_EQ(events[10]["content_index"], 0);
  EXPECT_EQ(events[12]["text"], "Hello");
  EXPECT_EQ(events[13]["part"]["text"], "Hello");
  EXPECT_EQ(events[15]["item"]["call_id"], "c1");
  EXPECT_EQ(events[15]["item"]["arguments"], "");
  EXPECT_EQ(events[18]["arguments"], "{\"a\":1}");
  EXPECT_EQ(events[19]["item"]["status"], "completed");
  const Json& response = events.back()["response"];
  EXPECT_EQ(response["status"], "completed");
  ASSERT_EQ(response["output"].size(), 3u);
  EXPECT_EQ(response["output"][1], events[14]["item"]);
  EXPECT_EQ(response["usage"]["input_tokens_details"]["cached_tokens"], 2);
  EXPECT_EQ(response["usage"]["output_tokens_details"]["reasoning_tokens"], 1);
  EXPECT_EQ(response["usage"]["total_tokens"], 8);
  EXPECT_EQ(Json::parse(stored_), response);
  EXPECT_EQ(item_ids_, "rs_k0 msg_k1 fc_k2");
}

TEST_F(ResponsesWriterTest, TheWholeHasWhatTheStreamHas) {
  const ApiPiece all = {.text = "Hello",
                        .thought = "Hm",
                        .finish_reason = "tool_calls",
                        .calls = {{.id = "c1", .name = "f", .arguments = "{}"},
                                  {.index = 1, .id = "c2", .name = "f", .arguments = "{}"}}};
  ResponsesWriter writer = Writer(), streamed = Writer();
  const HttpResponse whole = writer.Whole({all}, kUsage);
  EXPECT_EQ(whole.status, 200);
  EXPECT_EQ(stored_, whole.body);
  streamed.Begin({}, {});
  streamed.Piece(all);
  const std::string end = streamed.End(kUsage);
  EXPECT_TRUE(absl::StrContains(end, whole.body));
  const Json response = Json::parse(whole.body);
  EXPECT_EQ(response["object"], "response");
  EXPECT_TRUE(response["error"].is_null() && response["incomplete_details"].is_null());
  ASSERT_EQ(response["output"].size(), 4u);
  EXPECT_EQ(response["output"][3]["call_id"], "c2");
}

TEST_F(ResponsesWriterTest, AResponseThatIsCutIsIncomplete) {
  ResponsesWriter writer = Writer();
  std::string text = writer.Begin({}, {}).body;
  text += writer.Piece({.text = "Hel\xFF", .finish_reason = "length"});
  text += writer.End(kUsage);
  const std::vector<Json> events = EventsOf(text);
  EXPECT_EQ(events.back()["type"], "response.incomplete");
  const Json& response = events.back()["response"];
  EXPECT_EQ(response["status"], "incomplete");
  EXPECT_EQ(response["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(response["output"][0]["status"], "incomplete");
  EXPECT_EQ(response["output"][0]["content"][0]["text"], "Hel\uFFFD");
}

TEST_F(ResponsesWriterTest, AnEmptyResponseHasAnEmptyMessage) {
  const Json response =
      Json::parse(Writer().Whole({{.text = "", .finish_reason = "stop"}}, kUsage).body);
  ASSERT_EQ(response["output"].size(), 1u);
  EXPECT_EQ(response["output"][0]["content"][0]["text"], "");
}

TEST_F(ResponsesWriterTest, CallsOfRenamedToolsHaveTheClientsNames) {
  ResponsesWriter writer = Writer();
  std::string text = writer.Begin({}, {}).body;
  text +=
      writer.Piece({.text = "", .calls = {{.id = "c1", .name = "sky.look", .arguments = "{}"}}});
  text += writer.Piece(
      {.text = "",
       .finish_reason = "tool_calls",
       .calls = {{.index = 1, .id = "c2", .name = "patch", .arguments = R"({"input":"a\nb"})"}}});
  text += writer.End(kUsage);
  const std::vector<Json> events = EventsOf(text);
  EXPECT_EQ(TypesOf(events),
            "created in_progress "
            "output_item.added function_call_arguments.delta function_call_arguments.done "
            "output_item.done "
            "output_item.added custom_tool_call_input.delta custom_tool_call_input.done "
            "output_item.done completed");
  const Json& output = events.back()["response"]["output"];
  EXPECT_EQ(output[0]["name"], "look");
  EXPECT_EQ(output[0]["namespace"], "sky");
  EXPECT_EQ(output[1]["type"], "custom_tool_call");
  EXPECT_EQ(output[1]["name"], "patch");
  EXPECT_EQ(output[1]["input"], "a\nb");
}

TEST_F(ResponsesWriterTest, AFailureIsToldInBothForms) {
  ResponsesWriter writer = Writer();
  std::string text = writer.Begin({}, {}).body;
  text += writer.Piece({.text = "Hel"});
  text += writer.Failure(absl::UnavailableError("a node has gone"));
  const std::vector<Json> events = EventsOf(text);
  ASSERT_GE(events.size(), 2u);
  const Json& error = events[events.size() - 2];
  EXPECT_EQ(error["type"], "error");
  EXPECT_EQ(error["message"], "a node has gone");
  EXPECT_EQ(error["error"]["message"], "a node has gone");
  const Json& failed = events.back();
  EXPECT_EQ(failed["type"], "response.failed");
  EXPECT_EQ(failed["response"]["status"], "failed");
  EXPECT_EQ(failed["response"]["error"]["code"], "server_error");
  EXPECT_EQ(failed["response"]["output"][0]["status"], "incomplete");
  EXPECT_EQ(stored_, "");
}

}  // namespace
}  // namespace strata
