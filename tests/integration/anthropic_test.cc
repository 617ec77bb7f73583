// Anthropic's API over a real cluster: two nodes, the demo model over both.
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/integration/api_cluster.h"
#include "tests/support/http_client.h"

namespace strata {
namespace {

using ::strata::testing::HttpClient;
using ::strata::testing::HttpReply;
using ::testing::HasSubstr;
using Json = nlohmann::json;

class Anthropic : public testing::SharedApiCluster {
 protected:
  uint32_t seqs() const override { return 4; }

  Json AskFor(const Json& more = Json::object()) const {
    Json body = {{"model", name_},
                 {"max_tokens", 12},
                 {"temperature", 0},
                 {"messages", Json::array({{{"role", "user"}, {"content", "The old captain"}}})}};
    body.update(more);
    return body;
  }
  Json Message(size_t node, const Json& body, const std::string& path = "/v1/messages") {
    const HttpReply reply = Post(node, path, body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body, nullptr, false);
  }
  Json ErrorOf(const Json& body, int status) {
    const HttpReply reply = Post(0, "/v1/messages", body);
    EXPECT_EQ(reply.status, status) << reply.body;
    const Json json = Json::parse(reply.body, nullptr, false);
    EXPECT_EQ(json.value("type", ""), "error") << json;
    return json.value("error", Json::object());
  }
};

std::vector<Json> EventsOf(const std::string& stream) {
  std::vector<Json> events;
  for (absl::string_view event : absl::StrSplit(stream, "\n\n", absl::SkipEmpty())) {
    if (absl::StartsWith(event, ":")) continue;
    const std::vector<absl::string_view> lines = absl::StrSplit(event, '\n');
    EXPECT_EQ(lines.size(), 2u) << event;
    events.push_back(Json::parse(absl::StripPrefix(lines.back(), "data: "), nullptr, false));
    EXPECT_EQ(lines[0], absl::StrCat("event: ", events.back().value("type", ""))) << event;
  }
  return events;
}

const Json kTools =
    Json::array({{{"name", "get_weather"},
                  {"description", "The weather of a city."},
                  {"input_schema",
                   {{"type", "object"},
                    {"properties", {{"city", {{"type", "string"}, {"enum", {"Rome", "Oslo"}}}}}},
                    {"required", {"city"}}}}}});

TEST_F(Anthropic, TextIsThatOfAChatWholeAndStreamed) {
  const Json chat = Json::parse(Post(0, "/v1/chat/completions", AskFor()).body);
  const std::string text = chat["choices"][0]["message"]["content"];
  const Json message = Message(1, AskFor(), "/v1/messages?beta=true");
  ASSERT_EQ(message["content"].size(), 1u) << message;
  EXPECT_EQ(message["content"][0]["text"], text);
  EXPECT_EQ(message["stop_reason"], "max_tokens");
  EXPECT_EQ(message["model"], name_);
  const Json& usage = message["usage"];
  EXPECT_EQ(usage["output_tokens"], 12);
  const int prompt_tokens = chat["usage"]["prompt_tokens"];
  EXPECT_EQ(usage["input_tokens"].get<int>() + usage["cache_read_input_tokens"].get<int>(),
            prompt_tokens);
  EXPECT_EQ(Message(0, AskFor(), "/v1/messages/count_tokens"),
            Json({{"input_tokens", prompt_tokens}}));

  const HttpReply reply = Post(0, "/v1/messages", AskFor({{"stream", true}}));
  EXPECT_THAT(reply.Header("content-type"), HasSubstr("text/event-stream"));
  const std::vector<Json> events = EventsOf(reply.body);
  ASSERT_GE(events.size(), 6u) << reply.body;
  EXPECT_EQ(events[0]["type"], "message_start");
  EXPECT_EQ(events[0]["message"]["usage"]["input_tokens"], prompt_tokens);
  EXPECT_EQ(events.back()["type"], "message_stop");
  EXPECT_EQ(events[events.size() - 2]["delta"]["stop_reason"], "max_tokens");
  EXPECT_EQ(events[events.size() - 2]["usage"]["output_tokens"], 12);
  std::string streamed;
  for (const Json& event : events) {
    if (event["type"] == "content_block_delta") streamed += event["delta"].value("text", "");
  }
  EXPECT_EQ(streamed, text);

  // A stop sequence is not part of the text.
  const std::string stop = text.substr(text.size() / 2, 3);
  const Json stopped = Message(0, AskFor({{"stop_sequences", {stop}}}));
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], stop);
  EXPECT_EQ(stopped["content"][0]["text"], text.substr(0, text.find(stop)));
}

