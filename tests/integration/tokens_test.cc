// Tokens of the HTTP API, of a node that listens for the network.
#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/http_client.h"
#include "tests/support/program.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::strata::testing::HttpClient;
using ::strata::testing::HttpReply;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class Tokens : public ::testing::Test {
 protected:
  void Start(const std::vector<std::string>& more) {
    std::vector<std::string> args = {"node",           "--listen",   "127.0.0.1:0",  "--no-mdns",
                                     "--name",         "attic",      "--no-measure", "--verbose",
                                     "--log-requests", "--data-dir", folder_};
    args.insert(args.end(), more.begin(), more.end());
    node_ = std::make_unique<Program>(std::move(args));
    const auto ready = nlohmann::json::parse(node_->FirstLine(), nullptr, false);
    ASSERT_TRUE(ready.is_object()) << node_->err();
    const std::string url = ready["node"]["http"];
    uint32_t port = 0;
    ASSERT_TRUE(absl::SimpleAtoi(url.substr(url.rfind(':') + 1), &port)) << url;
    port_ = static_cast<uint16_t>(port);
  }
  // `authorization`: that header; empty: without it.
  HttpReply Get(const std::string& path, const std::string& authorization = "") {
    HttpClient client(port_);
    EXPECT_TRUE(client.Send(absl::StrCat(
        "GET ", path, " HTTP/1.1\r\nHost: localhost\r\n",
        authorization.empty() ? "" : absl::StrCat("Authorization: ", authorization, "\r\n"),
        "\r\n")));
    return client.Read();
  }
  // Waits for that status, for a few seconds at most: the file is checked once a second.
  int Settles(const std::string& authorization, int wanted,
              const std::string& path = "/v1/models") {
    int status = 0;
    const absl::Time until = absl::Now() + absl::Seconds(10);
    while ((status = Get(path, authorization).status) != wanted && absl::Now() < until) {
      absl::SleepFor(absl::Milliseconds(50));
    }
    return status;
  }
  std::unique_ptr<Program> Token(std::vector<std::string> args) {
    args.insert(args.begin(), "token");
    args.insert(args.end(), {"--data-dir", folder_});
    return std::make_unique<Program>(std::move(args));
  }

  const std::string folder_ = testing::MakeTestFolder();
  std::unique_ptr<Program> node_;
  uint16_t port_ = 0;
};

// What users of others miss: authentication, exo #1833, llama.cpp #13061, #25542.
TEST_F(Tokens, WithoutOneNobodyIsLetInFromElsewhere) {
  Start({"--http", "0.0.0.0:0"});
  EXPECT_TRUE(node_->Says("strata token new")) << node_->err();
  for (const char* path : {"/v1/models", "/metrics", "/v1/models/x", "/nothing"}) {
    const HttpReply reply = Get(path);
    EXPECT_EQ(reply.status, 401) << path;
    EXPECT_EQ(reply.Header("WWW-Authenticate"), "Bearer");
    EXPECT_THAT(reply.body, HasSubstr("no valid token"));
    EXPECT_THAT(reply.body, HasSubstr("\"code\":\"invalid_api_key\""));
    EXPECT_THAT(reply.body, Not(HasSubstr("attic")));
  }
  // A monitor asks for /health without a token, and gets no more than it needs.
  HttpReply health = Get("/health");
  for (int i = 0; i < 200 && health.status == 503; ++i) {  // until it coordinates
    absl::SleepFor(absl::Milliseconds(50));
    health = Get("/health");
  }
  EXPECT_EQ(health.status, 200) << health.body;
  EXPECT_EQ(health.body, R"({"status":"ok"})");
  HttpClient client(port_);
  EXPECT_TRUE(client.Post("/v1/completions", R"({"model": "x", "prompt": "y"})"));
  EXPECT_EQ(client.Read().status, 401);
}

