#include "node/model_match.h"

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

wire::ModelStatus Model(const std::string& name, char id) {
  wire::ModelStatus model;
  model.set_name(name);
  model.set_model_id(std::string(32, id));
  model.mutable_source()->set_path("/models/" + std::string(1, id) + ".gguf");
  return model;
}

TEST(FindModel, TheOnlyOneNeedsNoName) {
  const std::vector<wire::ModelStatus> models = {Model("tiny", '\x11')};
  const auto found = FindModel(models, "");
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(*found, models.data());
}

TEST(FindModel, TwoOfOneNameAreToldApartByTheirIds) {
  const std::vector<wire::ModelStatus> models = {Model("tiny", '\x11'), Model("big", '\x22'),
                                                 Model("tiny", '\x33')};
  EXPECT_THAT(FindModel(models, "tiny"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("tiny (111111111111)"), HasSubstr("tiny (333333333333)"),
                             Not(HasSubstr("big")))));
  EXPECT_EQ(FindModel(models, "3333").value(), &models[2]);
  EXPECT_EQ(FindModel(models, std::string(64, '1')).value(), models.data());
  EXPECT_EQ(FindModel(models, "/models/\x33.gguf").value(), &models[2]);
}

TEST(FindModel, TheFilesNameIsAName) {
  std::vector<wire::ModelStatus> models = {Model("Tiny", '\x11'), Model("Big", '\x22')};
  models[0].mutable_source()->set_path("/models/tiny-q4.gguf");
  models[1].mutable_source()->set_path("/models/big-00001-of-00002.gguf");
  EXPECT_EQ(FindModel(models, "tiny-q4").value(), models.data());
  EXPECT_EQ(FindModel(models, "big").value(), &models[1]);
  // A file of that name may be another one, in the folder that one is in.
  EXPECT_THAT(FindModel(models, "tiny-q4.gguf"), StatusIs(absl::StatusCode::kNotFound));
}

TEST(FindModel, WhatIsNotThereIsToldWithWhatIs) {
  EXPECT_THAT(FindModel({Model("tiny", '\x11')}, "huge"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("tiny (111111111111)")));
  EXPECT_THAT(FindModel({}, "huge"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none is loaded")));
}

}  // namespace
}  // namespace strata
