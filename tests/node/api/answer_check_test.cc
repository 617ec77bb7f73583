#include "node/api/answer_check.h"

#include "absl/status/status_matchers.h"
#include "coordinator/request/request_status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

ApiRequest StrictRequest() {
  ApiRequest request;
  request.answer_path = "json_schema";
  request.answer_schema = R"({"type":"integer","multipleOf":37})";
  request.checks_answer = true;
  request.tools.list = {{.name = "f",
                         .json = "",
                         .parameters = R"({"not":{"required":["a"]}})",
                         .path = "tools[0].function.parameters"},
                        {.name = "g", .json = "", .parameters = R"({"not":{"required":["a"]}})"}};
  request.checked_tools = {"f"};
  return request;
}

TEST(AnswerCheck, ReadsAnAnswerFromItsPieces) {
  const ApiRequest request = StrictRequest();
  for (const char* last : {"4", "5"}) {
    AnswerCheck check(&request);
    check.Add({.content = "7", .calls = {}});
    check.Add({.content = last, .calls = {}});
    if (last[0] == '4') {
      EXPECT_THAT(check.Finish(), IsOk());
      continue;
    }
    EXPECT_THAT(check.Finish(), StatusIs(absl::StatusCode::kInternal,
                                         AllOf(HasSubstr("json_schema"), HasSubstr("multipleOf"))));
    EXPECT_EQ(ErrorCodeOf(check.Finish()), "schema_not_met");
  }
}

TEST(AnswerCheck, ReadsTheArgumentsOfStrictCallsInstead) {
  const ApiRequest request = StrictRequest();
  const auto finish = [&](const char* name, const char* arguments) {
    AnswerCheck check(&request);
    check.Add({.content = "\n", .calls = {{.index = 0, .name = name, .arguments = "{"}}});
    check.Add({.content = "", .calls = {{.index = 0, .name = "", .arguments = arguments}}});
    return check.Finish();
  };
  EXPECT_THAT(finish("f", "}"), IsOk());
  EXPECT_THAT(finish("f", "\"a\":1}"),
              StatusIs(absl::StatusCode::kInternal,
                       AllOf(HasSubstr("tools[0].function.parameters"), HasSubstr("not"))));
  EXPECT_THAT(finish("g", "\"a\":1}"), IsOk());
}

}  // namespace
}  // namespace strata
