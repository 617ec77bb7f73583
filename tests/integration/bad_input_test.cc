// Bad input under load: while both nodes stream, other clients send requests that are wrong, too
// large, too slow or too many. Each gets an error in the API's form, or is closed at a bound of
// node/http/http_server.h, and the streams are what they are without all that.
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "node/http/http_server.h"
#include "tests/integration/api_cluster.h"
#include "tests/support/http_client.h"

namespace strata {
namespace {

using ::strata::testing::ApiCluster;
using ::strata::testing::EventsOf;
using ::strata::testing::HttpClient;
using ::strata::testing::HttpReply;
using ::testing::Ge;
using Json = nlohmann::json;

constexpr size_t kStreams = 6;
constexpr uint32_t kStreamTokens = 100;
constexpr int kBiasedToken = 300;  // from here on, tokens that are pieces of words

// An error as OpenAI writes it, about `status`.
void ExpectError(const HttpReply& reply, int status, absl::string_view what) {
  SCOPED_TRACE(what);
  EXPECT_EQ(reply.status, status) << reply.body;
  const Json json = Json::parse(reply.body, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(json.is_object() && json.contains("error")) << reply.body;
  const Json& error = json["error"];
  EXPECT_TRUE(error["message"].is_string() && error["message"] != "") << error;
  EXPECT_TRUE(error["type"].is_string()) << error;
  EXPECT_TRUE(error.contains("param") && error.contains("code")) << error;
}

std::string PostOf(absl::string_view path, absl::string_view body) {
  return absl::StrCat("POST ", path,
                      " HTTP/1.1\r\nHost: localhost\r\nContent-Length: ", body.size(), "\r\n\r\n",
                      body);
}

// Returns how many connections this process may have to each of two nodes, at most `wanted`.
size_t AllowConnections(size_t wanted) {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 2 * wanted + 1024);
  setrlimit(RLIMIT_NOFILE, &limit);
  return std::min<size_t>(wanted, (limit.rlim_cur - 256) / 2);
}

// With one sequence at a time, a model's output is the same to the last bit. With many, it depends
// on the rounding of the steps that they share, so each request is biased to a token of its own.
class BadInput : public ApiCluster, public ::testing::WithParamInterface<uint32_t> {
 protected:
  struct Expectation {
    Json ask;
    std::string text;  // undisturbed
  };

  uint32_t seqs() const override { return GetParam(); }

  Expectation ExpectationOf(size_t i) {
    Json ask = Ask({{"ignore_eos", true},
                    {"logprobs", 0},
                    {"max_tokens", kStreamTokens},
                    {"seed", i},
                    {"stream", true},
                    {"stream_options", {{"include_usage", true}}}});
    if (seqs() > 1) {
      const size_t token = kBiasedToken + i;
      ask["logit_bias"] = {{absl::StrCat(token), 100}};
      ask["temperature"] = 0;
    }
    return {.ask = ask, .text = Stream(0, ask)};
  }

  // The text of a stream; checks that it is complete and that each piece is at its `text_offset`.
  std::string Stream(size_t node, const Json& ask) {
    const HttpReply reply = Post(node, "/v1/completions", ask);
    EXPECT_EQ(reply.status, 200) << reply.body;
    const std::vector<Json> events = EventsOf(reply.body);
    EXPECT_GT(events.size(), 2u);
    if (events.size() <= 2) return "";
    std::string text;
    for (size_t i = 0; i + 1 < events.size(); ++i) {
      const Json& choice = events[i]["choices"][0];
      const Json& offsets = choice["logprobs"]["text_offset"];
      if (!offsets.empty()) {
        EXPECT_EQ(offsets[0], text.size());
      }
      text += choice["text"].get<std::string>();
    }
    EXPECT_EQ(events[events.size() - 2]["choices"][0]["finish_reason"], "length");
    EXPECT_EQ(events.back()["usage"]["completion_tokens"], kStreamTokens);
    return text;
  }

