#include "node/hub/catalogue.h"

#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::absl_testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST(Catalogue, TheProgramsOwnIsReadAndItsNamesAreFound) {
  ASSERT_GT(Catalogue().size(), 12);
  for (const CatalogueModel& model : Catalogue()) {
    EXPECT_EQ(CatalogueSource(model.name), model.source);
    EXPECT_GT(model.bytes(), 100'000'000u) << model.name;
  }
  EXPECT_EQ(CatalogueSource("QWEN3-8B"), "hf:Qwen/Qwen3-8B-GGUF");
  EXPECT_EQ(CatalogueSource("qwen3-8b:Q8_0"), "hf:Qwen/Qwen3-8B-GGUF:Q8_0");
  EXPECT_EQ(CatalogueSource("qwen3-8"), std::nullopt);
  EXPECT_EQ(CatalogueSource(""), std::nullopt);
}

TEST(Catalogue, BytesAreAboutThoseOfQ4KM) {
  // Qwen3-8B-Q4_K_M.gguf has 5,027,783,488 bytes.
  for (const CatalogueModel& model : Catalogue()) {
    if (model.name != "qwen3-8b") continue;
    EXPECT_NEAR(static_cast<double>(model.bytes()), 5.03e9, 0.1e9);
  }
}

TEST(Catalogue, AWrongLineIsNamed) {
  EXPECT_THAT(*ParseCatalogue("# x\n\na org/repo 1.5\n"), SizeIs(1));
  for (const char* line : {"a org/repo", "a org/repo x", "a org/repo -1", "a org/repo 1 2",
                           "a/b org/repo 1", "a repo 1", "a ../repo 1"}) {
    EXPECT_THAT(ParseCatalogue(line), StatusIs(absl::StatusCode::kInvalidArgument)) << line;
  }
  EXPECT_THAT(ParseCatalogue("a org/repo 1\nA org/other 1"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("twice")));
}

}  // namespace
}  // namespace strata
