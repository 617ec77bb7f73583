#include "coordinator/models/draft_model.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shard/device/engine.h"
#include "tests/support/model_zoo.h"
#include "tests/support/random_model.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::vector<std::string> Vocabulary(size_t n) {
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  while (tokens.size() < n) tokens.push_back(absl::StrCat("t", tokens.size(), " "));
  return tokens;
}

std::shared_ptr<const ModelFile> Model(const std::string& name,
                                       const std::vector<std::string>& tokens) {
  testing::RandomModelSpec spec = testing::SpecOf(testing::ModelZoo().front());
  spec.name = absl::StrCat("draft_model_test_", name);
  spec.n_vocab = static_cast<uint32_t>(tokens.size());
  spec.metadata.emplace_back(".general.name", name);
  spec.metadata.emplace_back(".tokenizer.ggml.model", "llama");
  spec.metadata.emplace_back(".tokenizer.ggml.scores", std::vector<float>(tokens.size(), -1.0f));
  spec.metadata.emplace_back(".tokenizer.ggml.tokens", tokens);
  const auto path = testing::WriteRandomModel(spec, testing::ProcessTempFolder());
  EXPECT_TRUE(path.ok()) << path.status();
  auto model = ModelFile::Open(path.value_or(""));
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

TEST(DraftModel, HasTheVocabularyOfItsModelButForPadding) {
  StartEngine();
  const auto big = Model("big", Vocabulary(96));
  EXPECT_EQ(CheckDraftModel(*big, *Model("small", Vocabulary(96))), absl::OkStatus());
  EXPECT_EQ(CheckDraftModel(*big, *Model("padded", Vocabulary(96 + 128))), absl::OkStatus());
  EXPECT_EQ(CheckDraftModel(*Model("padded", Vocabulary(96 + 128)), *big), absl::OkStatus());

  const absl::Status larger = CheckDraftModel(*big, *Model("larger", Vocabulary(96 + 129)));
  EXPECT_EQ(larger.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(larger.message(), HasSubstr("225 tokens instead of 96"));

  std::vector<std::string> other = Vocabulary(96);
  other[40] = "other";
  const absl::Status another = CheckDraftModel(*big, *Model("other", other));
  EXPECT_EQ(another.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(another.message(), StartsWith("--draft: other cannot draft the tokens of big"));
  EXPECT_THAT(another.message(), HasSubstr("token 40 differs"));

  EXPECT_THAT(CheckDraftModel(*big, *big).message(), HasSubstr("cannot draft its own tokens"));
}

}  // namespace
}  // namespace strata
