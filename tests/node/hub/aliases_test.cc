#include "node/hub/aliases.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

namespace fs = std::filesystem;
using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

class AliasesTest : public ::testing::Test {
 protected:
  absl::Status Add(const std::string& name, const std::string& target) {
    return AddAlias(folder_, name, target, note_);
  }
  void Write(const std::string& text) { std::ofstream(path_, std::ios::binary) << text; }

  const std::string folder_ = testing::MakeTestFolder() + "/data";
  const std::string path_ = folder_ + "/aliases.json";
  std::vector<std::string> notes_;
  const std::function<void(const std::string&)> note_ = [this](const std::string& note) {
    notes_.push_back(note);
  };
};

TEST_F(AliasesTest, WhatIsAddedIsThereUntilItIsRemoved) {
  EXPECT_THAT(ReadAliases(folder_), IsOkAndHolds(IsEmpty()));
  ASSERT_THAT(Add("Fast", "hf:org/repo:Q4_K_M"), IsOk());
  ASSERT_THAT(Add("other", "/models/m.gguf"), IsOk());
  const auto aliases = ReadAliases(folder_);
  EXPECT_THAT(aliases, IsOkAndHolds(ElementsAre(Pair("fast", "hf:org/repo:Q4_K_M"),
                                                Pair("other", "/models/m.gguf"))));
  EXPECT_EQ(AliasTarget(*aliases, "FAST"), "hf:org/repo:Q4_K_M");
  EXPECT_EQ(AliasTarget(*aliases, "fas"), "");
  ASSERT_THAT(RemoveAlias(folder_, "fAst", note_), IsOk());
  EXPECT_THAT(ReadAliases(folder_), IsOkAndHolds(SizeIs(1)));
  EXPECT_THAT(RemoveAlias(folder_, "fast", note_), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(AliasesTest, BadNamesAreRefusedAndChangeNothing) {
  for (const std::string& name :
       std::vector<std::string>{"", "..", "a..b", "a b", "a\nb", "a/b", "-a", "a.gguf", "ä",
                                std::string(10'000, 'a'), std::string("a\0b", 3)}) {
    const absl::Status status = Add(name, "hf:org/repo");
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument)) << name;
    EXPECT_LT(status.message().size(), 300);
    EXPECT_THAT(std::string(status.message()), ::testing::Not(HasSubstr("\n")));
  }
  for (const std::string& target :
       std::vector<std::string>{"", "a\nb", "\xff", std::string(10'000, 'a')}) {
    EXPECT_THAT(Add("fast", target), StatusIs(absl::StatusCode::kInvalidArgument)) << target;
  }
  EXPECT_FALSE(fs::exists(path_));
}

TEST_F(AliasesTest, AnAliasOfAnAliasIsRefused) {
  EXPECT_THAT(Add("a", "A"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("itself")));
  ASSERT_THAT(Add("a", "hf:org/repo"), IsOk());
  EXPECT_THAT(Add("A", "hf:org/other"),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("hf:org/repo")));
  EXPECT_THAT(Add("b", "a"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("hf:org/repo")));
  // A loop that is begun at its other end.
  ASSERT_THAT(Add("c", "d"), IsOk());
  EXPECT_THAT(Add("d", "e"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("c stands for")));
  EXPECT_THAT(ReadAliases(folder_), IsOkAndHolds(SizeIs(2)));
}

TEST_F(AliasesTest, ADamagedFileIsSetAsideAndSaid) {
  fs::create_directories(folder_);
  const std::string many(2 << 20, ' ');
  for (const std::string& text : std::vector<std::string>{
           "", "{", "[]", "null", R"({"version": 1})", R"({"version": "1", "aliases": {}})",
           R"({"version": 1, "aliases": {"a": 5}})", R"({"version": 1, "aliases": {"../a": "b"}})",
           R"({"version": 1, "aliases": []})", R"({"version": 0, "aliases": {}})", many}) {
    Write(text);
    EXPECT_THAT(ReadAliases(folder_), StatusIs(absl::StatusCode::kDataLoss)) << text.substr(0, 60);
    EXPECT_TRUE(fs::exists(path_)) << "reading alone changes nothing";
    EXPECT_THAT(OpenAliases(folder_, note_), IsOkAndHolds(IsEmpty()));
    EXPECT_FALSE(fs::exists(path_));
    EXPECT_TRUE(fs::exists(path_ + ".unusable"));
  }
  EXPECT_THAT(notes_, SizeIs(11));
  EXPECT_THAT(Add("a", "hf:org/repo"), IsOk());
}

TEST_F(AliasesTest, AFileOfANewerVersionStaysAsItIs) {
  fs::create_directories(folder_);
  Write(R"({"version": 2, "aliases": {}, "more": 1})");
  EXPECT_THAT(Add("a", "hf:org/repo"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("newer")));
  EXPECT_TRUE(fs::exists(path_));
}

TEST_F(AliasesTest, NoneIsLostWhenSeveralAreAddedAtOnce) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int j = 0; j < 5; ++j) {
        EXPECT_THAT(AddAlias(folder_, absl::StrCat("a", i, "-", j), "hf:org/repo",
                             [](const std::string&) {}),
                    IsOk());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(ReadAliases(folder_), IsOkAndHolds(SizeIs(20)));
}

TEST_F(AliasesTest, AreFoundByTheModelsThatTheyStandFor) {
  LocalModel a = {.name = "hf:org/repo:Q4_0", .repo = "org/repo", .path = "/x/m-Q4_0.gguf"};
  a.variant = {.quant = "Q4_0", .parts = {{.name = "m-Q4_0.gguf"}}};
  LocalModel b = {.name = "tales", .path = "/x/tales.gguf"};
  b.variant = {.quant = "tales", .parts = {{.name = "tales.gguf"}}};
  const Aliases aliases = {{"one", "hf:org/repo"},
                           {"two", "HF:org/repo:q4_0"},
                           {"three", "/x/tales.gguf"},
                           {"four", "Tales"},
                           {"five", "hf:org/none"}};
  std::vector<LocalModel> models = {a, b};
  SetAliases(aliases, absl::MakeSpan(models));
  EXPECT_THAT(models[0].aliases, ElementsAre("one", "two"));
  EXPECT_THAT(models[1].aliases, ElementsAre("four", "three"));
}

}  // namespace
}  // namespace strata
