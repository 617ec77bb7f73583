#include "node/hub/quant_choice.h"

#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kGiB = 1 << 30;

std::vector<HubFile> Repository() {
  return {
      {.name = "README.md", .bytes = 10},           {.name = "m-F16.gguf", .bytes = 16 * kGiB},
      {.name = "m-Q8_0.gguf", .bytes = 8 * kGiB},   {.name = "m-Q4_K_M.gguf", .bytes = 5 * kGiB},
      {.name = "m-Q4_K_S.gguf", .bytes = 4 * kGiB}, {.name = "m-Q2_K.gguf", .bytes = 3 * kGiB},
      {.name = "mmproj-m-F16.gguf", .bytes = kGiB}, {.name = "m.imatrix.gguf", .bytes = kGiB}};
}

std::string Chosen(absl::string_view quant, absl::string_view file = "",
                   std::optional<uint64_t> bytes_max = std::nullopt) {
  const auto choice = ChooseQuant(VariantsOf(Repository()), quant, file, bytes_max);
  return choice.ok() ? choice->variant.quant : std::string(choice.status().message());
}

TEST(QuantChoice, QuantsOfNames) {
  for (const auto& [name, quant] : std::vector<std::pair<std::string, std::string>>{
           {"Llama-3.2-1B-Instruct-Q4_K_M.gguf", "Q4_K_M"},
           {"tinyllama-1.1b-chat-v1.0.Q5_K_S.gguf", "Q5_K_S"},
           {"ggml-model-q4_0.gguf", "Q4_0"},
           {"Model-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"},
           {"model-IQ2_XXS.gguf", "IQ2_XXS"},
           {"model-bf16.gguf", "BF16"},
           {"gpt-oss-20b-mxfp4.gguf", "MXFP4"},
           {"Qwen3-0.6B-Q8_0.gguf", "Q8_0"},
           {"BF16/model-00001-of-00002.gguf", "BF16"},
           {"Q8_0/Model-Q8_0-00001-of-00002.gguf", "Q8_0"},
           {"model_Q6_K.gguf", "Q6_K"},
           {"strata-demo.gguf", ""},
           {"qwen-quiet.gguf", ""},
       }) {
    EXPECT_EQ(QuantOf(name), quant) << name;
  }
}

TEST(QuantChoice, PartsAreOneModelIfAllAreThere) {
  const auto variants =
      VariantsOf(std::vector<HubFile>{{.name = "Q8/m-Q8_0-00002-of-00002.gguf", .bytes = 2},
                                      {.name = "Q8/m-Q8_0-00001-of-00002.gguf", .bytes = 1},
                                      {.name = "m-Q4_0-00001-of-00003.gguf", .bytes = 1},
                                      {.name = "m-Q4_0-00003-of-00003.gguf", .bytes = 1}});
  ASSERT_EQ(variants.size(), 1);
  EXPECT_EQ(variants[0].quant, "Q8_0");
  EXPECT_EQ(variants[0].bytes, 3);
  ASSERT_EQ(variants[0].parts.size(), 2);
  EXPECT_EQ(variants[0].parts[0].name, "Q8/m-Q8_0-00001-of-00002.gguf");
}

TEST(QuantChoice, ProjectorsAndMatricesAreNone) { EXPECT_EQ(VariantsOf(Repository()).size(), 5); }

TEST(QuantChoice, ByNameInAnyCase) {
  EXPECT_EQ(Chosen("q4_k_m"), "Q4_K_M");
  EXPECT_EQ(Chosen("Q8"), "Q8_0") << "the only one that begins so";
  EXPECT_EQ(Chosen("", "m-Q4_K_S.gguf"), "Q4_K_S");
}

TEST(QuantChoice, UnknownAndAmbiguousOnesListWhatIsThere) {
  EXPECT_THAT(Chosen("Q5_K_M"),
              AllOf(HasSubstr("there is no Q5_K_M"), HasSubstr("Q8_0 (8.0 GiB)")));
  EXPECT_THAT(Chosen("Q4_K"), HasSubstr("may be any of Q4_K_S (4.0 GiB), Q4_K_M (5.0 GiB)"));
  EXPECT_THAT(Chosen("", "x.gguf"), HasSubstr("no model in a file x.gguf"));
  EXPECT_THAT(ChooseQuant({}, "", "", std::nullopt), StatusIs(absl::StatusCode::kNotFound));
}

TEST(QuantChoice, TwoModelsOfOneQuantAreToldByTheirFiles) {
  const auto variants = VariantsOf(std::vector<HubFile>{{.name = "a-Q4_0.gguf", .bytes = 1},
                                                        {.name = "b-Q4_0.gguf", .bytes = 2}});
  EXPECT_THAT(ChooseQuant(variants, "Q4_0", "", std::nullopt),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a-Q4_0.gguf (1 B)")));
}

TEST(QuantChoice, TheBestThatFitsButNotAboveQ8) {
  EXPECT_EQ(Chosen("", "", 100 * kGiB), "Q8_0");
  EXPECT_EQ(Chosen("", "", 7 * kGiB), "Q4_K_M");
  EXPECT_EQ(Chosen("", "", 3 * kGiB), "Q2_K");
  EXPECT_THAT(Chosen("", "", kGiB), HasSubstr("none fits in 1.0 GiB"));
  EXPECT_THAT(ChooseQuant(VariantsOf(Repository()), "", "", kGiB),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(QuantChoice, Q4KMWhereNothingIsKnown) {
  const auto choice = ChooseQuant(VariantsOf(Repository()), "", "", std::nullopt);
  ASSERT_THAT(choice, IsOk());
  EXPECT_EQ(choice->variant.quant, "Q4_K_M");
  EXPECT_THAT(choice->why, AllOf(HasSubstr("none was named"), HasSubstr("Q8_0 (8.0 GiB)")));
}

TEST(QuantChoice, TheOnlyOneNeedsNoReason) {
  const auto variants = VariantsOf(std::vector<HubFile>{{.name = "strata-demo.gguf", .bytes = 7}});
  const auto choice = ChooseQuant(variants, "", "", 1);
  ASSERT_THAT(choice, IsOk());
  EXPECT_EQ(choice->variant.quant, "strata-demo");
  EXPECT_EQ(choice->why, "");
}

TEST(QuantChoice, FloatsAreTakenWhereNothingElseIs) {
  const auto variants = VariantsOf(std::vector<HubFile>{{.name = "m-BF16.gguf", .bytes = 2},
                                                        {.name = "m-F32.gguf", .bytes = 4}});
  EXPECT_EQ(ChooseQuant(variants, "", "", std::nullopt)->variant.quant, "BF16");
}

}  // namespace
}  // namespace strata