TEST_F(Anthropic, AForcedCallIsAnsweredAndGoneOnFrom) {
  const Json forced =
      AskFor({{"max_tokens", 200},
              {"tools", kTools},
              {"tool_choice",
               {{"type", "tool"}, {"name", "get_weather"}, {"disable_parallel_tool_use", true}}}});
  const Json message = Message(0, forced);
  EXPECT_EQ(message["stop_reason"], "tool_use");
  ASSERT_EQ(message["content"].size(), 1u) << message;
  const Json& call = message["content"][0];
  EXPECT_EQ(call["type"], "tool_use");
  EXPECT_EQ(call["name"], "get_weather");
  EXPECT_TRUE(absl::StartsWith(call["id"].get<std::string>(), "toolu_")) << call;
  EXPECT_TRUE(call["input"]["city"] == "Rome" || call["input"]["city"] == "Oslo") << call;

  Json streamed = forced;
  streamed["stream"] = true;
  std::string arguments;
  for (const Json& event : EventsOf(Post(1, "/v1/messages", streamed).body)) {
    if (event["type"] == "content_block_delta") {
      arguments += event["delta"].value("partial_json", "");
    }
  }
  EXPECT_EQ(Json::parse(arguments, nullptr, false), call["input"]);

  Json answered = AskFor({{"tools", kTools}});
  answered["messages"].push_back({{"role", "assistant"}, {"content", message["content"]}});
  answered["messages"].push_back(
      {{"role", "user"},
       {"content",
        Json::array({{{"type", "tool_result"},
                      {"tool_use_id", call["id"]},
                      {"content", Json::array({{{"type", "text"}, {"text", "Rain."}}})}}})}});
  const Json next = Message(0, answered);
  EXPECT_GT(next["usage"]["output_tokens"], 0) << next;
  const int before = Message(0, forced, "/v1/messages/count_tokens")["input_tokens"];
  EXPECT_GT(Message(0, answered, "/v1/messages/count_tokens")["input_tokens"], before);
}

TEST_F(Anthropic, AnswersMeetASchemaAndGoOnFromAPrefill) {
  const Json schema = {{"type", "object"},
                       {"properties", {{"age", {{"type", "integer"}}}}},
                       {"required", {"age"}},
                       {"additionalProperties", false}};
  const Json answer = Message(
      0, AskFor({{"max_tokens", 200},
                 {"output_config", {{"format", {{"type", "json_schema"}, {"schema", schema}}}}}}));
  const Json parsed = Json::parse(answer["content"][0].value("text", ""), nullptr, false);
  EXPECT_TRUE(parsed.is_object() && parsed["age"].is_number_integer()) << answer;

  Json prefill = AskFor();
  prefill["messages"].push_back({{"role", "assistant"}, {"content", "was a"}});
  const Json chat = Json::parse(
      Post(0, "/v1/chat/completions",
           AskFor({{"messages", prefill["messages"]}, {"continue_final_message", true}}))
          .body);
  EXPECT_EQ(Message(0, prefill)["content"][0]["text"], chat["choices"][0]["message"]["content"]);
}

TEST_F(Anthropic, WrongInputIsRefusedInItsForm) {
  EXPECT_EQ(ErrorOf(AskFor({{"messages", 1}}), 400)["type"], "invalid_request_error");
  const Json image = Json::array(
      {{{"role", "user"},
        {"content", Json::array({{{"type", "image"}, {"source", {{"type", "base64"}}}}})}}});
  EXPECT_THAT(ErrorOf(AskFor({{"messages", image}}), 400)["message"].get<std::string>(),
              HasSubstr("image"));
  EXPECT_EQ(ErrorOf(AskFor({{"model", "nothing"}}), 404)["type"], "not_found_error");
  std::string words;
  for (int i = 0; i < 3000; ++i) words += "captain ";
  const Json longer = Json::array({{{"role", "user"}, {"content", words}}});
  EXPECT_THAT(ErrorOf(AskFor({{"messages", longer}}), 400)["message"].get<std::string>(),
              HasSubstr("prompt is too long"));
}

TEST_F(Anthropic, ModelsComeInItsFormToItsClients) {
  const auto get = [this](const std::string& path, const std::string& headers) {
    HttpClient client(ports_[0]);
    EXPECT_TRUE(client.Send(
        absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: localhost\r\n", headers, "\r\n")));
    return Json::parse(client.Read().body, nullptr, false);
  };
  const std::string version = "anthropic-version: 2023-06-01\r\n";
  const Json list = get("/v1/models?limit=20", version);
  ASSERT_EQ(list["data"].size(), 1u) << list;
  EXPECT_EQ(list["data"][0]["type"], "model");
  EXPECT_EQ(list["data"][0]["id"], name_);
  EXPECT_EQ(list["has_more"], false);
  const std::string path = absl::StrCat("/v1/models/", absl::StrReplaceAll(name_, {{" ", "%20"}}));
  EXPECT_EQ(get(path, version), list["data"][0]);
  EXPECT_EQ(get("/v1/models/nothing", version)["error"]["type"], "not_found_error");
  EXPECT_EQ(get("/v1/models", "")["object"], "list");  // OpenAI's
}

}  // namespace
}  // namespace strata