TEST_F(Tokens, AreMadeListedAndRevokedWhileTheNodeRuns) {
  Start({"--http", "0.0.0.0:0"});
  const auto made = Token({"new", "kitchen"});
  ASSERT_EQ(made->ExitStatus(), 0) << made->err();
  const std::string token = made->out();
  EXPECT_THAT(token, StartsWith("strata-token-1-"));
  EXPECT_EQ(Settles("Bearer " + token, 200), 200);
  EXPECT_EQ(Get("/health", "bearer " + token).status, 200);
  EXPECT_EQ(Get("/nothing", "Bearer " + token).status, 404);
  std::string other = token;
  other.back() = other.back() == '0' ? '2' : '0';
  EXPECT_EQ(Get("/v1/models", "Bearer " + other).status, 401);
  EXPECT_EQ(Get("/v1/models", "Basic " + token).status, 401);
  HttpClient keyed(port_);
  EXPECT_TRUE(keyed.Send(absl::StrCat("GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: ",
                                      absl::StripAsciiWhitespace(token), "\r\n\r\n")));
  EXPECT_EQ(keyed.Read().status, 200);

  struct stat about = {};
  ASSERT_EQ(stat((folder_ + "/api_tokens").c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600u);

  const auto again = Token({"new", "kitchen"});
  EXPECT_NE(again->ExitStatus(), 0);
  EXPECT_THAT(again->err(), HasSubstr("kitchen already"));
  const auto list = Token({"list"});
  EXPECT_EQ(list->ExitStatus(), 0);
  EXPECT_THAT(list->out(), HasSubstr("kitchen"));
  EXPECT_THAT(list->out(), Not(HasSubstr(token)));

  const auto revoked = Token({"revoke", "kitchen"});
  EXPECT_EQ(revoked->ExitStatus(), 0) << revoked->err();
  EXPECT_EQ(Settles("Bearer " + token, 401), 401);
  const auto gone = Token({"revoke", "kitchen"});
  EXPECT_NE(gone->ExitStatus(), 0);
  EXPECT_THAT(gone->err(), HasSubstr("no token kitchen"));
  // The log names the token's owner, but not the token.
  EXPECT_TRUE(node_->Says("kitchen")) << node_->err();
  EXPECT_THAT(node_->err(), Not(HasSubstr(token.substr(20))));
}

TEST_F(Tokens, HaveLimitsOfTheirOwn) {
  Start({"--http", "0.0.0.0:0"});
  const auto made = Token({"new", "slow", "--requests-per-minute", "2"});
  ASSERT_EQ(made->ExitStatus(), 0) << made->err();
  const std::string bearer = "Bearer " + made->out();
  // Models may not be told of yet, which counts as well: 404 comes as soon as the token is known.
  ASSERT_EQ(Settles(bearer, 404, "/nothing"), 404);
  EXPECT_EQ(Get("/nothing", bearer).status, 404);
  const HttpReply reply = Get("/nothing", bearer);
  EXPECT_EQ(reply.status, 429);
  int seconds = 0;
  EXPECT_TRUE(absl::SimpleAtoi(reply.Header("Retry-After"), &seconds));
  EXPECT_GT(seconds, 0);
  EXPECT_LE(seconds, 60);
}

TEST_F(Tokens, AFileThatOthersMayReadLetsNobodyIn) {
  const auto made = Token({"new", "kitchen"});  // the node has not run yet
  ASSERT_EQ(made->ExitStatus(), 0) << made->err();
  Start({"--http", "0.0.0.0:0"});
  const std::string bearer = "Bearer " + made->out();
  EXPECT_EQ(Settles(bearer, 200), 200);
  ASSERT_EQ(chmod((folder_ + "/api_tokens").c_str(), 0644), 0);
  EXPECT_EQ(Settles(bearer, 503), 503);
  EXPECT_TRUE(node_->Says("chmod 600")) << node_->err();
  EXPECT_THAT(Get("/v1/models", bearer).body, Not(HasSubstr(folder_)));
}

TEST_F(Tokens, AreNotNeededOnThisMachineOrWithNoAuth) {
  Start({"--http", "0"});
  EXPECT_EQ(Get("/nothing").status, 404);  // also before a node coordinates
  node_.reset();
  Start({"--http", "0.0.0.0:0", "--no-auth"});
  EXPECT_EQ(Get("/nothing").status, 404);
  EXPECT_TRUE(node_->Says("--no-auth")) << node_->err();
}

TEST_F(Tokens, OnThisMachineEverybodyLooksAndAnAdminCommands) {
  Start({"--http", "0"});
  EXPECT_EQ(Get("/").status, 200);
  EXPECT_EQ(Get("/api/strata/v1/openapi.json").status, 200);
  const HttpReply cluster = Get("/api/strata/v1/cluster");
  EXPECT_EQ(cluster.status, 200);
  EXPECT_EQ(nlohmann::json::parse(cluster.body, nullptr, false)["nodes"][0]["name"], "attic");
  EXPECT_EQ(nlohmann::json::parse(Get("/api/strata/v1/session").body, nullptr, false)["scopes"],
            nlohmann::json({"chat", "view"}));
  const auto post = [this](const std::string& path, const std::string& body,
                           const std::string& token) {
    HttpClient client(port_);
    EXPECT_TRUE(client.Send(absl::StrCat(
        "POST /api/strata/v1", path,
        " HTTP/1.1\r\nHost: localhost\r\nContent-Length: ", body.size(), "\r\n",
        token.empty() ? "" : absl::StrCat("Authorization: Bearer ", token, "\r\n"), "\r\n", body)));
    return client.Read();
  };
  EXPECT_EQ(post("/unload", R"({"model": "x"})", "").status, 401);
  EXPECT_EQ(post("/plan", R"({"model": "/etc/passwd"})", "").status, 403);

  const auto page =
      std::make_unique<Program>(std::vector<std::string>{"page", "--data-dir", folder_});
  ASSERT_EQ(page->ExitStatus(), 0) << page->err();
  const std::string link = page->out();
  const size_t at = link.find("/#login=");
  ASSERT_NE(at, std::string::npos) << link;
  const std::string code = nlohmann::json{{"code", link.substr(at + 8)}}.dump();
  const HttpReply opened = post("/session", code, "");
  ASSERT_EQ(opened.status, 200) << opened.body;
  EXPECT_EQ(post("/session", code, "").status, 403);
  const std::string token = nlohmann::json::parse(opened.body, nullptr, false)["token"];
  EXPECT_EQ(Settles("Bearer " + token, 200, "/api/strata/v1/session"), 200);
  const HttpReply none = post("/unload", R"({"model": "x"})", token);
  EXPECT_EQ(none.status, 404) << none.body;
  EXPECT_THAT(node_->err(), Not(HasSubstr(token.substr(20))));
  const auto chat = Token({"new", "chat"});
  ASSERT_EQ(chat->ExitStatus(), 0) << chat->err();
  EXPECT_EQ(Settles("Bearer " + chat->out(), 403, "/api/strata/v1/cluster"), 403);
}

TEST_F(Tokens, APageMayBeForViewingOnlyOrNotThere) {
  Start({"--http", "0", "--page-view-only"});
  EXPECT_EQ(Get("/api/strata/v1/cluster").status, 200);
  EXPECT_EQ(Get("/api/strata/v1/unload").status, 404);
  node_.reset();
  Start({"--http", "0", "--no-page"});
  EXPECT_EQ(Get("/").status, 404);
  EXPECT_EQ(Get("/api/strata/v1/cluster").status, 404);
  const auto page =
      std::make_unique<Program>(std::vector<std::string>{"page", "--data-dir", folder_});
  EXPECT_NE(page->ExitStatus(), 0);
  EXPECT_THAT(page->err(), HasSubstr("--no-page"));
}

TEST_F(Tokens, ANodeThatKeepsNothingHasNone) {
  Program node({"node", "--ephemeral", "--listen", "127.0.0.1:0", "--no-mdns", "--no-measure",
                "--http", "0.0.0.0:0"});
  EXPECT_EQ(node.ExitStatus(), 2);
  EXPECT_THAT(node.err(), HasSubstr("--no-auth"));
}

TEST_F(Tokens, PagesOfListedOriginsAreAllowedToAsk) {
  Start({"--http", "0.0.0.0:0", "--allow-origin", "https://chat.example"});
  const auto ask = [this](const std::string& line, const std::string& headers) {
    HttpClient client(port_);
    EXPECT_TRUE(
        client.Send(absl::StrCat(line, " HTTP/1.1\r\nHost: localhost\r\n", headers, "\r\n")));
    return client.Read();
  };
  HttpReply reply = ask("OPTIONS /v1/chat/completions",
                        "Origin: https://chat.example\r\nAccess-Control-Request-Method: POST\r\n"
                        "Access-Control-Request-Headers: authorization,content-type\r\n");
  EXPECT_EQ(reply.status, 204);
  EXPECT_EQ(reply.Header("Access-Control-Allow-Origin"), "https://chat.example");
  EXPECT_EQ(reply.Header("Vary"), "Origin");
  EXPECT_EQ(reply.Header("Access-Control-Allow-Methods"), "POST, OPTIONS");
  EXPECT_EQ(reply.Header("Access-Control-Allow-Headers"),
            "Authorization, Content-Type, X-Request-Id");

  // A listed origin needs a token all the same; the page can read the error.
  reply = ask("GET /v1/models", "Origin: https://chat.example\r\n");
  EXPECT_EQ(reply.status, 401);
  EXPECT_EQ(reply.Header("Access-Control-Allow-Origin"), "https://chat.example");
  const auto made = Token({"new", "kitchen"});
  ASSERT_EQ(made->ExitStatus(), 0) << made->err();
  EXPECT_EQ(Settles("Bearer " + made->out(), 200), 200);
  reply = ask(
      "GET /v1/models",
      absl::StrCat("Origin: https://chat.example\r\nAuthorization: Bearer ", made->out(), "\r\n"));
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.Header("Access-Control-Allow-Origin"), "https://chat.example");

  for (const char* other : {"http://chat.example", "https://evil.example", "null"}) {
    for (const char* line : {"GET /v1/models", "OPTIONS /v1/models"}) {
      reply =
          ask(line, absl::StrCat("Origin: ", other, "\r\nAccess-Control-Request-Method: POST\r\n"));
      EXPECT_EQ(reply.status, 403) << other;
      EXPECT_EQ(reply.Header("Access-Control-Allow-Origin"), "");
      EXPECT_EQ(reply.Header("Vary"), "Origin");
    }
  }
}

TEST_F(Tokens, AWildcardOriginIsRefused) {
  Program node({"node", "--listen", "127.0.0.1:0", "--no-mdns", "--no-measure", "--data-dir",
                folder_, "--allow-origin", "*"});
  EXPECT_NE(node.ExitStatus(), 0);
  EXPECT_THAT(node.err(), HasSubstr("list the origins of those that may"));
}

}  // namespace
}  // namespace strata
