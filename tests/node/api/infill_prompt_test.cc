#include "node/api/infill_prompt.h"

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using absl_testing::IsOk;
using absl_testing::StatusIs;
using ::testing::HasSubstr;

ApiRequest Request() {
  ApiRequest request;
  request.prompts = {{.text = "f("}};
  request.infill = ApiInfill{.suffix = ")"};
  return request;
}

wire::ModelStatus Model() {
  wire::ModelStatus model;
  model.mutable_fill_in_middle()->set_prefix("<P>");
  model.mutable_fill_in_middle()->set_suffix("<S>");
  model.mutable_fill_in_middle()->set_middle("<M>");
  return model;
}

TEST(FillPrompts, PutsTheModelsTokensAroundThePromptAndItsSuffix) {
  ApiRequest request = Request();
  EXPECT_THAT(FillPrompts(Model(), &request), IsOk());
  EXPECT_EQ(request.prompts[0].text, "<P>f(<S>)<M>");
}

TEST(FillPrompts, ShowsOtherFilesFirst) {
  ApiRequest request = Request();
  request.infill->files = {{.name = "a.h", .text = "A"}, {.name = "b.h", .text = "B"}};
  ApiRequest plain = request;
  wire::ModelStatus model = Model();
  EXPECT_THAT(FillPrompts(model, &plain), IsOk());
  EXPECT_EQ(plain.prompts[0].text, "\n\na.h\n\nA\n\nb.h\n\nB\n<P>f(<S>)<M>");
  model.mutable_fill_in_middle()->set_file_separator("<F>");
  EXPECT_THAT(FillPrompts(model, &request), IsOk());
  EXPECT_EQ(request.prompts[0].text, "<F>a.h\nA<F>b.h\nB<F>\n<P>f(<S>)<M>");
}

TEST(FillPrompts, NeedsTheTokensAndATextPrompt) {
  ApiRequest request = Request();
  wire::ModelStatus model;
  model.set_name("plain");
  EXPECT_THAT(FillPrompts(model, &request),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("plain has no tokens")));
  request.prompts = {{.tokens = {1}}};
  EXPECT_THAT(FillPrompts(Model(), &request),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not tokens")));
}

}  // namespace
}  // namespace strata
