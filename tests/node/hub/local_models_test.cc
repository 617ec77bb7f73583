#include "node/hub/local_models.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

namespace fs = std::filesystem;
using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::Field;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class LocalModelsTest : public ::testing::Test {
 protected:
  // Returns its path.
  std::string Write(const std::string& path, const std::string& content = "GGUF model") {
    const fs::path file = fs::path(root_) / path;
    fs::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << content;
    return file.string();
  }
  std::vector<LocalModel> Find() const { return FindLocalModels(folders_); }
  absl::StatusOr<LocalModel> Choose(const std::string& name,
                                    std::optional<uint64_t> bytes_max = std::nullopt) const {
    return ChooseLocalModel(Find(), *ParseModelSource(name), bytes_max);
  }

  const std::string root_ = testing::MakeTestFolder();
  const ModelFolders folders_ = {.strata = root_ + "/strata",
                                 .hugging_face = root_ + "/hf",
                                 .ollama = root_ + "/ollama",
                                 .lm_studio = root_ + "/lm",
                                 .llama_cpp = root_ + "/llama",
                                 .others = {root_ + "/mine"}};
};

TEST_F(LocalModelsTest, FindsThoseOfEachProgram) {
  const std::string blob = Write("hf/models--org--repo/blobs/abc");
  fs::create_directories(root_ + "/hf/models--org--repo/snapshots/c0ffee");
  const std::string link = root_ + "/hf/models--org--repo/snapshots/c0ffee/m-Q8_0.gguf";
  fs::create_symlink(blob, link);
  const std::string ollama = Write("ollama/blobs/sha256-0a");
  Write("ollama/manifests/registry.ollama.ai/library/tiny/1b", R"({"layers": [{"mediaType":
      "application/vnd.ollama.image.model", "digest": "sha256:0a"}]})");
  const std::string lm = Write("lm/org/other/m-Q4_K_M.gguf");
  const std::string llama = Write("llama/org_third_m-Q2_K.gguf");
  const std::string own = Write("strata/huggingface.co/org/fourth/c0ffee/m-Q4_0.gguf");
  const auto path = [](const std::string& text) { return Field(&LocalModel::path, text); };
  const std::string other = Write("mine/sub/m.gguf");
  EXPECT_THAT(Find(), UnorderedElementsAre(path(link), path(ollama), path(lm), path(llama),
                                           path(own), path(other)));
  EXPECT_THAT(Choose("hf:org/repo"), IsOkAndHolds(path(link)));
  EXPECT_THAT(Choose("hf:Org/Repo:q8_0"), IsOkAndHolds(path(link)));
  EXPECT_THAT(Choose("hf:org/repo/m-Q8_0.gguf"), IsOkAndHolds(path(link)));
  EXPECT_THAT(Choose("https://huggingface.co/org/repo/resolve/c0ffee/m-Q8_0.gguf"),
              IsOkAndHolds(path(link)));
  EXPECT_THAT(Choose("ollama:tiny:1b"), IsOkAndHolds(path(ollama)));
  EXPECT_THAT(Choose("hf:org/other"), IsOkAndHolds(path(lm)));
  EXPECT_THAT(Choose("hf:org/third:Q2_K"), IsOkAndHolds(path(llama)));
  EXPECT_THAT(Choose("hf:org/fourth"), IsOkAndHolds(path(own)));
}

