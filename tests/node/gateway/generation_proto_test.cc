#include "node/gateway/generation_proto.h"

#include <string>

#include "absl/status/status_matchers.h"
#include "coordinator/request/request_status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "node/api/openai/openai_error.h"

namespace strata {
namespace {

using ::absl_testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::Not;

absl::Status RoundTrip(const absl::Status& status) {
  return RequestStatusFromGrpc(RequestStatusToGrpc(status));
}

TEST(GenerationProto, AFullQueueKeepsItsOwnerAndTimeToRetry) {
  const absl::Status full = WithRetryAfterMs(absl::ResourceExhaustedError("many wait"), 2'500);
  absl::Status there = RoundTrip(full);
  EXPECT_THAT(there, StatusIs(absl::StatusCode::kResourceExhausted, "many wait"));
  EXPECT_EQ(RetryAfterMs(there), 2'500);
  EXPECT_FALSE(IsClientLimit(there));
  EXPECT_EQ(HttpStatusOf(there), 503);
  there = RoundTrip(AsOfOneClient(full));
  EXPECT_EQ(RetryAfterMs(there), 2'500);
  EXPECT_TRUE(IsClientLimit(there));
  EXPECT_EQ(HttpStatusOf(there), 429);
}

TEST(GenerationProto, ParameterErrorsAreCarried) {
  const auto error = nlohmann::json::parse(OpenAiError(ErrorOf(RoundTrip(WithErrorCode(
      BadParam("prompt", "longer\nthan = the context"), "context_length_exceeded")))));
  EXPECT_EQ(error["error"]["param"], "prompt");
  EXPECT_EQ(error["error"]["code"], "context_length_exceeded");
  EXPECT_EQ(error["error"]["message"], "prompt: longer\nthan = the context");
}

TEST(GenerationProto, ConnectionErrorsOfGrpcAreReplaced) {
  const absl::Status gone = RequestStatusFromGrpc(
      {grpc::StatusCode::UNAVAILABLE, "failed to connect to all addresses; last error: UNKNOWN"});
  EXPECT_THAT(gone, StatusIs(absl::StatusCode::kUnavailable, Not(HasSubstr("all addresses"))));
  EXPECT_THAT(RequestStatusFromGrpc({grpc::StatusCode::INTERNAL, "RST_STREAM with error code 2"}),
              StatusIs(absl::StatusCode::kUnavailable, Not(HasSubstr("RST_STREAM"))));
  EXPECT_THAT(RequestStatusFromGrpc({grpc::StatusCode::CANCELLED, "CANCELLED"}),
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(RoundTrip(absl::UnavailableError("tiny is still loading")),
              StatusIs(absl::StatusCode::kUnavailable, "tiny is still loading"));
  EXPECT_TRUE(RoundTrip(absl::OkStatus()).ok());
}

// Details come from another node, and go into JSON.
TEST(GenerationProto, GarbledDetailsDoNoHarm) {
  for (const std::string details :
       {"strata\n=\n==\nx\n\n=y\nretry_after_ms=many\napi_param=\\", "strata\napi_param=\\377\\376",
        "strata\nretry_after_ms=-99999999999999999999", "strataapi_code=1"}) {
    const absl::Status status =
        RequestStatusFromGrpc({grpc::StatusCode::INVALID_ARGUMENT, "words", details});
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, "words"));
    EXPECT_FALSE(
        nlohmann::json::parse(OpenAiError(ErrorOf(status)), nullptr, false).is_discarded());
    ErrorResponse(status, OpenAiError);
  }
}

// The trailers have a bound: a payload that does not fit is left out whole.
TEST(GenerationProto, DetailsHaveABound) {
  absl::Status status = WithRetryAfterMs(absl::ResourceExhaustedError("x"), 1'000);
  status = WithErrorCode(std::move(status), std::string(100'000, 'x'));
  EXPECT_LT(RequestStatusToGrpc(status).error_details().size(), 2'000);
  EXPECT_EQ(RetryAfterMs(RoundTrip(status)), 1'000);
}

}  // namespace
}  // namespace strata
