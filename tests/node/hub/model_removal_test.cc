#include "node/hub/model_removal.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "node/hub/part_file.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

namespace fs = std::filesystem;
using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ModelRemovalTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& path, const std::string& content = "GGUF model") {
    const fs::path file = fs::path(root_) / path;
    fs::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << content;
    return file.string();
  }
  absl::StatusOr<ModelRemoval> Find(const std::string& name) { return FindRemoval(folders_, name); }

  const std::string root_ = testing::MakeTestFolder();
  const ModelFolders folders_ = {.strata = root_ + "/strata",
                                 .hugging_face = root_ + "/hf",
                                 .ollama = root_ + "/ollama",
                                 .lm_studio = root_ + "/lm",
                                 .llama_cpp = root_ + "/llama"};
};

TEST_F(ModelRemovalTest, RemovesAllPartsAndTheFoldersThatAreEmptyThen) {
  const std::string first = Write("strata/huggingface.co/org/repo/c0/Q4_0/m-00001-of-00002.gguf");
  const std::string second = Write("strata/huggingface.co/org/repo/c0/Q4_0/m-00002-of-00002.gguf");
  const std::string other = Write("strata/huggingface.co/org/repo/c0/m-Q8_0.gguf");
  const auto removal = Find("hf:org/repo:Q4_0");
  ASSERT_THAT(removal, IsOk());
  EXPECT_THAT(removal->files, ElementsAre(first, second));
  EXPECT_EQ(removal->freed_bytes, 20);
  EXPECT_THAT(removal->users, IsEmpty());
  EXPECT_THAT(Find(second)->files, ElementsAre(first, second)) << "any part means the whole";
  ASSERT_THAT(RemoveModel(folders_, *removal), IsOk());
  EXPECT_FALSE(fs::exists(fs::path(first).parent_path()));
  EXPECT_TRUE(fs::exists(other));
  ASSERT_THAT(RemoveModel(folders_, *Find("org/repo")), IsOk());
  EXPECT_TRUE(fs::exists(root_ + "/strata"));
  EXPECT_TRUE(fs::is_empty(root_ + "/strata"));
}

TEST_F(ModelRemovalTest, WhatMayBeSeveralIsNotRemoved) {
  Write("strata/huggingface.co/org/repo/c0/m-Q4_0.gguf");
  Write("strata/huggingface.co/org/repo/c0/m-Q8_0.gguf");
  Write("strata/huggingface.co/org/repo/c1/m-Q8_0.gguf");
  EXPECT_THAT(Find("org/repo"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("hf:org/repo:Q4_0"), HasSubstr("hf:org/repo:Q8_0"))));
  EXPECT_THAT(Find("hf:org/repo:Q8_0"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("/c1/m-Q8_0.gguf")));
  EXPECT_THAT(Find("hf:org/repo:q4_0"), IsOk());
}

