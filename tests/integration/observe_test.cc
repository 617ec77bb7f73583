// A cluster of two nodes reports on itself and on its requests: ids in the logs from HTTP to
// both stages, metrics, refusals with the time of a retry, and errors when the coordinator dies.
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/integration/two_nodes.h"
#include "tests/support/exposition.h"
#include "tests/support/http_client.h"

namespace strata {
namespace {

using ::strata::testing::Exposition;
using ::strata::testing::HttpClient;
using ::strata::testing::HttpReply;
using ::strata::testing::TwoNodes;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kPrompt[] = "The old captain";

class Observe : public TwoNodes {
 protected:
  std::vector<std::string> NodeArgs() const override {
    return {"--log-requests", "--log-format", "json"};
  }
  // `seqs`: sequences at a time.
  void Load(uint32_t seqs) {
    const Json loaded = LoadOnBoth(seqs, 2048);
    ASSERT_TRUE(loaded.is_object()) << loaded;
    coordinator_ = Json::parse(Get(0, "/health").body)["coordinates"].get<bool>() ? 0 : 1;
    other_ = 1 - coordinator_;
  }
  HttpReply Complete(size_t node, const Json& body) { return Post(node, "/v1/completions", body); }
  static Json Ask(const Json& more = Json::object()) {
    Json body = {{"model", ""}, {"prompt", kPrompt}, {"max_tokens", 16}, {"temperature", 0}};
    body.update(more);
    return body;
  }
  // `n` prompts in one request, whose sequences go on for long.
  static Json AskLong(size_t n) {
    return Ask({{"prompt", std::vector<std::string>(n, kPrompt)},
                {"max_tokens", 2000},
                {"ignore_eos", true},
                {"stream", true}});
  }
  // A node's log lines of `event` with `id`.
  std::vector<Json> Logged(size_t node, const std::string& event, const std::string& id) {
    std::vector<Json> lines;
    for (const std::string& line : nodes_[node]->err_lines()) {
      Json json = Json::parse(line, nullptr, false);
      EXPECT_TRUE(json.is_object()) << line;
      if (json.is_object() && json["event"] == event && json.value("id", "") == id) {
        lines.push_back(std::move(json));
      }
    }
    return lines;
  }

  size_t coordinator_ = 0, other_ = 1;
};

TEST_F(Observe, OneIdGoesFromHttpToBothStages) {
  Load(4);
  const std::string body = Ask().dump();
  HttpClient client(ports_[other_]);
  ASSERT_TRUE(client.Send(absl::StrCat(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: follow-me.7\r\n",
      "Content-Length: ", body.size(), "\r\n\r\n", body)));
  const HttpReply reply = client.Read();
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.Header("x-request-id"), "follow-me.7");
  client.Close();

  ASSERT_TRUE(Eventually([&] { return Logged(other_, "request", "follow-me.7").size() == 1; }));
  const Json end = Logged(other_, "request", "follow-me.7")[0];
  EXPECT_EQ(end["client"], "127.0.0.1");
  EXPECT_EQ(end["status"], 200);
  EXPECT_EQ(end["outcome"], "ok");
  EXPECT_EQ(end["tokens"], 16);
  EXPECT_GT(end["prompt_tokens"].get<int>(), 0);
  EXPECT_LE(end["first_token_ms"].get<int>(), end["ms"].get<int>());
  EXPECT_EQ(end["model"], Json::parse(reply.body)["model"]);
  EXPECT_EQ(Logged(coordinator_, "generation", "follow-me.7").size(), 1);
  for (const size_t node : {0, 1}) {
    ASSERT_TRUE(Eventually([&] { return !Logged(node, "stage", "follow-me.7").empty(); }));
    const Json stage = Logged(node, "stage", "follow-me.7")[0];
    EXPECT_EQ(stage["stage"], node);
    EXPECT_EQ(stage["prompt_tokens"], end["prompt_tokens"]);
  }
  // A request that fails, with an id that is too long to be taken.
  ASSERT_TRUE(client.connected());
  HttpClient odd(ports_[other_]);
  odd.Send(absl::StrCat(
      "GET /v2 HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: ", std::string(500, 'x'), "\r\n\r\n"));
  const HttpReply failed = odd.Read();
  EXPECT_EQ(failed.status, 404);
  const std::string made = failed.Header("x-request-id");
  EXPECT_THAT(made, HasSubstr("req-"));
  odd.Close();
  EXPECT_TRUE(Eventually([&] { return Logged(other_, "request", made).size() == 1; }));

