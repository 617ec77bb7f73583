// The HTTP API over a real cluster: two nodes, the demo model over both, clients at either.
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/integration/api_cluster.h"
#include "tests/support/http_client.h"

namespace strata {
namespace {

using ::strata::testing::EventsOf;
using ::strata::testing::HttpClient;
using ::strata::testing::HttpReply;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Json = nlohmann::json;

using Api = testing::SharedApiCluster;

TEST_F(Api, EveryNodeWritesWhatTheProgramWrites) {
  const Json run = Run(0, {"run", name_, "The old captain", "--max-tokens", "24", "--temperature",
                           "0.4", "--seed", "7", "--json"});
  ASSERT_TRUE(run.is_object()) << run;
  const std::string expected = run["text"];
  for (size_t node : {0, 1}) {
    const Json whole = Completion(node, Ask());
    EXPECT_EQ(whole["choices"][0]["text"], expected);
    EXPECT_EQ(whole["choices"][0]["finish_reason"], "length");
    EXPECT_EQ(whole["usage"]["completion_tokens"], 24);
    EXPECT_EQ(whole["usage"]["prompt_tokens"], run["prompt"]["tokens"].size());
    EXPECT_EQ(whole["model"], name_);

    const HttpReply stream =
        Post(node, "/v1/completions",
             Ask({{"stream", true}, {"stream_options", {{"include_usage", true}}}}));
    EXPECT_EQ(stream.status, 200);
    EXPECT_THAT(stream.Header("content-type"), HasSubstr("text/event-stream"));
    const std::vector<Json> events = EventsOf(stream.body);
    ASSERT_GT(events.size(), 10u);
    std::string text;
    for (size_t i = 0; i + 1 < events.size(); ++i) {
      text += events[i]["choices"][0]["text"].get<std::string>();
    }
    EXPECT_EQ(text, expected);
    EXPECT_EQ(events[events.size() - 2]["choices"][0]["finish_reason"], "length");
    EXPECT_EQ(events.back()["usage"]["completion_tokens"], 24);
  }
}

TEST_F(Api, TakesWhatClientsOfOtherServersSend) {
  for (const char* path : {"/models", "/v1/models/strata-demo.gguf", "/models/STRATA%20DEMO"}) {
    EXPECT_EQ(Get(0, path).status, 200) << path;
  }
  EXPECT_EQ(Post(1, "/completions", Ask()).status, 200);
  EXPECT_EQ(Post(1, "/v1/completions", Ask({{"model", "gpt-4o"}})).status, 404);

  Json ask = {{"model", name_},
              {"messages", {{{"role", "user"}, {"content", "The old captain"}}}},
              {"functions", {{{"name", "f"}}}},
              {"function_call", {{"name", "f"}}},
              {"max_tokens", 200},
              {"temperature", 0}};
  const HttpReply reply = Post(0, "/chat/completions", ask);
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json whole = Json::parse(reply.body);
  EXPECT_EQ(whole["choices"][0]["message"]["function_call"]["name"], "f") << whole;
  EXPECT_NE(whole["system_fingerprint"], "");
  EXPECT_GT(whole["timings"]["predicted_n"], 0);

  ask["stream"] = true;
  ask["stream_options"] = {{"include_usage", true}, {"continuous_usage_stats", true}};
  const std::vector<Json> events = EventsOf(Post(1, "/v1/chat/completions", ask).body);
  std::string name;
  int tokens = -1;
  for (const Json& event : events) {
    EXPECT_GE(event["usage"]["completion_tokens"], tokens);
    tokens = event["usage"]["completion_tokens"];
    if (event["choices"].empty()) continue;
    const Json call = event["choices"][0]["delta"].value("function_call", Json::object());
    name += call.value("name", "");
  }
  EXPECT_EQ(name, "f");
  EXPECT_GT(tokens, 0);
}

TEST_F(Api, AChatGoesThroughTheModelsTemplate) {
  const Json ask = {{"model", name_},
                    {"messages", {{{"role", "user"}, {"content", "The old captain"}}}},
                    {"max_tokens", 8},
                    {"temperature", 0}};
  // The demo model's template puts a blank line behind each message.
  const Json plain = Completion(
      0, Ask({{"prompt", "The old captain\n\n"}, {"max_tokens", 8}, {"temperature", 0}}));
  for (size_t node : {0, 1}) {
    const HttpReply reply = Post(node, "/v1/chat/completions", ask);
    ASSERT_EQ(reply.status, 200) << reply.body;
    const Json chat = Json::parse(reply.body);
    EXPECT_EQ(chat["object"], "chat.completion");
    EXPECT_EQ(chat["choices"][0]["message"]["role"], "assistant");
    EXPECT_EQ(chat["choices"][0]["message"]["content"], plain["choices"][0]["text"]);
    EXPECT_EQ(chat["usage"]["prompt_tokens"], plain["usage"]["prompt_tokens"]);
  }
  Json streamed = ask;
  streamed["stream"] = true;
  const std::vector<Json> events = EventsOf(Post(1, "/v1/chat/completions", streamed).body);
  EXPECT_EQ(events[0]["choices"][0]["delta"]["role"], "assistant");
  std::string text;
  for (const Json& event : events) text += event["choices"][0]["delta"].value("content", "");
  EXPECT_EQ(Json(text), plain["choices"][0]["text"]);
}

TEST_F(Api, AStopStringEndsTheGenerationAndFreesItsSlot) {
  const std::string text = Completion(0, Ask({{"max_tokens", 64}}))["choices"][0]["text"];
  ASSERT_GT(text.size(), 40u);
  const std::string stop = text.substr(20, 7);
  const size_t at = text.find(stop);
  const double cancelled = Metric("strata_requests_cancelled_total");
  for (size_t node : {0, 1}) {
    const Json stopped = Completion(
        node, Ask({{"max_tokens", 1900}, {"ignore_eos", true}, {"stop", {stop, "\x01never"}}}));
    EXPECT_EQ(stopped["choices"][0]["text"], text.substr(0, at));
    EXPECT_EQ(stopped["choices"][0]["finish_reason"], "stop");
    EXPECT_LT(stopped["usage"]["completion_tokens"], 64);
  }
  EXPECT_TRUE(Eventually([this] { return Metric("strata_requests_running") == 0; }));
  EXPECT_EQ(Metric("strata_requests_cancelled_total"), cancelled);  // complete, at either node
}

TEST_F(Api, AClientThatGoesEndsItsRequest) {
  for (size_t node : {0, 1}) {
    const double before = Metric("strata_requests_cancelled_total");
    {
      HttpClient client(ports_[node]);
      client.Post("/v1/completions",
                  Ask({{"stream", true}, {"max_tokens", 2000}, {"ignore_eos", true}}).dump());
      EXPECT_EQ(client.ReadHead().status, 200);
      EXPECT_THAT(client.ReadChunk(), HasSubstr("data: "));
    }
    EXPECT_TRUE(Eventually([&] {
      return Metric("strata_requests_running") == 0 &&
             Metric("strata_requests_cancelled_total") == before + 1;
    }));
  }
}

// Rounding in a batch may make each stream differ from what it is alone, so they are not compared
// here.
TEST_F(Api, SixteenStreamsAtATimeAreComplete) {
  std::vector<HttpReply> replies(16);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < replies.size(); ++i) {
    threads.emplace_back([this, i, &replies] {
      replies[i] = Post(i % 2, "/v1/completions",
                        Ask({{"stream", true},
                             {"stream_options", {{"include_usage", true}}},
                             {"ignore_eos", true},
                             {"seed", i},
                             {"prompt", absl::StrCat("Chapter ", i)}}));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const HttpReply& reply : replies) {
    ASSERT_EQ(reply.status, 200);
    const std::vector<Json> events = EventsOf(reply.body);
    ASSERT_GT(events.size(), 2u);
    EXPECT_EQ(events[events.size() - 2]["choices"][0]["finish_reason"], "length");
    EXPECT_EQ(events.back()["usage"]["completion_tokens"], 24);
  }
}

TEST_F(Api, SeveralChoicesInOneResponse) {
  const Json both = Completion(
      1,
      Ask({{"n", 2}, {"prompt", {"The old captain", "One"}}, {"logprobs", 2}, {"max_tokens", 6}}));
  ASSERT_THAT(both["choices"], SizeIs(4));
  EXPECT_EQ(both["choices"][0]["text"],
            Completion(0, Ask({{"max_tokens", 6}}))["choices"][0]["text"]);
  EXPECT_EQ(both["choices"][1]["text"],
            Completion(0, Ask({{"max_tokens", 6}, {"seed", 8}}))["choices"][0]["text"]);
  EXPECT_EQ(both["usage"]["completion_tokens"], 24);
  const Json& logprobs = both["choices"][3]["logprobs"];
  EXPECT_THAT(logprobs["tokens"], SizeIs(6));
  EXPECT_LE(logprobs["token_logprobs"][0].get<double>(), 0.0);
  for (size_t i = 0; i < 6; ++i) {  // the two likeliest, and the one that was taken
    const Json& top = logprobs["top_logprobs"][i];
    EXPECT_THAT(top, ::testing::AnyOf(SizeIs(2), SizeIs(3)));
    EXPECT_EQ(top[logprobs["tokens"][i].get<std::string>()], logprobs["token_logprobs"][i]);
  }
}

TEST_F(Api, PromptAndAnswerNeverHaveMoreTokensThanTheContext) {
  const std::vector<int32_t> prompt(2040, 300);
  for (const Json& more : {Json::object({{"max_tokens", -1}}), Json::object({{"max_tokens", 5000}}),
                           Json::object({{"max_tokens", 8}}),
                           Json::object({{"n", 2}, {"n_predict", -1}, {"max_tokens", nullptr}})}) {
    Json ask = Ask({{"prompt", prompt}, {"ignore_eos", true}});
    ask.update(more);
    const Json full = Completion(0, ask);
    for (const Json& choice : full["choices"]) EXPECT_EQ(choice["finish_reason"], "length");
    EXPECT_EQ(full["usage"]["prompt_tokens"], 2040);
    EXPECT_EQ(full["usage"]["completion_tokens"], 8 * full["choices"].size());
  }
  const Json none = Completion(1, Ask({{"max_tokens", 0}, {"echo", true}}));
  EXPECT_EQ(none["choices"][0]["text"], "The old captain");
  EXPECT_EQ(none["usage"]["completion_tokens"], 0);
  const HttpReply full =
      Post(0, "/v1/completions", Ask({{"prompt", std::vector<int32_t>(2048, 300)}}));
  EXPECT_EQ(full.status, 400);
  EXPECT_THAT(full.body, HasSubstr("maximum context length is 2048"));
}

TEST_F(Api, KeepsWhatOtherServersTakeAndRefusesTheRest) {
  const Json chosen = Completion(0, Ask({{"guided_choice", {"a\nb", "cc"}}, {"temperature", 1}}));
  EXPECT_THAT(chosen["choices"][0]["text"].get<std::string>(), ::testing::AnyOf("a\nb", "cc"));
  EXPECT_EQ(chosen["choices"][0]["finish_reason"], "stop");
  const Json json = Completion(1, Ask({{"json_schema", {{"const", "42"}}}}));
  EXPECT_EQ(json["choices"][0]["text"], "\"42\"");
  // The third token that it writes, and then the same request with that as its stop string.
  const Json tokens = Completion(0, Ask({{"max_tokens", 3}, {"temperature", 0}, {"logprobs", 0}}));
  const std::string third = tokens["choices"][0]["logprobs"]["tokens"][2];
  const Json shown = Completion(
      1, Ask({{"temperature", 0}, {"stop", third}, {"include_stop_str_in_output", true}}));
  EXPECT_TRUE(absl::EndsWith(shown["choices"][0]["text"].get<std::string>(), third));
  EXPECT_EQ(shown["choices"][0]["stop_reason"], third);
  const HttpReply refused = Post(0, "/v1/completions", Ask({{"allowed_token_ids", {1}}}));
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(Json::parse(refused.body)["error"]["param"], "allowed_token_ids");
  // More than the context has room for, of which the end is taken.
  std::string words;
  for (int i = 0; i < 3000; ++i) words += "captain ";
  const Json cut = Completion(1, Ask({{"prompt", words},
                                      {"max_tokens", 1},
                                      {"truncate_prompt_tokens", 7},
                                      {"return_token_ids", true},
                                      {"prompt_logprobs", 1}}));
  EXPECT_EQ(cut["usage"]["prompt_tokens"], 7);
  EXPECT_EQ(cut["choices"][0]["prompt_token_ids"].size(), 7u);
  EXPECT_EQ(cut["choices"][0]["token_ids"].size(), 1u);
  const Json& scores = cut["choices"][0]["prompt_logprobs"];
  ASSERT_EQ(scores.size(), 7u);
  EXPECT_TRUE(scores[0].is_null());
  EXPECT_LT(scores[6].begin().value()["logprob"], 0);
  EXPECT_EQ(Post(1, "/v1/completions", Ask({{"stop_token_ids", {99999999}}})).status, 400);
  HttpClient client(ports_[0]);
  EXPECT_TRUE(
      client.Send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                  "Content-Encoding: br\r\nContent-Length: 2\r\n\r\n{}"));
  const HttpReply coded = client.Read();
  EXPECT_EQ(coded.status, 415);
  EXPECT_EQ(coded.Header("accept-encoding"), "gzip, deflate, zstd");
}

TEST_F(Api, AnAnswerMeetsItsSchema) {
  const Json schema = {
      {"type", "object"},
      {"properties",
       {{"age", {{"type", "integer"}, {"minimum", 0}, {"maximum", 150}}},
        {"color", {{"enum", {"red", "blue"}}}},
        {"name", {{"type", "string"}, {"maxLength", 12}}},
        {"tags",
         {{"type", "array"}, {"items", {{"type", "string"}, {"maxLength", 5}}}, {"maxItems", 3}}}}},
      {"required", {"age", "color", "name", "tags"}},
      {"additionalProperties", false}};
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    Json ask = {{"model", name_},
                {"messages", {{{"role", "user"}, {"content", "Who is it?"}}}},
                {"max_tokens", 400},
                {"seed", seed},
                {"response_format",
                 {{"type", "json_schema"},
                  {"json_schema", {{"name", "who"}, {"strict", true}, {"schema", schema}}}}}};
    const HttpReply reply = Post(seed % 2, "/v1/chat/completions", ask);
    ASSERT_EQ(reply.status, 200) << reply.body;
    const Json choice = Json::parse(reply.body)["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "stop") << "seed " << seed;
    const Json answer =
        Json::parse(choice["message"]["content"].get<std::string>(), nullptr, false);
    ASSERT_TRUE(answer.is_object()) << "seed " << seed << ": " << choice;
    EXPECT_THAT(answer, SizeIs(4));
    EXPECT_LE(answer["age"].get<int>(), 150);
    EXPECT_TRUE(answer["color"] == "red" || answer["color"] == "blue");
    EXPECT_TRUE(answer["name"].is_string());
    EXPECT_LE(answer["tags"].size(), 3u);
  }
  const Json cut =
      Completion(0, Ask({{"max_tokens", 3}, {"response_format", {{"type", "json_object"}}}}));
  EXPECT_EQ(cut["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(cut["choices"][0]["text"].get<std::string>()[0], '{');
  const Json letters = Completion(1, Ask({{"grammar", "root ::= [xyz]{5}"}}));
  EXPECT_THAT(letters["choices"][0]["text"].get<std::string>(), ::testing::MatchesRegex("[xyz]+"));
  const Json echoed = Completion(1, Ask({{"echo", true}, {"best_of", 3}, {"max_tokens", 4}}));
  ASSERT_THAT(echoed["choices"], SizeIs(1));
  EXPECT_TRUE(absl::StartsWith(echoed["choices"][0]["text"].get<std::string>(), "The old captain"));
}

// What users of others miss: tool calling that works, exo #2165.
TEST_F(Api, ToolsAreCalledInOpenAisForm) {
  const Json tool = {
      {"type", "function"},
      {"function",
       {{"name", "move"},
        {"parameters",
         {{"type", "object"},
          {"properties", {{"steps", {{"type", "integer"}, {"minimum", 1}, {"maximum", 99}}}}},
          {"required", {"steps"}}}}}}};
  Json ask = {{"model", name_},
              {"messages", {{{"role", "user"}, {"content", "Go."}}}},
              {"max_tokens", 300},
              {"seed", 3},
              {"tools", {tool}},
              {"tool_choice", {{"type", "function"}, {"function", {{"name", "move"}}}}}};
  for (size_t node : {0, 1}) {
    const HttpReply reply = Post(node, "/v1/chat/completions", ask);
    ASSERT_EQ(reply.status, 200) << reply.body;
    const Json choice = Json::parse(reply.body)["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "tool_calls");
    EXPECT_TRUE(choice["message"]["content"].is_null());
    ASSERT_THAT(choice["message"]["tool_calls"], SizeIs(1)) << choice;
    const Json& call = choice["message"]["tool_calls"][0];
    EXPECT_EQ(call["type"], "function");
    EXPECT_EQ(call["function"]["name"], "move");
    const Json arguments = Json::parse(call["function"]["arguments"].get<std::string>());
    EXPECT_LE(arguments["steps"].get<int>(), 99);
  }
  ask["stream"] = true;
  const std::vector<Json> events = EventsOf(Post(1, "/v1/chat/completions", ask).body);
  std::string name, arguments, reason;
  size_t pieces = 0;
  for (const Json& event : events) {
    const Json& choice = event["choices"][0];
    EXPECT_EQ(choice["delta"].value("content", ""), "");
    if (choice["finish_reason"].is_string()) reason = choice["finish_reason"];
    if (!choice["delta"].contains("tool_calls")) continue;
    const Json& call = choice["delta"]["tool_calls"][0];
    EXPECT_EQ(call["index"], 0);
    EXPECT_EQ(call.contains("id"), pieces == 0);
    if (call["function"].contains("name")) name += call["function"]["name"].get<std::string>();
    arguments += call["function"]["arguments"].get<std::string>();
    ++pieces;
  }
  EXPECT_EQ(name, "move");
  EXPECT_GT(pieces, 1u);
  EXPECT_EQ(reason, "tool_calls");
  EXPECT_TRUE(Json::parse(arguments, nullptr, false).contains("steps")) << arguments;
}

TEST_F(Api, EmbeddingsAreTheSameThroughEveryNode) {
  const auto length = [](const Json& vector) {
    double squares = 0;
    for (const double value : vector) squares += value * value;
    return std::sqrt(squares);
  };
  const Json inputs = {"The old captain", "The sea", "The old captain"};
  Json first;
  for (const size_t node : {0, 1}) {
    const HttpReply reply = Post(node, "/v1/embeddings", {{"model", name_}, {"input", inputs}});
    ASSERT_EQ(reply.status, 200) << reply.body;
    const Json json = Json::parse(reply.body);
    ASSERT_EQ(json["data"].size(), 3u);
    EXPECT_GT(json["usage"]["prompt_tokens"], 5);
    for (size_t i = 0; i < 3; ++i) {
      const Json& vector = json["data"][i]["embedding"];
      EXPECT_NEAR(length(vector), 1, 1e-5);
      double product = 0;
      for (size_t k = 0; k < vector.size(); ++k) {
        product += vector[k].get<double>() * json["data"][0]["embedding"][k].get<double>();
      }
      EXPECT_EQ(product > 0.999, i != 1) << product;
    }
  }
  const Json cut =
      Json::parse(Post(0, "/v1/embeddings", {{"input", "The sea"}, {"dimensions", 4}}).body);
  ASSERT_EQ(cut["data"][0]["embedding"].size(), 4u);
  EXPECT_NEAR(length(cut["data"][0]["embedding"]), 1, 1e-5);
  const Json printed = Run(1, {"run", name_, "--embed", "The sea", "--json"});
  ASSERT_TRUE(printed.is_object()) << printed;
  EXPECT_NEAR(length(printed["embedding"]), 1, 1e-5);
  EXPECT_FALSE(printed["prompt_tokens"].empty());
  const HttpReply much = Post(0, "/v1/embeddings", {{"input", "x"}, {"dimensions", 99999}});
  EXPECT_EQ(much.status, 400) << much.body;
  EXPECT_THAT(much.body, HasSubstr("dimensions"));
  std::string words;
  for (int i = 0; i < 4000; ++i) words += "word ";
  const HttpReply too_long = Post(1, "/v1/embeddings", {{"input", {"x", words}}});
  EXPECT_EQ(too_long.status, 400) << too_long.body;
}

TEST_F(Api, AnEchoHasThePromptsLogprobs) {
  const Json tokens = Json::parse(
      Post(0, "/tokenize", {{"content", "The old captain"}, {"add_special", true}}).body)["tokens"];
  ASSERT_GT(tokens.size(), 2u);
  const auto echo = [&](size_t node, const Json& prompt, int tokens_max) {
    const Json json = Completion(node, {{"prompt", prompt},
                                        {"echo", true},
                                        {"logprobs", 2},
                                        {"max_tokens", tokens_max},
                                        {"temperature", 0}});
    const Json choice = json["choices"][0];
    const Json& logprobs = choice["logprobs"];
    std::string text;
    for (const Json& piece : logprobs["tokens"]) text += piece.get<std::string>();
    EXPECT_EQ(choice["text"], text);
    EXPECT_EQ(json["usage"]["completion_tokens"], tokens_max);
    EXPECT_EQ(logprobs["tokens"].size(), tokens.size() + static_cast<size_t>(tokens_max));
    for (const char* name : {"token_logprobs", "top_logprobs", "text_offset"}) {
      EXPECT_EQ(logprobs[name].size(), logprobs["tokens"].size()) << name;
    }
    EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
    EXPECT_EQ(logprobs["text_offset"][0], 0);
    return choice;
  };
  const Json alone = echo(0, "The old captain", 0);
  EXPECT_EQ(alone["text"], "The old captain");
  EXPECT_EQ(alone["finish_reason"], "length");
  const Json more = echo(1, "The old captain", 3);
  const Json of_tokens = echo(0, tokens, 1);
  EXPECT_THAT(of_tokens["text"].get<std::string>(), HasSubstr("The old captain"));
  for (size_t i = 1; i < tokens.size(); ++i) {
    const double logprob = alone["logprobs"]["token_logprobs"][i];
    EXPECT_NEAR(more["logprobs"]["token_logprobs"][i].get<double>(), logprob, 1e-3);
    EXPECT_NEAR(of_tokens["logprobs"]["token_logprobs"][i].get<double>(), logprob, 1e-3);
    // As if it were generated.
    const Json before(tokens.begin(), tokens.begin() + static_cast<Json::difference_type>(i));
    const Json bias = {{absl::StrCat(tokens[i].get<int>()), 100}};
    const Json next = Completion(
        1, {{"prompt", before}, {"max_tokens", 1}, {"logprobs", 0}, {"logit_bias", bias}});
    EXPECT_NEAR(next["choices"][0]["logprobs"]["token_logprobs"][0].get<double>(), logprob, 1e-2);
  }
}

TEST_F(Api, RanksDocumentsAlikeThroughEveryNode) {
  const Json ask = {{"model", name_},
                    {"query", "Who sails?"},
                    {"documents", {"The old captain", "The sea", "The old captain"}}};
  for (const size_t node : {0, 1}) {
    const HttpReply reply = Post(node, "/v1/rerank", ask);
    ASSERT_EQ(reply.status, 200) << reply.body;
    const Json json = Json::parse(reply.body);
    EXPECT_EQ(json["model"], name_);
    EXPECT_GT(json["usage"]["prompt_tokens"], 30);
    ASSERT_EQ(json["results"].size(), 3u);
    std::vector<double> scores(3);
    double last = 1;
    for (const Json& result : json["results"]) {
      const double score = result["relevance_score"];
      EXPECT_LE(score, last);
      EXPECT_GT(score, 0);
      scores[result["index"].get<size_t>()] = last = score;
    }
    EXPECT_NEAR(scores[0], scores[2], 0.02);  // their rows were computed beside others
    // The chat's next token has the same probabilities.
    Json chat = {{"model", name_},
                 {"messages",
                  {{{"role", "system"},
                    {"content",
                     "Judge whether the Document meets the requirements based on the Query and the "
                     "Instruct provided. Note that the answer can only be \"yes\" or \"no\"."}},
                   {{"role", "user"},
                    {"content",
                     "<Instruct>: Given a web search query, retrieve relevant passages that answer "
                     "the query\n<Query>: Who sails?\n<Document>: The old captain"}}}},
                 {"max_tokens", 1},
                 {"logprobs", true},
                 {"logit_bias", Json::object()}};
    std::vector<double> logprobs;
    for (const char* word : {"yes", "no"}) {
      const Json tokens =
          Json::parse(Post(node, "/tokenize", {{"content", word}, {"add_special", false}}).body);
      chat["logit_bias"] = {{absl::StrCat(tokens["tokens"][0].get<int>()), 100}};
      const Json answer = Json::parse(Post(node, "/v1/chat/completions", chat).body);
      logprobs.push_back(answer["choices"][0]["logprobs"]["content"][0]["logprob"]);
    }
    EXPECT_NEAR(scores[0], 1 / (1 + std::exp(logprobs[1] - logprobs[0])), 0.02);
  }
  EXPECT_EQ(Post(0, "/rerank", {{"query", "q"}, {"texts", {"a"}}}).status, 200);
  const HttpReply wrong = Post(0, "/reranking", {{"query", "q"}});
  EXPECT_EQ(wrong.status, 400);
  EXPECT_THAT(wrong.body, HasSubstr("documents"));
}

TEST_F(Api, ErrorsComeInTheApisForm) {
  const auto error = [this](const Json& body, int status) {
    const HttpReply reply = Post(1, "/v1/completions", body);
    EXPECT_EQ(reply.status, status) << reply.body;
    return Json::parse(reply.body, nullptr, false)["error"];
  };
  EXPECT_EQ(error(Ask({{"model", "gpt-4"}}), 404)["code"], "model_not_found");
  EXPECT_EQ(error(Ask({{"temperature", "hot"}}), 400)["param"], "temperature");
  EXPECT_EQ(error(Ask({{"logit_bias", {{"99999999", 1}}}}), 400)["param"], "logit_bias");
  const Json prompt = error(Ask({{"prompt", std::string(200'000, 'a')}, {"stream", true}}), 400);
  EXPECT_THAT(prompt["message"], HasSubstr("context"));
  EXPECT_EQ(prompt["code"], "context_length_exceeded");
  const Json schema = {
      {"type", "json_schema"},
      {"json_schema",
       {{"name", "n"}, {"schema", {{"type", "array"}, {"minItems", 2}, {"maxItems", 1}}}}}};
  EXPECT_EQ(error(Ask({{"response_format", schema}}), 400)["param"],
            "response_format.json_schema.schema.minItems");
  EXPECT_EQ(error(Ask({{"grammar", "root ::= \"x\" root \"y\" | \"x\" root \"z\" | \"q\""}}),
                  400)["param"],
            "grammar");
  EXPECT_EQ(Post(0, "/v1/completions", "no object").status, 400);
  EXPECT_EQ(Get(0, "/v1/completions").status, 405);
  EXPECT_EQ(Get(0, "/v2").status, 404);
  HttpClient page(ports_[0]);
  page.Send("GET /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\r\n");
  EXPECT_EQ(page.Read().status, 403);
  page.Send("GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n");
  EXPECT_EQ(page.Read().status, 403);

  Renew();
  EXPECT_TRUE(Run(0, {"unload", "--json"}).is_object());
  EXPECT_EQ(error(Ask(), 404)["code"], "model_not_found");
  EXPECT_THAT(Json::parse(Get(1, "/v1/models").body)["data"], SizeIs(0));
}

TEST_F(Api, ListsItsModelsAndSaysThatItIsWell) {
  for (size_t node : {0, 1}) {
    const Json models = Json::parse(Get(node, "/v1/models").body, nullptr, false);
    ASSERT_THAT(models["data"], SizeIs(1));
    EXPECT_EQ(models["data"][0]["id"], name_);
    EXPECT_EQ(
        Get(node, absl::StrCat("/v1/models/", absl::StrReplaceAll(name_, {{" ", "%20"}}))).status,
        200);
    EXPECT_EQ(Get(node, "/v1/models/other").status, 404);
    EXPECT_EQ(Json::parse(Get(node, "/health").body)["status"], "ok");
    EXPECT_THAT(Get(node, "/metrics").body, HasSubstr("strata_http_connections "));
  }
}

}  // namespace
}  // namespace strata
