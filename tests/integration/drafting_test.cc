// A model that another loaded model drafts for.
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/two_nodes.h"
#include "tests/support/program.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::strata::testing::HttpReply;
using ::testing::HasSubstr;

// A model of 24 layers over both nodes that writes the demo model's text, which therefore drafts
// rightly for it, and in less time.
class Drafting : public testing::TwoNodes {
 protected:
  void SetUp() override {
    const std::string command =
        absl::StrCat("python3 ", STRATA_HEAVY_MODEL, " ", STRATA_DEMO_MODEL, " ", heavy_, " 0.1");
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
    ASSERT_NO_FATAL_FAILURE(TwoNodes::SetUp());
  }
  // A text that is drawn; `speculate` empty: as the model was loaded.
  Json Complete(size_t node, const std::string& speculate = "") {
    Json request = {{"model", "Strata demo, heavy"},
                    {"prompt", "The ship"},
                    {"max_tokens", 200},
                    {"temperature", 0.8},
                    {"seed", 7},
                    {"ignore_eos", true}};
    if (!speculate.empty()) request["speculate"] = speculate;
    const HttpReply reply = Post(node, "/v1/completions", request);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body, nullptr, /*allow_exceptions=*/false);
  }
  static std::string TextOf(const Json& completion) {
    return completion["choices"][0]["text"].get<std::string>();
  }
  static uint64_t AcceptedOf(const Json& completion) {
    return completion["usage"]["completion_tokens_details"].value("accepted_prediction_tokens", 0);
  }

  const std::string heavy_ = absl::StrCat(testing::MakeTestFolder(), "/heavy.gguf");
};

TEST_F(Drafting, ByAModelThatIsLoadedFirstChangesNoText) {
  const Json loaded =
      Run(0, {"load", heavy_, "--assign", "attic=0-11,cellar=12-23", "--seqs", "2", "--ctx", "512",
              "--draft", STRATA_DEMO_MODEL, "--speculate", "draft", "--json"});
  ASSERT_TRUE(loaded.is_object()) << loaded;
  EXPECT_EQ(loaded["draft"], "Strata demo");
  const Json plain = Complete(0, "off");
  EXPECT_EQ(AcceptedOf(plain), 0u);
  const Json drafted = Complete(1);
  EXPECT_EQ(TextOf(drafted), TextOf(plain));
  EXPECT_GT(AcceptedOf(drafted), 10u) << drafted["usage"];
  EXPECT_EQ(drafted["usage"]["completion_tokens_details"]["rejected_prediction_tokens"], 0);

  // Its loss costs speed alone, and it may come back.
  ASSERT_TRUE(Run(0, {"unload", "Strata demo", "--json"}).is_object());
  const Json without = Complete(0);
  EXPECT_EQ(TextOf(without), TextOf(plain));
  EXPECT_EQ(AcceptedOf(without), 0u);
  ASSERT_TRUE(Run(1, {"load", STRATA_DEMO_MODEL, "--ctx", "512", "--json"}).is_object());
  EXPECT_GT(AcceptedOf(Complete(0)), 10u);
}

TEST_F(Drafting, AModelCannotDraftItsOwnTokens) {
  ASSERT_TRUE(LoadOnBoth(2, 512).is_object());
  const auto again = Strata(0, {"load", STRATA_DEMO_MODEL, "--draft", "Strata demo"});
  EXPECT_EQ(again->ExitStatus(), 2);
  EXPECT_THAT(again->err(), HasSubstr("--draft: a model cannot draft its own tokens"));
  const auto unknown = Strata(0, {"load", STRATA_DEMO_MODEL, "--draft", "/nowhere/small.gguf"});
  EXPECT_NE(unknown->ExitStatus(), 0);
  EXPECT_THAT(unknown->err(), HasSubstr("/nowhere/small.gguf"));
}

}  // namespace
}  // namespace strata
