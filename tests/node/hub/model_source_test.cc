#include "node/hub/model_source.h"

#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

using Kind = ModelSource::Kind;

struct Case {
  const char* name;
  Kind kind;
  const char* repo;
  const char* revision;
  const char* file;
  const char* quant;
};

TEST(ModelSource, NamesOfHuggingFace) {
  for (const Case& c : {
           Case{"hf:org/repo", Kind::kHuggingFace, "org/repo", "main", "", ""},
           {"hf:org/repo:Q4_K_M", Kind::kHuggingFace, "org/repo", "main", "", "Q4_K_M"},
           {"hf:Org-1/My.Model_7B-GGUF:q8_0", Kind::kHuggingFace, "Org-1/My.Model_7B-GGUF", "main",
            "", "q8_0"},
           {"hf:org/repo:model.gguf", Kind::kHuggingFace, "org/repo", "main", "model.gguf", ""},
           {"hf:org/repo/a.gguf", Kind::kHuggingFace, "org/repo", "main", "a.gguf", ""},
           {"hf:org/repo/Q4/a-00001-of-00002.gguf", Kind::kHuggingFace, "org/repo", "main",
            "Q4/a-00001-of-00002.gguf", ""},
           {"hf.co/org/repo", Kind::kHuggingFace, "org/repo", "main", "", ""},
           {"hf.co/org/repo:Q5_K_M", Kind::kHuggingFace, "org/repo", "main", "", "Q5_K_M"},
           {"huggingface.co/org/repo", Kind::kHuggingFace, "org/repo", "main", "", ""},
           {"https://huggingface.co/org/repo", Kind::kHuggingFace, "org/repo", "main", "", ""},
           {"https://huggingface.co/org/repo/", Kind::kHuggingFace, "org/repo", "main", "", ""},
           {"HTTPS://HuggingFace.co/org/repo", Kind::kHuggingFace, "org/repo", "main", "", ""},
           {"https://hf.co/org/repo:Q8_0", Kind::kHuggingFace, "org/repo", "main", "", "Q8_0"},
           {"https://huggingface.co/org/repo/tree/v1", Kind::kHuggingFace, "org/repo", "v1", "",
            ""},
           {"https://huggingface.co/org/repo/resolve/main/a.gguf?download=true", Kind::kHuggingFace,
            "org/repo", "main", "a.gguf", ""},
           {"https://huggingface.co/org/repo/blob/refs%2Fpr%2F1/x/a%20b.gguf", Kind::kHuggingFace,
            "org/repo", "refs/pr/1", "x/a b.gguf", ""},
           {"org/repo", Kind::kHuggingFace, "org/repo", "main", "", ""},
           {"org/repo:Q4_K_M", Kind::kHuggingFace, "org/repo", "main", "", "Q4_K_M"},
           {"org/repo/a.gguf", Kind::kHuggingFace, "org/repo", "main", "a.gguf", ""},
           {"ollama:llama3.2", Kind::kOllama, "library/llama3.2", "", "", ""},
           {"ollama:someone/model", Kind::kOllama, "someone/model", "", "", ""},
       }) {
    const auto source = ParseModelSource(c.name);
    ASSERT_THAT(source, IsOk()) << c.name;
    EXPECT_EQ(source->kind, c.kind) << c.name;
    EXPECT_EQ(source->repo, c.repo) << c.name;
    EXPECT_EQ(source->revision, c.revision) << c.name;
    EXPECT_EQ(source->file, c.file) << c.name;
    EXPECT_EQ(source->quant, c.quant) << c.name;
  }
}

TEST(ModelSource, TagsOfOllama) {
  EXPECT_EQ(ParseModelSource("ollama:llama3.2")->tag, "latest");
  EXPECT_EQ(ParseModelSource("ollama:llama3.2:1b-q8_0")->tag, "1b-q8_0");
  EXPECT_EQ(ParseModelSource("ollama:llama3.2:1b")->Name(), "ollama:llama3.2:1b");
}

