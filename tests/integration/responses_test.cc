// OpenAI's Responses API over a real cluster: two nodes, the demo model over both.
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/integration/api_cluster.h"

namespace strata {
namespace {

using ::strata::testing::HttpClient;
using ::strata::testing::HttpReply;
using Json = nlohmann::json;

class Responses : public testing::SharedApiCluster {
 protected:
  Json Body(const Json& more) const {
    Json body = {{"model", name_},
                 {"input", "The old captain"},
                 {"max_output_tokens", 16},
                 {"temperature", 0}};
    body.update(more);
    return body;
  }
  Json Create(const Json& more = Json::object()) {
    const HttpReply reply = Post(0, "/v1/responses", Body(more));
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body, nullptr, false);
  }
  Json ErrorOf(const Json& more, int status = 400) {
    const HttpReply reply = Post(0, "/v1/responses", Body(more));
    EXPECT_EQ(reply.status, status) << reply.body;
    const Json json = Json::parse(reply.body, nullptr, false);
    return json.is_object() ? json.value("error", Json()) : json;
  }
  HttpReply Delete(const std::string& path) {
    HttpClient client(ports_[0]);
    EXPECT_TRUE(client.Send(absl::StrCat("DELETE ", path, " HTTP/1.1\r\nHost: localhost\r\n\r\n")));
    return client.Read();
  }
};

std::string TextOf(const Json& response) {
  std::string text;
  for (const Json& item : response["output"]) {
    if (item["type"] != "message") continue;
    for (const Json& part : item["content"]) text += part["text"].get<std::string>();
  }
  return text;
}

const Json kTool = {{"type", "function"},
                    {"name", "get_weather"},
                    {"description", "The weather of a city"},
                    {"parameters",
                     {{"type", "object"},
                      {"properties", {{"city", {{"type", "string"}, {"enum", {"Rome", "Oslo"}}}}}},
                      {"required", {"city"}},
                      {"additionalProperties", false}}},
                    {"strict", true}};

TEST_F(Responses, AResponseHasTheTextOfAChat) {
  const HttpReply reply =
      Post(0, "/v1/chat/completions",
           {{"model", name_},
            {"messages", Json::array({{{"role", "user"}, {"content", "The old captain"}}})},
            {"max_tokens", 16},
            {"temperature", 0}});
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json chat = Json::parse(reply.body);
  const Json response = Create({{"metadata", {{"k", "v"}}}});
  ASSERT_TRUE(response.is_object() && response.contains("output")) << response;
  EXPECT_EQ(Json(TextOf(response)), chat["choices"][0]["message"]["content"]);
  EXPECT_EQ(response["object"], "response");
  EXPECT_EQ(response["model"], name_);
  EXPECT_EQ(response["status"], "incomplete");
  EXPECT_EQ(response["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(response["usage"]["output_tokens"], 16);
  EXPECT_EQ(response["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
  EXPECT_EQ(response["max_output_tokens"], 16);
  EXPECT_EQ(response["metadata"]["k"], "v");
  // The warm-up of some clients.
  EXPECT_EQ(Create({{"input", ""}, {"max_output_tokens", 1}})["usage"]["output_tokens"], 1);
}

TEST_F(Responses, AStreamHasItsEventsInOrder) {
  const Json whole = Create();
  const HttpReply reply = Post(1, "/v1/responses", Body({{"stream", true}}));
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_TRUE(absl::StrContains(reply.Header("content-type"), "text/event-stream"));
  std::vector<std::string> types;
  std::string text;
  Json last;
  for (absl::string_view part : absl::StrSplit(reply.body, "\n\n", absl::SkipEmpty())) {
    if (absl::StartsWith(part, ":")) continue;  // the stream is quiet
    const std::vector<absl::string_view> lines = absl::StrSplit(part, '\n');
    ASSERT_EQ(lines.size(), 2u) << part;
    last = Json::parse(absl::StripPrefix(lines[1], "data: "), nullptr, false);
    ASSERT_TRUE(last.is_object()) << part;
    EXPECT_EQ(last["sequence_number"], types.size());
    EXPECT_EQ(absl::StrCat("event: ", last["type"].get<std::string>()), lines[0]);
    types.push_back(last["type"]);
    if (types.back() == "response.output_text.delta") text += last["delta"].get<std::string>();
  }
  ASSERT_GT(types.size(), 10u);
  EXPECT_EQ(types[0], "response.created");
  EXPECT_EQ(types[1], "response.in_progress");
  EXPECT_EQ(types[2], "response.output_item.added");
  EXPECT_EQ(types[3], "response.content_part.added");
  for (size_t i = 4; i + 4 < types.size(); ++i) EXPECT_EQ(types[i], "response.output_text.delta");
  EXPECT_EQ(types[types.size() - 4], "response.output_text.done");
  EXPECT_EQ(types[types.size() - 3], "response.content_part.done");
  EXPECT_EQ(types[types.size() - 2], "response.output_item.done");
  EXPECT_EQ(types[types.size() - 1], "response.incomplete");
  EXPECT_EQ(text, TextOf(whole));
  EXPECT_EQ(TextOf(last["response"]), text);
  EXPECT_EQ(last["response"]["usage"]["output_tokens"], 16);
}

TEST_F(Responses, ACallIsAnsweredInTheNextTurn) {
  const Json first = Create({{"tools", Json::array({kTool})},
                             {"tool_choice", {{"type", "function"}, {"name", "get_weather"}}},
                             {"parallel_tool_calls", false},
                             {"max_output_tokens", 100}});
  ASSERT_EQ(first["status"], "completed") << first;
  ASSERT_EQ(first["output"].size(), 1u) << first;
  const Json& call = first["output"][0];
  EXPECT_EQ(call["type"], "function_call");
  EXPECT_EQ(call["name"], "get_weather");
  const Json arguments = Json::parse(call["arguments"].get<std::string>(), nullptr, false);
  EXPECT_TRUE(arguments["city"] == "Rome" || arguments["city"] == "Oslo") << call;

  const Json result = {
      {"type", "function_call_output"}, {"call_id", call["call_id"]}, {"output", "Rain"}};
  const Json second = Create({{"previous_response_id", first["id"]},
                              {"input", Json::array({result})},
                              {"tools", Json::array({kTool})}});
  ASSERT_TRUE(second.is_object() && second.contains("usage")) << second;
  EXPECT_EQ(second["previous_response_id"], first["id"]);
  EXPECT_GT(second["usage"]["input_tokens"], first["usage"]["input_tokens"]);

  // The same turn with the items written out.
  const Json spelled = Create(
      {{"input", Json::array({{{"role", "user"}, {"content", "The old captain"}}, call, result})},
       {"tools", Json::array({kTool})}});
  EXPECT_EQ(spelled["usage"]["input_tokens"], second["usage"]["input_tokens"]);
  EXPECT_EQ(spelled["output"][0]["content"], second["output"][0]["content"]);

  const HttpReply items = Get(
      0, absl::StrCat("/v1/responses/", second["id"].get<std::string>(), "/input_items?order=asc"));
  ASSERT_EQ(items.status, 200) << items.body;
  const Json list = Json::parse(items.body);
  ASSERT_EQ(list["data"].size(), 3u) << list;
  EXPECT_EQ(list["data"][0]["role"], "user");
  EXPECT_EQ(list["data"][1], call);
  EXPECT_EQ(list["data"][2]["output"], "Rain");
  EXPECT_EQ(list["has_more"], false);

  const HttpReply counted = Post(0, "/v1/responses/input_tokens",
                                 Body({{"previous_response_id", first["id"]},
                                       {"input", Json::array({result})},
                                       {"tools", Json::array({kTool})}}));
  ASSERT_EQ(counted.status, 200) << counted.body;
  EXPECT_EQ(Json::parse(counted.body)["input_tokens"], second["usage"]["input_tokens"]);
}

TEST_F(Responses, TheTextKeepsASchema) {
  const Json schema = {{"type", "object"},
                       {"properties", {{"age", {{"type", "integer"}, {"maximum", 99}}}}},
                       {"required", {"age"}},
                       {"additionalProperties", false}};
  const Json response = Create(
      {{"max_output_tokens", 60},
       {"text",
        {{"format",
          {{"type", "json_schema"}, {"name", "person"}, {"strict", true}, {"schema", schema}}}}}});
  ASSERT_EQ(response["status"], "completed") << response;
  const Json answer = Json::parse(TextOf(response), nullptr, false);
  ASSERT_TRUE(answer.is_object()) << response;
  EXPECT_TRUE(answer["age"].is_number_integer()) << response;
}

TEST_F(Responses, AStoredResponseIsReadUntilItIsDeleted) {
  const Json response = Create();
  const std::string path = absl::StrCat("/v1/responses/", response["id"].get<std::string>());
  const HttpReply read = Get(0, path);
  ASSERT_EQ(read.status, 200) << read.body;
  EXPECT_EQ(Json::parse(read.body), response);
  const HttpReply deleted = Delete(path);
  EXPECT_EQ(deleted.status, 200) << deleted.body;
  EXPECT_EQ(Json::parse(deleted.body)["deleted"], true);
  EXPECT_EQ(Get(0, path).status, 404);
  EXPECT_EQ(Delete(path).status, 404);
  const Json error = ErrorOf({{"previous_response_id", response["id"]}});
  EXPECT_EQ(error["code"], "previous_response_not_found");
  EXPECT_EQ(error["param"], "previous_response_id");

  const Json not_kept = Create({{"store", false}});
  EXPECT_EQ(not_kept["store"], false);
  EXPECT_EQ(Get(0, absl::StrCat("/v1/responses/", not_kept["id"].get<std::string>())).status, 404);
}

TEST_F(Responses, WrongInputIsNamed) {
  EXPECT_EQ(ErrorOf({{"input", Json::array({{{"role", "user"}}})}})["param"], "input[0].content");
  EXPECT_EQ(ErrorOf({{"background", true}})["param"], "background");
  EXPECT_EQ(ErrorOf({{"tools", Json::array({{{"type", "file_search"}}})}})["param"],
            "tools[0].type");
  EXPECT_EQ(ErrorOf({{"model", "another"}}, 404)["code"], "model_not_found");
  const std::string words(40'000, 'x');
  const Json too_long = ErrorOf({{"input", words}});
  EXPECT_EQ(too_long["code"], "context_length_exceeded") << too_long;
  const HttpReply cut = [this] {
    HttpClient client(ports_[0]);
    EXPECT_TRUE(client.Post("/v1/responses", R"({"input":)"));
    return client.Read();
  }();
  EXPECT_EQ(cut.status, 400) << cut.body;
}

}  // namespace
}  // namespace strata