  const std::string text = Json::parse(reply.body)["choices"][0]["text"];
  ASSERT_GT(text.size(), 12u);
  for (const auto& node : nodes_) {
    EXPECT_THAT(node->err(), Not(HasSubstr(kPrompt)));
    EXPECT_THAT(node->err(), Not(HasSubstr(text.substr(0, 12))));
  }
}

TEST_F(Observe, EveryNodeHasMetricsAndTheCoordinatorTheWhole) {
  Load(4);
  ASSERT_EQ(Complete(other_, Ask()).status, 200);
  const HttpReply reply = Get(coordinator_, "/metrics");
  EXPECT_EQ(reply.Header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  const Exposition whole(reply.body);
  EXPECT_THAT(whole.problems(), IsEmpty());
  EXPECT_EQ(whole.Value("strata_tokens_total"), 16);
  EXPECT_GT(whole.Value("strata_step_rows_count"), 10);
  for (const auto& [stage, node] : {std::pair("0", "attic"), std::pair("1", "cellar")}) {
    const Exposition::Labels labels = {{"stage", stage}, {"node", node}, {"device", "CPU"}};
    EXPECT_GT(whole.Value("strata_stage_compute_seconds_total", labels), 0);
    EXPECT_GT(whole.Value("strata_stage_kv_bytes", labels), 0);
    const double idle = whole.Value("strata_stage_idle_ratio", labels);
    EXPECT_TRUE(idle >= 0 && idle < 1) << idle;
  }
  for (const auto& [from, to] :
       {std::pair("coordinator", "0"), std::pair("0", "1"), std::pair("1", "coordinator")}) {
    EXPECT_GT(whole.Value("strata_link_bytes_total", {{"from", from}, {"to", to}}), 100);
  }
  // Activations are more than tokens.
  EXPECT_GT(whole.Value("strata_link_bytes_total", {{"from", "0"}}),
            whole.Value("strata_link_bytes_total", {{"to", "0"}}));

  for (const size_t node : {0, 1}) {
    EXPECT_TRUE(Eventually([&] {
      const Exposition own(Get(node, "/metrics").body);
      EXPECT_THAT(own.problems(), IsEmpty());
      return own.Value("strata_node_stage_steps_total") > 10 &&
             own.Value("strata_node_stage_busy_seconds_total") > 0 &&
             own.Value("strata_node_stage_received_bytes_total") > 100 &&
             own.Value("strata_node_stage_sent_bytes_total") > 100;
    }));
  }
  const Exposition other(Get(other_, "/metrics").body);
  EXPECT_THAT(other.Values("strata_tokens_total"), IsEmpty());
  EXPECT_EQ(other.Value("strata_api_first_token_seconds_count"), 1);

  EXPECT_TRUE(Eventually([this] {
    const Json status = Run(other_, {"status", "--json"});
    return status["nodes"][0]["stages"][0]["idle_share"].is_number() &&
           status["nodes"][1]["stages"][0]["tokens_per_s"].is_number();
  }));
}

TEST_F(Observe, TwoHundredPromptsAtOnceAreAllWritten) {
  Load(16);
  std::vector<HttpReply> replies(4);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < replies.size(); ++i) {
    threads.emplace_back([this, i, &replies] {
      const std::vector<std::string> prompts(50, absl::StrCat("Chapter ", i, ". The old captain"));
      replies[i] = Complete(i % 2, Ask({{"prompt", prompts}, {"max_tokens", 1}}));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const HttpReply& reply : replies) {
    ASSERT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(Json::parse(reply.body)["usage"]["completion_tokens"], 50);
  }
}

TEST_F(Observe, AFullQueueIsOneClientsOrEverybodys) {
  Load(1);
  std::vector<std::unique_ptr<HttpClient>> clients;
  const auto fill = [&](const char* from, size_t n_prompts) {
    clients.push_back(
        std::make_unique<HttpClient>(ports_[other_], HttpClient::Options{.from = from}));
    ASSERT_TRUE(clients.back()->Post("/v1/completions", AskLong(n_prompts).dump()));
    EXPECT_EQ(clients.back()->ReadHead().status, 200);
  };
  const auto refused = [&](const char* from) {
    HttpClient client(ports_[other_], HttpClient::Options{.from = from});
    EXPECT_TRUE(client.Post("/v1/completions", AskLong(64).dump()));
    HttpReply reply = client.Read();
    double seconds = 0;
    EXPECT_TRUE(absl::SimpleAtod(reply.Header("retry-after"), &seconds)) << reply.head;
    EXPECT_GE(seconds, 1);
    EXPECT_FALSE(reply.Header("retry-after-ms").empty());
    return reply;
  };
  // One sequence runs and the others wait: at most 256, of which 192 of one client.
  for (int i = 0; i < 3; ++i) fill("127.0.0.1", 64);
  const HttpReply too_many = refused("127.0.0.1");
  EXPECT_EQ(too_many.status, 429) << too_many.body;
  EXPECT_EQ(Json::parse(too_many.body)["error"]["type"], "rate_limit_error");
  fill("127.0.0.2", 50);
  const HttpReply full = refused("127.0.0.3");
  EXPECT_EQ(full.status, 503) << full.body;
  EXPECT_EQ(Json::parse(full.body)["error"]["type"], "server_error");
  // Accepted clients go on.
  for (const auto& client : clients) EXPECT_TRUE(client->connected());
}

TEST_F(Observe, WhenTheCoordinatorDiesStreamsGoOnAndOthersGetErrorsInPlainWords) {
  Load(4);
  HttpClient streaming(ports_[other_]);
  ASSERT_TRUE(streaming.Post("/v1/completions", AskLong(1).dump()));
  ASSERT_EQ(streaming.ReadHead().status, 200);
  EXPECT_THAT(streaming.ReadChunk(), HasSubstr("data: "));
  // So that the node knows the models.
  ASSERT_EQ(Get(other_, "/v1/models").status, 200);
  (*nodes_[coordinator_])->Kill();
  // The request waits for the next coordinator, which may still be loading the model.
  const HttpReply reply = Complete(other_, Ask());
  const std::string rest = streaming.ReadUntil("\r\n0\r\n\r\n");
  EXPECT_THAT(reply.status, AnyOf(200, 503)) << reply.body;
  EXPECT_TRUE(reply.status != 503 || !reply.Header("retry-after").empty());
  EXPECT_NE(rest.find("data: [DONE]"), std::string::npos);
  EXPECT_EQ(rest.find("\"error\""), std::string::npos);
  for (const char* raw : {"addresses", "ocket", "recvmsg", "RST_STREAM", "GOAWAY",
                          "ipv4:", "Connection reset", "Stream removed"}) {
    EXPECT_THAT(reply.body, Not(HasSubstr(raw)));
  }
}

}  // namespace
}  // namespace strata
