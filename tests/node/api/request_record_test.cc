#include "node/api/request_record.h"

#include <fcntl.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "transport/rpc/request_log.h"

namespace strata {
namespace {

using Json = nlohmann::json;

class RecordingResponder final : public HttpResponder {
 public:
  void Answer(HttpResponse response) override { status = response.status; }
  void Begin(HttpResponse head) override { status = head.status; }
  void Write(absl::string_view bytes) override { written += bytes; }
  void End() override {}
  void OnGone(absl::AnyInvocable<void() &&>) override {}
  void Run(absl::AnyInvocable<void() &&> fn) override { std::move(fn)(); }
  int status = 0;
  std::string written;
};

class RequestRecordTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(pipe(fds_), 0);
    fcntl(fds_[0], F_SETFL, O_NONBLOCK);
    StartRequestLog({.on = true, .format = LogFormat::kJson, .fd = fds_[1]});
  }
  void TearDown() override {
    StartRequestLog({});
    close(fds_[0]);
    close(fds_[1]);
  }
  std::string Written() {
    char bytes[4096];
    const ssize_t n = read(fds_[0], bytes, sizeof(bytes));
    return n <= 0 ? "" : std::string(bytes, static_cast<size_t>(n));
  }
  static HttpRequest Request(const std::string& path) {
    HttpRequest request;
    request.id = "req-1";
    request.client = "10.0.0.7";
    request.method = "POST";
    request.path = path;
    return request;
  }
  int fds_[2] = {-1, -1};
};

TEST_F(RequestRecordTest, ARequestHasOneLineAtItsEnd) {
  auto record = std::make_shared<RequestRecord>(Request("/v1/completions"));
  const auto to = std::make_shared<RecordingResponder>();
  auto responder = Recorded(to, record);
  responder->Begin({.status = 200});
  responder->Write("data: secret");
  responder->End();
  record->SetCompletion({.model = "tiny",
                         .choices = 1,
                         .prompt_tokens = 5,
                         .tokens = 9,
                         .first_token = absl::Milliseconds(70),
                         .outcome = "ok"});
  responder = nullptr;
  EXPECT_EQ(Written(), "");
  record = nullptr;
  const Json line = Json::parse(Written(), nullptr, false);
  ASSERT_TRUE(line.is_object());
  EXPECT_EQ(line["event"], "request");
  EXPECT_EQ(line["id"], "req-1");
  EXPECT_EQ(line["client"], "10.0.0.7");
  EXPECT_EQ(line["status"], 200);
  EXPECT_EQ(line["model"], "tiny");
  EXPECT_EQ(line["prompt_tokens"], 5);
  EXPECT_EQ(line["tokens"], 9);
  EXPECT_EQ(line["first_token_ms"], 70);
  EXPECT_EQ(line["outcome"], "ok");
  EXPECT_TRUE(line.contains("ms"));
  EXPECT_FALSE(line.contains("error"));
  EXPECT_EQ(to->written, "data: secret");
}

TEST_F(RequestRecordTest, RoutineRequestsAreLoggedOnlyWhenTheyFail) {
  for (const char* path : {"/health", "/metrics"}) {
    Recorded(std::make_shared<RecordingResponder>(), std::make_shared<RequestRecord>(Request(path)))
        ->Answer({.status = 200});
    EXPECT_EQ(Written(), "");
  }
  Recorded(std::make_shared<RecordingResponder>(),
           std::make_shared<RequestRecord>(Request("/health")))
      ->Answer({.status = 503});
  EXPECT_EQ(Json::parse(Written(), nullptr, false)["status"], 503);
}

}  // namespace
}  // namespace strata
