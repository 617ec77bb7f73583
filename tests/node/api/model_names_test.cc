#include "node/api/model_names.h"

#include "absl/status/status_matchers.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::absl_testing::StatusIs;

wire::ModelStatus Model(const std::string& name, char id, const std::string& file) {
  wire::ModelStatus model;
  model.set_name(name);
  model.set_model_id(std::string(32, id));
  model.mutable_source()->set_path("/models/" + file);
  return model;
}

TEST(FindModelOf, TakesCaseFilesAndTagsLoosely) {
  const std::vector<wire::ModelStatus> models = {Model("Tiny", '\x11', "tiny-q4.gguf"),
                                                 Model("big:8b", '\x22', "b.gguf")};
  for (const char* text : {"Tiny", "tiny", "TINY", "tiny-q4", "tiny-q4.gguf", "tiny-Q4.GGUF",
                           "Tiny:latest", "tiny:3b-q4", "tiny-q4:latest"}) {
    const auto found = FindModelOf(models, text, {});
    ASSERT_TRUE(found.ok()) << text << found.status();
    EXPECT_EQ(*found, models.data()) << text;
  }
  EXPECT_EQ(FindModelOf(models, "big:8b", {}).value(), &models[1]);
  for (const char* text : {"big", "big:latest", "tin", "x:Tiny", "Tiny:a/b", ":latest"}) {
    EXPECT_THAT(FindModelOf(models, text, {}), StatusIs(absl::StatusCode::kNotFound)) << text;
  }
}

TEST(FindModelOf, ALooseNameMeansOneModelAlone) {
  const std::vector<wire::ModelStatus> models = {Model("TINY", '\x11', "a.gguf"),
                                                 Model("Tiny", '\x22', "b.gguf"),
                                                 Model("tiny:latest", '\x33', "c.gguf")};
  EXPECT_EQ(FindModelOf(models, "Tiny", {}).value(), &models[1]);
  EXPECT_EQ(FindModelOf(models, "tiny:latest", {}).value(), &models[2]);
  EXPECT_THAT(FindModelOf(models, "tiny", {}), StatusIs(absl::StatusCode::kNotFound));
}

TEST(FindModelOf, AnyNameMeansTheOnlyModelIfAsked) {
  std::vector<wire::ModelStatus> models = {Model("Tiny", '\x11', "a.gguf")};
  EXPECT_THAT(FindModelOf(models, "gpt-4o", {}), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(FindModelOf(models, "gpt-4o", {.any_model = true}).value(), models.data());
  EXPECT_THAT(FindModelOf({}, "gpt-4o", {.any_model = true}),
              StatusIs(absl::StatusCode::kNotFound));
  models.push_back(Model("Big", '\x22', "b.gguf"));
  EXPECT_THAT(FindModelOf(models, "gpt-4o", {.any_model = true}),
              StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace strata
