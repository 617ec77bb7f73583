#include "node/api/cross_origin.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

const BrowserPolicy kAllowed = {.origins = {"https://chat.example", "http://localhost:3000"},
                                .hosts = {}};

absl::Status CheckOrigins(std::vector<std::string> origins) {
  return CheckPolicy({.origins = std::move(origins), .hosts = {}});
}

HttpRequest From(const std::string& origin, const std::string& method = "GET") {
  HttpRequest request;
  request.method = method;
  request.headers = {{"host", "attic:7080"}};
  if (!origin.empty()) request.headers.emplace_back("origin", origin);
  return request;
}

TEST(CrossOrigin, OriginsAreAsBrowsersWriteThem) {
  EXPECT_THAT(CheckOrigins({"https://chat.example", "http://localhost:3000", "http://[::1]:80",
                            "chrome-extension://abcdefghijklmnop", "chrome-extension://*",
                            "http://192.168.1.5:*"}),
              IsOk());
  for (const char* bad :
       {"", "chat.example", "https://", "://x", "https://chat.example/", "https://Chat.example",
        "https://a b", "https://*.example", "https://*", "http://*:*", "https://me@x",
        "https://a,https://b", "https://a\r\nX: y"}) {
    EXPECT_THAT(CheckOrigins({bad}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--allow-origin")))
        << bad;
  }
}

TEST(CrossOrigin, WildcardAndNullAreRefused) {
  EXPECT_THAT(CheckOrigins({"*"}), StatusIs(absl::StatusCode::kInvalidArgument,
                                            HasSubstr("list the origins of those that may")));
  EXPECT_THAT(CheckOrigins({"null"}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(CheckOrigins(std::vector<std::string>(kAllowedOriginsMax + 1, "http://a")),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(CrossOrigin, WhatIsOpenIsNotOpenUnderASitesOwnName) {
  const auto under = [](const std::string& host, const BrowserPolicy& policy = {}) {
    HttpRequest request;
    request.headers = {{"host", host}};
    return CheckOpenAccess(request, policy);
  };
  for (const char* host :
       {"192.168.1.5:7080", "[fe80::1]:7080", "localhost:7080", "10.0.0.1", ""}) {
    EXPECT_THAT(under(host), IsOk()) << host;
  }
  EXPECT_THAT(under("rebound.example:7080"),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("--allow-host")));
  EXPECT_THAT(under("Attic:7080", {.origins = {}, .hosts = {"attic"}}), IsOk());
}

TEST(CrossOrigin, WhatIsOpenIsNotOpenForImagesOfOtherSites) {
  HttpRequest request = From("");
  request.headers = {{"host", "localhost:7080"}, {"sec-fetch-site", "cross-site"}};
  EXPECT_THAT(CheckOpenAccess(request, {}), StatusIs(absl::StatusCode::kPermissionDenied));
  for (const char* site : {"same-origin", "same-site", "none"}) {
    request.headers[1].second = site;
    EXPECT_THAT(CheckOpenAccess(request, {}), IsOk()) << site;
  }
}

TEST(CrossOrigin, OnlyExactOriginsAreAllowed) {
  EXPECT_THAT(CheckBrowser(From(""), kAllowed), IsOk());
  EXPECT_THAT(CheckBrowser(From("http://attic:7080"), kAllowed), IsOk());  // our own
  for (const std::string& origin : kAllowed.origins) {
    EXPECT_THAT(CheckBrowser(From(origin), kAllowed), IsOk());
    EXPECT_THAT(CheckBrowser(From(origin), {}), StatusIs(absl::StatusCode::kPermissionDenied));
  }
  for (const char* other : {"http://chat.example", "https://chat.example:8443", "null", "*",
                            "https://evil.example", "https://chat.example.evil.example"}) {
    EXPECT_THAT(CheckBrowser(From(other), kAllowed), StatusIs(absl::StatusCode::kPermissionDenied))
        << other;
  }
}

TEST(CrossOrigin, AnyPortAndAnyExtensionMayBeAllowed) {
  const BrowserPolicy policy = {.origins = {"http://192.168.1.5:*", "moz-extension://*"},
                                .hosts = {}};
  for (const char* mine : {"http://192.168.1.5", "http://192.168.1.5:3000", "moz-extension://ab"}) {
    EXPECT_THAT(CheckBrowser(From(mine), policy), IsOk()) << mine;
  }
  for (const char* other :
       {"http://192.168.1.50", "http://192.168.1.5:evil.example",
        "http://192.168.1.5:", "https://192.168.1.5", "chrome-extension://ab"}) {
    EXPECT_THAT(CheckBrowser(From(other), policy), StatusIs(absl::StatusCode::kPermissionDenied))
        << other;
  }
}

TEST(CrossOrigin, PagesOfThisMachinesProgramsMayUseLoopback) {
  for (const char* mine :
       {"http://localhost:3000", "http://127.0.0.1", "https://[::1]:8443", "app://obsidian.md",
        "tauri://localhost", "http://tauri.localhost", "vscode-webview://abc"}) {
    HttpRequest request = From(mine);
    EXPECT_THAT(CheckBrowser(request, {}), StatusIs(absl::StatusCode::kPermissionDenied)) << mine;
    request.to_loopback = true;
    request.headers[0].second = "localhost:7080";
    EXPECT_THAT(CheckBrowser(request, {}), IsOk()) << mine;
  }
  for (const char* other :
       {"https://chat.example", "http://localhost.evil.example",
        "http://localhost:3000.evil.example", "chrome-extension://ab", "null", "application://x"}) {
    HttpRequest request = From(other);
    request.to_loopback = true;
    request.headers[0].second = "localhost:7080";
    EXPECT_THAT(CheckBrowser(request, {}), StatusIs(absl::StatusCode::kPermissionDenied)) << other;
  }
}

TEST(CrossOrigin, AnotherNameOfThisMachineMayBeAllowed) {
  HttpRequest request = From("");
  request.to_loopback = true;
  request.headers[0].second = "Host.Docker.Internal:7080";
  EXPECT_THAT(CheckBrowser(request, {}), StatusIs(absl::StatusCode::kPermissionDenied,
                                                  HasSubstr("--allow-host Host.Docker.Internal")));
  EXPECT_THAT(CheckBrowser(request, {.origins = {}, .hosts = {"host.docker.internal"}}), IsOk());
  for (const char* bad : {"", "a:1", "a/b", "*"}) {
    EXPECT_THAT(CheckPolicy({.origins = {}, .hosts = {bad}}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--allow-host")));
  }
}

TEST(CrossOrigin, AListedPageMayNotUseAnotherNameForThisMachine) {
  HttpRequest request = From("https://chat.example");
  request.to_loopback = true;
  EXPECT_THAT(CheckBrowser(request, kAllowed), StatusIs(absl::StatusCode::kPermissionDenied));
}

// DNS rebinding: the page's name resolved to this machine's address at its second request.
TEST(CrossOrigin, ANameThatOnlyLooksLikeLoopbackIsRefused) {
  for (const char* name : {"127.evil.example:7080", "127.0.0.1.evil.example:7080"}) {
    HttpRequest request;
    request.to_loopback = true;
    request.headers = {{"host", name}, {"origin", std::string("http://") + name}};
    EXPECT_THAT(CheckBrowser(request, {}), StatusIs(absl::StatusCode::kPermissionDenied)) << name;
  }
}

TEST(CrossOrigin, APreflightGetsTheAllowedMethodsAndHeaders) {
  HttpRequest request = From("https://chat.example", "OPTIONS");
  EXPECT_FALSE(IsPreflight(request, kAllowed));
  request.headers.emplace_back("access-control-request-method", "POST");
  request.headers.emplace_back("access-control-request-headers",
                               "authorization, X-Stainless-OS,x-api-key, user-agent, x-a b");
  EXPECT_TRUE(IsPreflight(request, kAllowed));
  EXPECT_FALSE(IsPreflight(request, {}));
  HttpResponse answer = AnswerPreflight(request, "POST, OPTIONS");
  EXPECT_EQ(answer.status, 204);
  EXPECT_THAT(answer.headers, Contains(Pair("Access-Control-Allow-Methods", "POST, OPTIONS")));
  EXPECT_THAT(answer.headers,
              Contains(Pair("Access-Control-Allow-Headers",
                            "Authorization, Content-Type, X-Request-Id, x-stainless-os, x-api-key, "
                            "user-agent")));
  EXPECT_THAT(answer.headers, Not(Contains(Pair("Access-Control-Allow-Private-Network", "true"))));
  request.headers.emplace_back("access-control-request-private-network", "true");
  answer = AnswerPreflight(request, "POST, OPTIONS");
  EXPECT_THAT(answer.headers, Contains(Pair("Access-Control-Allow-Private-Network", "true")));
}

}  // namespace
}  // namespace strata
