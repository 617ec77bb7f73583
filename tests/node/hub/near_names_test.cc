#include "node/hub/near_names.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

const std::vector<std::string> kNames = {"qwen3-8b", "qwen3-4b", "gpt-oss-20b", "fast",
                                         "hf:Qwen/Qwen3-8B-GGUF:Q4_K_M"};

TEST(NearNames, AreThoseThatDifferInFewCharactersTheNearestFirst) {
  EXPECT_THAT(NearNames("qwen3-8", kNames),
              ElementsAre("qwen3-8b", "qwen3-4b", "hf:Qwen/Qwen3-8B-GGUF:Q4_K_M"));
  EXPECT_THAT(NearNames("qwne3-4b", kNames), ElementsAre("qwen3-4b", "qwen3-8b"));
  EXPECT_THAT(NearNames("FSAT", kNames), ElementsAre("fast"));
  EXPECT_THAT(NearNames("llama", kNames), IsEmpty());
}

TEST(NearNames, HaveTheNameWithinThem) {
  EXPECT_THAT(NearNames("oss", kNames), ElementsAre("gpt-oss-20b"));
  EXPECT_THAT(NearNames("q", kNames), IsEmpty());
  EXPECT_THAT(NearNames("", kNames), IsEmpty());
}

TEST(NearNames, AreBounded) {
  std::vector<std::string> many(20'000, std::string(5'000, 'a'));
  for (size_t i = 0; i < many.size(); ++i) many[i] = std::to_string(i) + many[i];
  EXPECT_THAT(NearNames(std::string(10'000, 'a'), many), SizeIs(kNearNamesMax));
  EXPECT_THAT(NearNames("same", std::vector<std::string>(9, "same")), SizeIs(1));
}

TEST(NearNames, TextIsOneLineThatMayBeShown) {
  EXPECT_EQ(NearText("fas", kNames), "; near are: fast");
  EXPECT_EQ(NearText("llama", kNames), "");
  EXPECT_THAT(NearText("tales", {"ta\nles"}), Not(::testing::HasSubstr("\n")));
}

}  // namespace
}  // namespace strata
