#include "node/web/page_routes.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class AnswerKeeper final : public HttpResponder {
 public:
  void Answer(HttpResponse response) override { answer = std::move(response); }
  void Begin(HttpResponse) override {}
  void Write(absl::string_view) override {}
  void End() override {}
  void OnGone(absl::AnyInvocable<void() &&>) override {}
  void Run(absl::AnyInvocable<void() &&>) override {}

  HttpResponse answer;
};

HttpResponse Get(const ApiRoute& route,
                 std::vector<std::pair<std::string, std::string>> headers = {}) {
  const auto keeper = std::make_shared<AnswerKeeper>();
  const auto exchange = std::make_shared<ApiExchange>(
      ApiExchange{.http = {.method = "GET", .path = route.path, .headers = std::move(headers)},
                  .responder = keeper});
  route.handle(exchange);
  return keeper->answer;
}

std::string Header(const HttpResponse& response, const std::string& name) {
  for (const auto& [key, value] : response.headers) {
    if (key == name) return value;
  }
  return "";
}

constexpr PageFile kFiles[] = {{"/", "text/html", "t1", "packed"}};

TEST(PageRoutes, AllowNoScriptButThePagesOwn) {
  const ApiRoutes routes = PageRoutes(kFiles);
  ASSERT_EQ(routes.size(), 1u);
  const HttpResponse page = Get(routes[0], {{"accept-encoding", "gzip, br"}});
  EXPECT_EQ(page.body, "packed");
  EXPECT_EQ(Header(page, "Content-Encoding"), "gzip");
  const std::string policy = Header(page, "Content-Security-Policy");
  EXPECT_THAT(policy, HasSubstr("default-src 'none'"));
  EXPECT_THAT(policy, HasSubstr("script-src 'self';"));
  EXPECT_THAT(policy, HasSubstr("frame-ancestors 'none'"));
  EXPECT_THAT(policy, Not(HasSubstr("unsafe")));
}

TEST(PageRoutes, SendNothingThatTheBrowserHas) {
  const ApiRoutes routes = PageRoutes(kFiles);
  const HttpResponse same =
      Get(routes[0], {{"accept-encoding", "gzip"}, {"if-none-match", "\"t1\""}});
  EXPECT_EQ(same.status, 304);
  EXPECT_EQ(same.body, "");
  EXPECT_THAT(Get(routes[0]).body, HasSubstr("/api/strata/v1/openapi.json"));  // not a browser
}

TEST(PageRoutes, SayHowToGetThePageWhereThereIsNone) {
  const ApiRoutes routes = PageRoutes({});
  ASSERT_EQ(routes.size(), 1u);
  EXPECT_EQ(routes[0].path, "/");
  EXPECT_THAT(Get(routes[0]).body, HasSubstr("npm"));
}

}  // namespace
}  // namespace strata
