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

const std::vector<std::string> kAllowed = {"https://chat.example", "http://localhost:3000"};

HttpRequest From(const std::string& origin, const std::string& method = "GET") {
  HttpRequest request;
  request.method = method;
  request.headers = {{"host", "attic:7080"}};
  if (!origin.empty()) request.headers.emplace_back("origin", origin);
  return request;
}

TEST(CrossOrigin, OriginsAreAsBrowsersWriteThem) {
  EXPECT_THAT(CheckOrigins({"https://chat.example", "http://localhost:3000", "http://[::1]:80",
                            "chrome-extension://abcdefghijklmnop"}),
              IsOk());
  for (const char* bad : {"", "chat.example", "https://", "://x", "https://chat.example/",
                          "https://Chat.example", "https://a b", "https://*.example",
                          "https://me@x", "https://a,https://b", "https://a\r\nX: y"}) {
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

TEST(CrossOrigin, OnlyExactOriginsAreAllowed) {
  EXPECT_THAT(CheckBrowser(From(""), kAllowed), IsOk());
  EXPECT_THAT(CheckBrowser(From("http://attic:7080"), kAllowed), IsOk());  // our own
  for (const std::string& origin : kAllowed) {
    EXPECT_THAT(CheckBrowser(From(origin), kAllowed), IsOk());
    EXPECT_THAT(CheckBrowser(From(origin), {}), StatusIs(absl::StatusCode::kPermissionDenied));
  }
  for (const char* other : {"http://chat.example", "https://chat.example:8443", "null", "*",
                            "https://evil.example", "https://chat.example.evil.example"}) {
    EXPECT_THAT(CheckBrowser(From(other), kAllowed), StatusIs(absl::StatusCode::kPermissionDenied))
        << other;
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
