#include "node/api/model_names.h"

#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
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

wire::KnownModel Known(const std::string& name, const std::string& path,
                       const std::string& quant = "", uint64_t bytes = 1) {
  wire::KnownModel model;
  model.set_node(std::string(16, '\x01'));
  model.mutable_file()->set_name(name);
  model.mutable_file()->set_path(path);
  model.mutable_file()->set_quant(quant);
  model.mutable_file()->set_bytes(bytes);
  return model;
}

wire::ListKnownModelsResponse KnownModels(const std::vector<wire::KnownModel>& models) {
  wire::ListKnownModelsResponse known;
  known.mutable_models()->Assign(models.begin(), models.end());
  return known;
}

// Where no node has a file that is not loaded.
absl::StatusOr<const wire::ModelStatus*> FindModelOf(const std::vector<wire::ModelStatus>& models,
                                                     absl::string_view text, ModelNaming naming) {
  const auto found = FindModelOrFile(models, {}, text, naming);
  if (!found.ok()) return found.status();
  return found->loaded;
}

const std::vector<wire::KnownModel> kKnown = {
    Known("hf:Org/Repo:Q4_K_M", "/hf/m-Q4_K_M.gguf", "Q4_K_M", 4),
    Known("hf:Org/Repo:Q8_0", "/hf/m-Q8_0.gguf", "Q8_0", 8),
    Known("ollama:tiny:latest", "/ollama/blobs/sha256-0a"),
    Known("ollama:user/big:8b", "/ollama/blobs/sha256-0b"),
    Known("mistral-q4", "/models/mistral-q4.gguf")};

// The path of what is known and not loaded; else the error's code and message.
std::string PathMeant(absl::string_view text) {
  const auto known = KnownModels(kKnown);
  const auto found = FindModelOrFile({}, known, text, {});
  if (!found.ok()) return found.status().ToString();
  return found->known == nullptr ? "loaded" : found->known->file().path();
}

TEST(FindModelOrFile, KnowsFilesAsTheirHubsNameThem) {
  for (const char* text :
       {"hf:Org/Repo:Q4_K_M", "Org/Repo:q4_k_m", "hf.co/org/repo:Q4_K_M",
        "huggingface.co/Org/Repo:Q4_K_M", "m-q4_k_m", "M-Q4_K_M.gguf", "/hf/m-Q4_K_M.gguf"}) {
    EXPECT_EQ(PathMeant(text), "/hf/m-Q4_K_M.gguf") << text;
  }
  for (const char* text : {"ollama:tiny:latest", "tiny:latest", "tiny", "ollama:tiny", "TINY"}) {
    EXPECT_EQ(PathMeant(text), "/ollama/blobs/sha256-0a") << text;
  }
  EXPECT_EQ(PathMeant("user/big:8b"), "/ollama/blobs/sha256-0b");
  for (const char* text : {"mistral-q4", "Mistral-Q4", "mistral-q4:latest", "mistral-q4.gguf"}) {
    EXPECT_EQ(PathMeant(text), "/models/mistral-q4.gguf") << text;
  }
}

TEST(FindModelOrFile, ARepositoryMeansItsBestQuant) {
  EXPECT_EQ(PathMeant("hf:org/repo"), "/hf/m-Q4_K_M.gguf");
  EXPECT_EQ(PathMeant("Org/Repo:Q8_0"), "/hf/m-Q8_0.gguf");
  EXPECT_THAT(PathMeant("Org/Repo:Q2_K"), ::testing::StartsWith("NOT_FOUND"));
}

