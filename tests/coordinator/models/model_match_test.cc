#include "coordinator/models/model_match.h"

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/request/request_status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/rpc/grpc_status.h"

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

PrintableText Name(absl::string_view name) { return PrintableText::From(name); }
const std::string kOnes(32, '\x11'), kTwos(32, '\x22');

// Other programs give two models of one name the same id: LM Studio's bug tracker 1115 and 1125,
// unsloth 9340.
TEST(ShownModelName, IsTheNameWhereNoOtherHasIt) {
  EXPECT_EQ(ShownModelName(Name("tiny"), kOnes, /*is_shared=*/false), "tiny");
  EXPECT_EQ(ShownModelName(Name("tiny"), kOnes, /*is_shared=*/true), "tiny@111111111111");
  EXPECT_EQ(ShownModelName(Name("tiny"), kTwos, /*is_shared=*/true), "tiny@222222222222");
  EXPECT_EQ(
      ShownModelName(Name(std::string(500, 'x')), kOnes, /*is_shared=*/true).str().substr(150),
      "xxxxxxx…@111111111111");
}

TEST(ShownModelName, NoNameCanBeTheOneThatAnotherIsShownBy) {
  EXPECT_EQ(ShownModelName(Name("tiny@111111111111"), kTwos, false),
            "tiny@111111111111@222222222222");
  EXPECT_EQ(ShownModelName(Name(std::string(64, '1')), kTwos, false),
            std::string(64, '1') + "@222222222222");
  EXPECT_EQ(ShownModelName(Name("me@home"), kTwos, false), "me@home");
}

TEST(FindModel, TheOnlyOneNeedsNoName) {
  const std::vector<wire::ModelStatus> models = {Model("tiny", '\x11')};
  const auto found = FindModel(models, "");
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(*found, models.data());
}

TEST(FindModel, TwoOfOneNameAreDistinguishedByTheirShownNames) {
  const std::vector<wire::ModelStatus> models = {
      Model("tiny@111111111111", '\x11'), Model("big", '\x22'), Model("tiny@333333333333", '\x33')};
  EXPECT_THAT(FindModel(models, "tiny"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("tiny@111111111111"), HasSubstr("tiny@333333333333"),
                             Not(HasSubstr("big")))));
  EXPECT_EQ(FindModel(models, "tiny@111111111111").value(), models.data());
  EXPECT_EQ(FindModel(models, "tiny@333333333333").value(), &models[2]);
  EXPECT_EQ(FindModel(models, "3333").value(), &models[2]);
  EXPECT_EQ(FindModel(models, std::string(64, '1')).value(), models.data());
  EXPECT_EQ(FindModel(models, "/models/\x33.gguf").value(), &models[2]);
}

TEST(FindModel, AShownNameStaysAName) {
  const std::vector<wire::ModelStatus> models = {Model("tiny", '\x11'), Model("big", '\x22')};
  EXPECT_EQ(FindModel(models, "tiny@111111111111").value(), models.data());
  EXPECT_EQ(FindModel(models, "big@222222222222").value(), &models[1]);
  EXPECT_THAT(FindModel(models, "tiny@222222222222"), StatusIs(absl::StatusCode::kNotFound));
}

TEST(FindModel, TheShownNameOfOneIsNotAnothersFileOrId) {
  std::vector<wire::ModelStatus> models = {Model("tiny", '\x11'), Model("2222", '\x33'),
                                           Model("big", '\x22')};
  models[2].mutable_source()->set_path("/models/tiny.gguf");
  EXPECT_EQ(FindModel(models, "tiny").value(), models.data());
  EXPECT_EQ(FindModel(models, "2222").value(), &models[1]);
  EXPECT_EQ(FindModel(models, "22222").value(), &models[2]);
  // The whole id is sure, whatever others are called.
  models[1].set_name(std::string(64, '2'));
  EXPECT_EQ(FindModel(models, std::string(64, '2')).value(), &models[2]);
}

TEST(FindModel, TheFilesNameIsAName) {
  std::vector<wire::ModelStatus> models = {Model("Tiny", '\x11'), Model("Big", '\x22'),
                                           Model("Third", '\x33')};
  models[0].mutable_source()->set_path("/models/tiny-q4.gguf");
  models[1].mutable_source()->set_path("/models/big-00001-of-00002.gguf");
  models[2].mutable_source()->set_path("/caf\xe9/mod\xe8le.gguf");
  EXPECT_EQ(FindModel(models, "tiny-q4").value(), models.data());
  EXPECT_EQ(FindModel(models, "big").value(), &models[1]);
  for (const char* text :
       {"/caf\xe9/mod\xe8le.gguf", "mod\xe8le", "mod\ufffdle", "/caf\ufffd/mod\ufffdle.gguf"}) {
    EXPECT_EQ(FindModel(models, text).value(), &models[2]) << text;
  }
  // A file of that name may be another one, in the folder that one is in.
  EXPECT_THAT(FindModel(models, "tiny-q4.gguf"), StatusIs(absl::StatusCode::kNotFound));
}

TEST(FindModel, AnUnknownModelIsReportedWithTheLoadedOnes) {
  EXPECT_THAT(FindModel({Model("tiny", '\x11')}, "huge"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("tiny (111111111111)")));
  EXPECT_THAT(FindModel({}, "huge"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none is loaded")));
  EXPECT_THAT(FindModel({}, "\x1b[2J\n\xff" + std::string(10'000, 'x')),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("\"\\u001b[2J\\n\ufffdxxx"), HasSubstr("x…\""))));
}

TEST(FindModel, AModelThatIsOnNoNodeIsOutOfServiceAndSaysWhy) {
  std::vector<wire::ModelStatus> models = {Model("tiny", '\x11'), Model("big", '\x22')};
  models[0].set_state(wire::ModelStatus::FAILED);
  ToWire(absl::UnavailableError("attic has no room for it"), "", models[0].mutable_status());
  const auto found = FindModel(models, "tiny");
  EXPECT_THAT(found, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("attic has no room")));
  EXPECT_GT(RetryAfterMs(found.status()).value_or(0), 0);
  EXPECT_EQ(FindModel(models, "big").value(), &models[1]);
  // Placed, and broken: it says so itself.
  models[0].add_stages();
  EXPECT_EQ(FindModel(models, "tiny").value(), models.data());
}

}  // namespace
}  // namespace strata