TEST_F(LocalModelsTest, IsFoundByItsPathItsNameOrItsShortName) {
  const std::string qwen = Write("hf/models--Qwen--Qwen3-8B-GGUF/snapshots/c0/m-Q8_0.gguf");
  const std::string tales = Write("llama/tales.gguf");
  const auto find = [&](const std::string& name) { return FindLocalModel(Find(), name); };
  const auto path = [](const std::string& text) { return Field(&LocalModel::path, text); };
  EXPECT_THAT(find(tales), IsOkAndHolds(path(tales)));
  EXPECT_THAT(find("Tales"), IsOkAndHolds(path(tales)));
  for (const char* name :
       {"qwen3-8b", "Qwen3-8B:Q8_0", "hf:qwen/qwen3-8b-gguf:q8_0", "Qwen/Qwen3-8B-GGUF"}) {
    EXPECT_THAT(find(name), IsOkAndHolds(path(qwen))) << name;
  }
  EXPECT_THAT(find("qwen3-8b:Q4_0"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(find("tale"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(find(std::string(10'000, 'a')), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(find("hf:../x"), StatusIs(absl::StatusCode::kInvalidArgument));
  // Of the same size it is the same; else nobody knows which is meant.
  Write("strata/x.org/tales.gguf");
  EXPECT_TRUE(find("tales").ok());
  const std::string larger = Write("strata/y.org/tales.gguf", "GGUF another");
  EXPECT_THAT(find("tales"),
              StatusIs(absl::StatusCode::kInvalidArgument, ::testing::HasSubstr(larger)));
  EXPECT_THAT(find(larger), IsOkAndHolds(path(larger)));
}

TEST_F(LocalModelsTest, WhatIsNotMeantIsNotHere) {
  Write("strata/huggingface.co/org/repo/c0ffee/m-Q4_0.gguf");
  for (const char* name :
       {"hf:org/repo:Q8_0", "hf:org/repo2", "hf:org/repo/x.gguf", "ollama:repo",
        "https://huggingface.co/org/repo/tree/v2", "https://x.org/m-Q4_0.gguf"}) {
    EXPECT_THAT(Choose(name), StatusIs(absl::StatusCode::kNotFound)) << name;
  }
}

TEST_F(LocalModelsTest, WhatIsNotWholeIsNotHere) {
  Write("strata/huggingface.co/org/repo/c0ffee/a.gguf.part");
  Write("strata/huggingface.co/org/repo/c0ffee/b.gguf", "<html>");
  Write("strata/huggingface.co/org/repo/c0ffee/c-00001-of-00002.gguf");
  fs::create_directories(root_ + "/hf/models--org--repo/snapshots/c0ffee");
  fs::create_symlink("../../blobs/gone", root_ + "/hf/models--org--repo/snapshots/c0ffee/m.gguf");
  Write("ollama/manifests/registry.ollama.ai/library/tiny/1b", R"({"layers": [{"mediaType":
      "application/vnd.ollama.image.model", "digest": "sha256:../../x"}, 5, {}]})");
  Write("ollama/manifests/registry.ollama.ai/library/tiny/2b", "{");
  Write("ollama/manifests/registry.ollama.ai/library/tiny/3b", R"({"layers": 5})");
  EXPECT_THAT(Find(), IsEmpty());
}

TEST_F(LocalModelsTest, ALinkedFileIsThereOnce) {
  const std::string path = Write("lm/org/repo/m-Q8_0.gguf");
  fs::create_directories(root_ + "/llama");
  fs::create_symlink(path, root_ + "/llama/org_repo_m-Q8_0.gguf");
  EXPECT_EQ(Find().size(), 1);
}

TEST_F(LocalModelsTest, TheCommitOfMainComesFirst) {
  Write("hf/models--org--repo/refs/main", "bbbb");
  Write("hf/models--org--repo/snapshots/aaaa/m-Q8_0.gguf", "GGUF old");
  const std::string main = Write("hf/models--org--repo/snapshots/bbbb/m-Q8_0.gguf", "GGUF new");
  EXPECT_THAT(Choose("hf:org/repo"), IsOkAndHolds(Field(&LocalModel::path, main)));
}

TEST_F(LocalModelsTest, OfSeveralTheBestThatFits) {
  Write("strata/huggingface.co/org/repo/c0ffee/m-Q4_0.gguf", "GGUF" + std::string(100, 'x'));
  const std::string q8 = Write("lm/org/repo/m-Q8_0.gguf", "GGUF" + std::string(200, 'x'));
  EXPECT_THAT(Choose("hf:org/repo", 1000), IsOkAndHolds(Field(&LocalModel::path, q8)));
  EXPECT_THAT(Choose("hf:org/repo", 10), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(LocalModelsTest, VariablesNameTheFolders) {
  for (const char* name :
       {"XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "OLLAMA_MODELS", "LLAMA_CACHE"}) {
    unsetenv(name);
  }
  setenv("HOME", root_.c_str(), 1);
  EXPECT_EQ(ModelFoldersFromEnvironment().strata, root_ + "/.cache/strata/models");
  EXPECT_EQ(ModelFoldersFromEnvironment().hugging_face, root_ + "/.cache/huggingface/hub");
  EXPECT_EQ(ModelFoldersFromEnvironment().ollama, root_ + "/.ollama/models");
  setenv("XDG_CACHE_HOME", "/cache", 1);
  EXPECT_EQ(ModelFoldersFromEnvironment().strata, "/cache/strata/models");
  setenv("HF_HOME", "/hf", 1);
  EXPECT_EQ(ModelFoldersFromEnvironment().hugging_face, "/hf/hub");
  setenv("HF_HUB_CACHE", "/hub", 1);
  setenv("OLLAMA_MODELS", "/o", 1);
  setenv("LLAMA_CACHE", "/l", 1);
  EXPECT_EQ(ModelFoldersFromEnvironment().hugging_face, "/hub");
  EXPECT_EQ(ModelFoldersFromEnvironment().ollama, "/o");
  EXPECT_EQ(ModelFoldersFromEnvironment().llama_cpp, "/l");
}

}  // namespace
}  // namespace strata