TEST(FindModelOrFile, AnUnknownNameListsWhatIsNear) {
  EXPECT_THAT(PathMeant("mistral-q5"), ::testing::HasSubstr("near are: mistral-q4"));
  EXPECT_THAT(PathMeant("tyni:latest"), ::testing::HasSubstr("NOT_FOUND"));
  EXPECT_THAT(PathMeant("ollama:tyny:latest"),
              ::testing::HasSubstr("near are: ollama:tiny:latest"));
  EXPECT_THAT(PathMeant("gpt-4o"), ::testing::HasSubstr("none is loaded"));
  for (const std::string& text : {std::string(10'000, 'a'), std::string("\0\x01", 2),
                                  std::string("../../etc/passwd"), std::string("\xff\xfe")}) {
    EXPECT_THAT(PathMeant(text), ::testing::StartsWith("NOT_FOUND")) << text;
  }
}

TEST(FindModelOrFile, AnAliasIsAName) {
  wire::KnownModel aliased = Known("mistral-q4", "/models/mistral-q4.gguf");
  aliased.mutable_file()->add_aliases("fast");
  const auto known = KnownModels({kKnown[0], aliased});
  EXPECT_EQ(FindModelOrFile({}, known, "fast", {})->known, &known.models(1));
}

TEST(FindModelOrFile, SeveralFilesOfAStemAreNamedInTheError) {
  const auto known = KnownModels({Known("a", "/x/m.gguf"), Known("b", "/y/m.gguf")});
  EXPECT_THAT(FindModelOrFile({}, known, "m", {}),
              StatusIs(absl::StatusCode::kInvalidArgument, ::testing::HasSubstr("a, b")));
}

TEST(FindModelOrFile, AFileThatIsLoadedMeansTheLoadedModel) {
  std::vector<wire::ModelStatus> models = {Model("Mistral 7B", '\x11', "mistral-q4.gguf"),
                                           Model("Tiny", '\x22', "other.gguf")};
  models[1].mutable_source()->set_path("/ollama/blobs/sha256-0a");
  models[1].mutable_source()->set_node("01010101010101010101010101010101");
  const auto known = KnownModels(kKnown);
  EXPECT_EQ(FindModelOrFile(models, known, "ollama:tiny", {})->loaded, &models[1]);
  EXPECT_EQ(FindModelOrFile(models, known, "mistral-q4", {})->loaded, models.data());
  EXPECT_EQ(FindModelOrFile(models, known, "big:8b", {.any_model = true}).status().code(),
            absl::StatusCode::kNotFound);
}

// What a request names exactly comes before a loaded model that has the name without its tag.
TEST(FindModelOrFile, ATagThatIsKnownCounts) {
  const std::vector<wire::ModelStatus> models = {Model("user/big", '\x11', "big.gguf")};
  const auto known = KnownModels(kKnown);
  EXPECT_EQ(FindModelOrFile(models, known, "user/big:8b", {})->known, &known.models(3));
  EXPECT_EQ(FindModelOrFile(models, known, "user/big:70b", {})->loaded, models.data());
}

TEST(ListedModels, LoadedOnesComeFirstUnderTheirOwnNames) {
  std::vector<wire::ModelStatus> models = {Model("Mistral 7B", '\x11', "mistral-q4.gguf")};
  models[0].mutable_source()->set_node("01010101010101010101010101010101");
  models[0].set_state(wire::ModelStatus::SERVING);
  const auto listed = ListedModels(models, KnownModels({kKnown[0], kKnown[0], kKnown[4]}));
  ASSERT_EQ(listed.size(), 3u);
  EXPECT_EQ(listed[0].name(), "Mistral 7B");
  EXPECT_EQ(listed[1].name(), "hf:Org/Repo:Q4_K_M");
  EXPECT_EQ(listed[1].state(), wire::ModelStatus::UNKNOWN);
  EXPECT_EQ(listed[1].tensor_bytes(), 4u);
  EXPECT_EQ(listed[2].name(), "mistral-q4");
  EXPECT_EQ(listed[2].state(), wire::ModelStatus::SERVING);
}

TEST(FindModelOrFile, TakesCaseFilesAndTagsLoosely) {
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

TEST(FindModelOrFile, ALooseNameMeansOneModelAlone) {
  const std::vector<wire::ModelStatus> models = {Model("TINY", '\x11', "a.gguf"),
                                                 Model("Tiny", '\x22', "b.gguf"),
                                                 Model("tiny:latest", '\x33', "c.gguf")};
  EXPECT_EQ(FindModelOf(models, "Tiny", {}).value(), &models[1]);
  EXPECT_EQ(FindModelOf(models, "tiny:latest", {}).value(), &models[2]);
  EXPECT_THAT(FindModelOf(models, "tiny", {}), StatusIs(absl::StatusCode::kNotFound));
}

TEST(FindModelOrFile, AnyNameMeansTheOnlyModelIfAsked) {
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