TEST(ModelSource, AddressesOfFiles) {
  for (const char* name : {"https://example.org/a/b.gguf", "http://192.168.1.5:8000/b.GGUF",
                           "https://example.org/b.gguf?X-Signature=abc"}) {
    const auto source = ParseModelSource(name);
    ASSERT_THAT(source, IsOk()) << name;
    EXPECT_EQ(source->kind, Kind::kUrl);
    EXPECT_EQ(source->url, name);
  }
  EXPECT_EQ(ParseModelSource("https://example.org/b.gguf?X-Signature=abc")->Name(),
            "https://example.org/b.gguf");
}

TEST(ModelSource, OnlyNamesWithoutAPrefixMayBePaths) {
  EXPECT_TRUE(ParseModelSource("org/repo")->may_be_a_path);
  EXPECT_FALSE(ParseModelSource("hf:org/repo")->may_be_a_path);
}

TEST(ModelSource, OthersAreLeftToOthers) {
  for (const std::string& name :
       {std::string("model.gguf"), std::string("./model.gguf"), std::string("../a/b.gguf"),
        std::string("/a/b.gguf"), std::string("~/a/b.gguf"), std::string("models/model.gguf"),
        std::string("some-model"), std::string("Strata demo"), std::string(""),
        std::string("a/b/c"), std::string("org/.."), std::string("my models/a"),
        std::string("a/b\nc"), std::string("//"), std::string(10'000, 'a'),
        std::string("C:\\models\\a.gguf")}) {
    EXPECT_THAT(ParseModelSource(name), StatusIs(absl::StatusCode::kNotFound)) << name;
  }
}

TEST(ModelSource, WhatAPrefixCannotHaveIsRefused) {
  for (const std::string& name :
       {std::string("hf:"),
        std::string("hf:repo"),
        std::string("hf:org/"),
        std::string("hf:/repo"),
        std::string("hf:org/.."),
        std::string("hf:../repo"),
        std::string("hf:org/re po"),
        std::string("hf:org/repo\n"),
        std::string("hf:org/repo\x01"),
        std::string("hf:org/repo\0x", 13),
        std::string("hf:org/repo:"),
        std::string("hf:org/repo:Q4/x"),
        std::string("hf:org/repo/../x.gguf"),
        std::string("hf:org/repo/x.bin"),
        std::string("hf:org//x.gguf"),
        std::string("hf:org/\xc3\xa9"),
        "hf:org/" + std::string(10'000, 'a'),
        "hf:org/" + std::string(200, 'a'),
        std::string("https://huggingface.co/org"),
        std::string("https://huggingface.co/org/repo/discussions"),
        std::string("https://huggingface.co/org/repo/resolve/main/x.safetensors"),
        std::string("https://huggingface.co/org/repo/resolve/main/%2e%2e/x.gguf"),
        std::string("https://huggingface.co/org/repo/resolve/main/%zz.gguf"),
        std::string("https://example.org/"),
        std::string("https://example.org/page.html"),
        std::string("https:///x.gguf"),
        std::string("https://user:password@example.org/x.gguf"),
        std::string("https://example.org/../x.gguf"),
        std::string("ollama:"),
        std::string("ollama:a/b/c"),
        std::string("ollama:../x"),
        std::string("ollama:x:"),
        std::string("ollama:x y")}) {
    const auto source = ParseModelSource(name);
    EXPECT_THAT(source, StatusIs(absl::StatusCode::kInvalidArgument)) << name;
    EXPECT_LT(source.status().message().size(), 500) << name;
  }
}

TEST(ModelSource, TheErrorSaysWhy) {
  EXPECT_THAT(ParseModelSource("hf:repo").status().message(), HasSubstr("ORG/REPO"));
  EXPECT_THAT(ParseModelSource("hf:a/b c").status().message(), HasSubstr("no spaces"));
  EXPECT_THAT(ParseModelSource("https://example.org/x.safetensors").status().message(),
              HasSubstr("convert_hf_to_gguf.py"));
}

}  // namespace
}  // namespace strata