TEST_F(ModelRemovalTest, OtherProgramsRemoveTheirOwn) {
  Write("hf/models--org--repo/snapshots/c0ffee/m-Q8_0.gguf");
  Write("ollama/blobs/sha256-0a");
  Write("ollama/manifests/registry.ollama.ai/library/tiny/1b", R"({"layers": [{"mediaType":
      "application/vnd.ollama.image.model", "digest": "sha256:0a"}]})");
  Write("lm/org/other/m-Q4_K_M.gguf");
  const std::string llama = Write("llama/tales.gguf");
  for (const auto& [name, command] :
       {std::pair("hf:org/repo", std::string("hf cache rm model/org/repo")),
        std::pair("ollama:tiny:1b", std::string("ollama rm tiny:1b")),
        std::pair("org/other", std::string("My Models")), std::pair("tales", llama)}) {
    EXPECT_THAT(Find(name), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(command)));
  }
  EXPECT_THAT(Find(llama), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(ModelRemovalTest, WhatIsNotHereIsNotRemoved) {
  Write("strata/huggingface.co/org/repo/c0/m-Q4_0.gguf");
  const std::string elsewhere = Write("elsewhere/m.gguf");
  for (const std::string& name :
       {std::string("hf:org/none"), std::string("qwen3-8b"), elsewhere, std::string("")}) {
    EXPECT_THAT(Find(name), StatusIs(absl::StatusCode::kNotFound)) << name;
  }
  EXPECT_THAT(Find(""), StatusIs(absl::StatusCode::kNotFound, HasSubstr("name is empty")));
}

TEST_F(ModelRemovalTest, LinksAreTakenIntoAccount) {
  const std::string path = Write("strata/huggingface.co/org/repo/c0/m-Q4_0.gguf");
  fs::create_directories(root_ + "/lm/org/repo");
  fs::create_symlink(path, root_ + "/lm/org/repo/m-Q4_0.gguf");
  EXPECT_THAT(Find("org/repo")->users, ElementsAre("LM Studio"));
  fs::create_hard_link(path, root_ + "/second");
  EXPECT_EQ(Find("org/repo")->freed_bytes, 0) << "it has another name";
  ASSERT_THAT(RemoveModel(folders_, *Find("org/repo")), IsOk());
  EXPECT_TRUE(fs::exists(root_ + "/second"));

  const std::string linked = Write("blob");
  fs::create_directories(fs::path(path).parent_path());
  fs::create_symlink(linked, path);
  EXPECT_EQ(Find("org/repo")->freed_bytes, 0);
  ASSERT_THAT(RemoveModel(folders_, *Find("org/repo")), IsOk());
  EXPECT_TRUE(fs::exists(linked)) << "the link alone is Strata's";
}

TEST_F(ModelRemovalTest, WhatWasNotFetchedToItsEndIsRemovedUnlessSomebodyFetchesIt) {
  const std::string folder = "strata/huggingface.co/org/repo/c0/";
  const std::string first = Write(folder + "m-Q4_0-00001-of-00003.gguf");
  const std::string second = root_ + "/" + folder + "m-Q4_0-00002-of-00003.gguf";
  Write(folder + "m-Q4_0-00002-of-00003.gguf.part", std::string(100, 'x'));
  Write(folder + "m-Q4_0-00002-of-00003.gguf.part.json",
        R"({"validator": "e", "bytes": 100, "missing": [[0, 10], [50, 60]]})");
  Write(folder + "m-Q4_0-00002-of-00003.gguf.part.json.new", "half wri");
  const std::string other = Write(folder + "m-Q8_0.gguf");

  const std::vector<UnfinishedModel> unfinished = FindUnfinishedModels(folders_);
  ASSERT_EQ(unfinished.size(), 1);
  EXPECT_EQ(unfinished[0].model.name, "hf:org/repo:Q4_0");
  EXPECT_EQ(unfinished[0].model.path, first);
  EXPECT_EQ(unfinished[0].model.variant.bytes, 0) << "of the third part nothing is known";
  EXPECT_EQ(unfinished[0].bytes_here, 10 + 80);
  EXPECT_FALSE(unfinished[0].is_running);

  for (const std::string& name : {std::string("hf:org/repo:Q4_0"), std::string("org/repo:q4_0"),
                                  first, second, second + ".part", second + ".part.json"}) {
    const auto removal = Find(name);
    ASSERT_THAT(removal, IsOk()) << name;
    EXPECT_TRUE(removal->is_unfinished);
    EXPECT_EQ(removal->freed_bytes, 90);
    EXPECT_THAT(removal->files, ElementsAre(first, second));
  }
  const ModelRemoval removal = *Find("hf:org/repo:Q4_0");
  {
    const auto fetches = PartFile::Open(second, [] { return false; }, [] {});
    ASSERT_THAT(fetches, IsOk());
    EXPECT_TRUE(FindUnfinishedModels(folders_)[0].is_running);
    EXPECT_THAT(RemoveModel(folders_, removal),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("another process is fetching " + second),
                               HasSubstr("or interrupt it"))));
    EXPECT_TRUE(fs::exists(first)) << "nothing is removed then";
  }
  ASSERT_THAT(RemoveModel(folders_, removal), IsOk());
  EXPECT_THAT(FindUnfinishedModels(folders_), IsEmpty());
  size_t left = 0;
  for (const auto& file : fs::directory_iterator(root_ + "/" + folder)) {
    EXPECT_EQ(file.path().string(), other);
    ++left;
  }
  EXPECT_EQ(left, 1);
}

TEST_F(ModelRemovalTest, UnfinishedOnesHaveTheirSizeEvenWithoutAState) {
  const std::string part = Write("strata/host/m-Q4_0.gguf.part", std::string(4096, 'x'));
  Write("strata/registry.ollama.ai/library/tiny/0a/1b.gguf.part.json",
        R"({"validator": "e", "bytes": 100, "missing": [[0, 100]]})");
  const std::vector<UnfinishedModel> unfinished = FindUnfinishedModels(folders_);
  ASSERT_EQ(unfinished.size(), 2);
  EXPECT_EQ(unfinished[0].bytes_here, 4096);
  EXPECT_EQ(unfinished[0].model.variant.bytes, 0);
  EXPECT_EQ(unfinished[1].model.name, "ollama:tiny:1b");
  EXPECT_EQ(unfinished[1].bytes_here, 0) << "there are no bytes, whatever the state says";
  ASSERT_THAT(RemoveModel(folders_, *Find(part)), IsOk());
  ASSERT_THAT(RemoveModel(folders_, *Find("ollama:tiny:1b")), IsOk());
  EXPECT_TRUE(fs::is_empty(root_ + "/strata"));
}

}  // namespace
}  // namespace strata
