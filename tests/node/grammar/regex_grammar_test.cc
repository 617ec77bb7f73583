#include "node/grammar/regex_grammar.h"

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/gbnf_text.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;

TEST(RegexGrammar, HasTheTextsThatTheExpressionMatchesWhole) {
  const auto grammar = RegexGrammar("(yes|no)( \\d{1,3})?\\n");
  ASSERT_THAT(grammar, IsOk());
  EXPECT_THAT(CheckGbnf(*grammar), IsOk());
  const GbnfText texts(*grammar);
  for (const char* text : {"yes\n", "no 12\n"}) EXPECT_TRUE(texts.Reads(text)) << text;
  for (const char* text : {"yes", "maybe", "no 1234\n", " no\n"})
    EXPECT_FALSE(texts.Reads(text)) << text;
  for (const char* pattern : {"(", "a\\b", "^a$b", "(?:a|b)*a(?:a|b){30}"}) {
    EXPECT_THAT(RegexGrammar(pattern), StatusIs(absl::StatusCode::kInvalidArgument)) << pattern;
  }
}

}  // namespace
}  // namespace strata