  void WrongRequests(size_t node);
  void WrongHttp(size_t node);
  void PipelinedAndHalfClosed(size_t node);
  void Flood(size_t node, size_t connections);
};

// Valid HTTP with wrong requests.
void BadInput::WrongRequests(size_t node) {
  const auto refused = [this, node](absl::string_view body, int status, absl::string_view what) {
    for (const char* path : {"/v1/completions", "/v1/chat/completions"}) {
      HttpClient client(ports_[node]);
      client.Send(PostOf(path, body));
      ExpectError(client.Read(), status, absl::StrCat(path, ": ", what));
    }
  };
  refused("", 400, "no body");
  refused("{\"model\": ", 400, "half of a JSON");
  refused("[1, 2]", 400, "no object");
  refused("{\"prompt\": \"\xff\xfe\"}", 400, "no UTF-8");
  refused("{\"prompt\": \"\\ud8\"}", 400, "half of an escape");
  refused(std::string(100'000, '['), 400, "deep JSON");
  refused("{\"prompt\":7,\"messages\":7}", 400, "numbers for strings");
  refused("{\"prompt\":{},\"messages\":[{\"role\":\"user\",\"content\":{}}]}", 400, "objects");
  refused("{\"prompt\":\"a\",\"messages\":[{\"role\":\"pirate\",\"content\":\"a\"}],\"n\":-1}", 400,
          "a role");
  for (const auto& [key, value] :
       {std::pair<const char*, Json>{"temperature", "hot"},
        {"max_tokens", "many"},
        {"n", 1e9},
        {"stop", Json::array({1})},
        {"stream", "yes"},
        {"seed", "x"},
        {"logit_bias", {{"x", 1}}},
        {"top_p", 7},
        {"stream_options", 1},
        // A schema that nothing meets, and one that is none.
        {"response_format",
         {{"type", "json_schema"},
          {"json_schema",
           {{"name", "never"},
            {"schema", {{"type", "string"}, {"minLength", 5}, {"maxLength", 2}}}}}}},
        {"response_format", {{"type", "json_schema"}, {"json_schema", 5}}}}) {
    Json ask = Ask({{key, value}});
    ask["messages"] = {{{"role", "user"}, {"content", "a"}}};
    refused(ask.dump(), 400, absl::StrCat(key, "=", value.dump()));
  }
  Json ask = Ask({{"model", "gpt-4"}});
  ask["messages"] = {{{"role", "user"}, {"content", "a"}}};
  refused(ask.dump(), 404, "a model that is not there");
  for (const size_t words : {3'000, 1'000'000}) {  // refused by its tokens, or by its bytes
    std::string text;
    for (size_t i = 0; i < words; ++i) text += "sea ";
    Json long_ask = Ask({{"prompt", text}, {"stream", true}});
    long_ask["messages"] = {{{"role", "user"}, {"content", text}}};
    refused(long_ask.dump(), 400, "longer than the context");
  }
  std::string most;  // by its bytes it might fit
  while (most.size() < 512 * 1000) most += "sea ";
  refused(Ask({{"prompt", most}, {"n", 64}}).dump(), 400, "many times the prompt");
}

// Bytes that are no HTTP, or too many of them.
void BadInput::WrongHttp(size_t node) {
  const std::string chunked =
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n";
  for (const auto& [bytes, status] : std::vector<std::pair<std::string, int>>{
           {"\x16\x03\x01\x02\r\n\r\n", 400},
           {"GET /v1/models\r\n\r\n", 400},
           {absl::StrCat("GET / HTTP/1.1\r\nA: ", std::string(20'000, 'a')), 431},
           {absl::StrCat(chunked, "\r\nzz\r\n"), 400},
           {absl::StrCat(chunked, "\r\n-1\r\n"), 400},
           {absl::StrCat(chunked, "\r\n3\r\nabcdef\r\n0\r\n\r\n"), 400},
           {absl::StrCat(chunked, "\r\nfffffffffffffffff\r\n"), 400},
           {absl::StrCat(chunked, "Content-Length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n"), 400},
           {"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n{",
            413},
       }) {
    HttpClient client(ports_[node]);
    client.Send(bytes);
    ExpectError(client.Read(), status, bytes.substr(0, 100));
    EXPECT_EQ(client.ReadToEnd(), "");
  }
  HttpClient endless(ports_[node]);
  endless.Send(chunked + "\r\n");
  const std::string mib(1024 * 1024, '1');
  for (int i = 0; i < 20 && endless.Send(absl::StrCat("100000\r\n", mib, "\r\n")); ++i) {
  }
  ExpectError(endless.Read(), 413, "a body without an end");
}

void BadInput::PipelinedAndHalfClosed(size_t node) {
  HttpClient client(ports_[node]);
  const std::string good = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n";
  std::string all;
  for (int i = 0; i < 8; ++i) {
    absl::StrAppend(&all, PostOf("/v1/completions", "{"), good,
                    PostOf("/v1/completions", Ask({{"model", "gpt-4"}}).dump()));
  }
  client.Send(all);
  for (int i = 0; i < 8; ++i) {
    ExpectError(client.Read(), 400, "pipelined");
    EXPECT_EQ(client.Read().status, 200);
    ExpectError(client.Read(), 404, "pipelined");
  }
  client.Send("no request\r\n\r\n");
  ExpectError(client.Read(), 400, "behind good ones");
  EXPECT_EQ(client.ReadToEnd(), "");

  // Half a connection is a client that has gone.
  const std::string post =
      PostOf("/v1/completions", Ask({{"max_tokens", 1900}, {"ignore_eos", true}}).dump());
  for (const std::string& bytes : {post.substr(0, 30), post.substr(0, post.size() - 5), post}) {
    HttpClient half(ports_[node]);
    half.Send(bytes);
    half.CloseSending();
    EXPECT_EQ(half.ReadToEnd(), "");
  }
}

// Opens more connections than a node has room for; some send a byte.
void BadInput::Flood(size_t node, size_t connections) {
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (size_t i = 0; i < connections; ++i) {
    clients.push_back(std::make_unique<HttpClient>(ports_[node]));
    EXPECT_TRUE(clients.back()->connected());
    if (i % 3 == 0) clients.back()->Send("G");
  }
  const double open = MetricOf(node, "strata_http_connections");
  EXPECT_GT(open, 1.0);
  EXPECT_LE(open, kHttpConnectionsMax + kHttpRefusalsMax);
}

TEST_P(BadInput, StreamsAreTheSameWhateverOthersSend) {
  std::vector<Expectation> expected(kStreams);
  for (size_t i = 0; i < kStreams; ++i) {
    expected[i] = ExpectationOf(i);
    ASSERT_THAT(expected[i].text.size(), Ge(kStreamTokens));
    ASSERT_NE(expected[i].text, expected[i == 0 ? kStreams - 1 : i - 1].text);
  }

  std::atomic<bool> over{false};
  std::atomic<size_t> compared{0};
  std::vector<std::thread> streams;
  for (size_t i = 0; i < kStreams; ++i) {
    streams.emplace_back([this, i, &expected, &over, &compared] {
      do {
        EXPECT_EQ(Stream(i % 2, expected[i].ask), expected[i].text) << "stream " << i;
        ++compared;
      } while (!over && !HasFailure());
    });
  }
  std::vector<std::unique_ptr<HttpClient>> never_read, slow;
  for (size_t node : {0, 1}) {
    never_read.push_back(std::make_unique<HttpClient>(
        ports_[node], HttpClient::Options{.receive_buffer_bytes = 4096}));
    never_read.back()->Send(PostOf("/v1/completions", Ask({{"stream", true},
                                                           {"logprobs", 20},
                                                           {"n", 4},
                                                           {"max_tokens", 1900},
                                                           {"ignore_eos", true}})
                                                          .dump()));
    for (int i = 0; i < 8; ++i) slow.push_back(std::make_unique<HttpClient>(ports_[node]));
  }
  const size_t connections = AllowConnections(kHttpConnectionsMax + 500);
  std::vector<std::thread> bad;
  for (size_t node : {0, 1}) {
    bad.emplace_back([this, node] { WrongRequests(node); });
    bad.emplace_back([this, node] { WrongHttp(node); });
    bad.emplace_back([this, node] {
      for (int i = 0; i < 5; ++i) PipelinedAndHalfClosed(node);
    });
    bad.emplace_back([this, node, connections] { Flood(node, connections); });
  }
  const std::string request = PostOf("/v1/completions", Ask().dump());
  std::thread dribble([&] {  // a byte now and then, of requests that never end
    for (size_t at = 0; !over; at = (at + 1) % 40) {
      for (const auto& client : slow) client->Send(request.substr(at, 1));
      absl::SleepFor(absl::Milliseconds(50));
    }
  });
  for (std::thread& thread : bad) thread.join();
  // A client that does not read is dropped, and its requests end.
  for (size_t node : {0, 1}) {
    EXPECT_TRUE(
        Eventually([&] { return MetricOf(node, "strata_http_clients_dropped_total") >= 1; }));
  }
  over = true;
  for (std::thread& thread : streams) thread.join();
  dribble.join();
  EXPECT_THAT(compared.load(), Ge(kStreams));
  EXPECT_TRUE(Eventually([this] {
    return Metric("strata_requests_running") == 0 && Metric("strata_requests_waiting") == 0;
  }));
  for (const Expectation& each : expected) EXPECT_EQ(Stream(0, each.ask), each.text);
}

INSTANTIATE_TEST_SUITE_P(RequestsAtATime, BadInput, ::testing::Values(1, 16));

}  // namespace
}  // namespace strata
