#include "shard/sampling/gbnf.h"

#include <string>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAreArray;

// As in llama.cpp's manual.
constexpr char kJson[] = R"(# JSON
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
)";

absl::Status Check(const std::string& text) {
  const auto grammar = ParseGbnf(text);
  return grammar.ok() ? CheckGbnf(*grammar) : grammar.status();
}

constexpr char kArithmetic[] =
    "root ::= (expr \"=\" ws term \"\\n\")+\nexpr ::= term ([-+*/] term)*\n"
    "term ::= ident | num | \"(\" ws expr \")\" ws\nident ::= [a-z] [a-z0-9_]* ws\n"
    "num ::= [0-9]+ ws\nws ::= [ \\t\\n]*\n";
constexpr char kChess[] =
    "root ::= \"1. \" move \" \" move \"\\n\" ([1-9] [0-9]? \". \" move \" \" move \"\\n\")+\n"
    "move ::= (pawn | nonpawn | castle) [+#]?\n"
    "nonpawn ::= [NBKQR] [a-h]? [1-8]? \"x\"? [a-h] [1-8]\n"
    "pawn ::= ([a-h] \"x\")? [a-h] [1-8] (\"=\" [NBKQR])?\ncastle ::= \"O-O\" \"-O\"?";

TEST(Gbnf, CommonGrammarsPass) {
  const std::string cases[] = {
      kJson,
      kArithmetic,
      "root ::= item+\nitem ::= \"- \" [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ \"\\n\"",
      "root ::= \"a\"{0,2000} .",
      kChess,
      // The alternatives differ before the loop.
      "root ::= \"(+ \" root root \")\" | \"(* \" root root \")\" | [0-9]",
  };
  for (const std::string& text : cases) EXPECT_THAT(Check(text), IsOk()) << text;
}

std::vector<std::string> Lines(const std::string& text) { return absl::StrSplit(text, '\n'); }

TEST(Gbnf, PrintedGrammarsParseToTheSame) {
  const auto grammar = ParseGbnf(kJson);
  ASSERT_THAT(grammar, IsOk());
  const std::string printed = PrintGbnf(*grammar);
  const auto again = ParseGbnf(printed);
  ASSERT_THAT(again, IsOk()) << printed;
  // Rules come in the order in which they are named first.
  EXPECT_THAT(Lines(PrintGbnf(*again)), UnorderedElementsAreArray(Lines(printed)));
}

TEST(Gbnf, InvalidGrammarsNameTheLine) {
  const struct {
    std::string text;
    const char* words;
  } cases[] = {
      {"root ::= (", "line 1"},
      {"root ::= \"a\"\nx", "line 2"},
      {"root := \"a\"", "::="},
      {"root ::= \"a", "closing"},
      {"root ::= [a", "closing"},
      {"root ::= [z-a]", "before its start"},
      {"root ::= [a-z\\x39-\\x30]", "before its start"},
      {"root ::= \"\\q\"", "escape"},
      {"root ::= \"\\x1\"", "hexadecimal"},
      {"root ::= *", "nothing to repeat"},
      {"root ::= \"a\"*+", "nothing to repeat"},
      {"root ::= \"a\"*{", "nothing to repeat"},
      {"root ::= \"\\", "unknown escape"},
      {"root ::= \"a\"{3,2}", "before its start"},
      {"root ::= \"a\"{2001}", "2000"},
      {"root ::= \"a\"{99999999999}", "number"},
      {"root ::= \"a\" )", "end"},
      {"root ::= \"\xFF\"", "UTF-8"},
      {"root ::= \"\xE2\x82", "UTF-8"},
      {"root ::= other", "\"other\""},
      {"other ::= \"a\"", "\"root\""},
      {"", "\"root\""},
      {std::string("root ::= \"a\"\0", 13), "zero"},
      {absl::StrCat("root ::= ", std::string(100'000, '(')), "nests"},
      {std::string(1 << 20, 'a'), "bytes"},
  };
  for (const auto& test : cases) {
    EXPECT_THAT(Check(test.text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(test.words)))
        << test.text.substr(0, 40);
  }
}

std::string Doubling() {
  std::string text = "root ::= a40\na0 ::= \"x\"\n";
  for (int i = 1; i <= 40; ++i) {
    absl::StrAppend(&text, "a", i, " ::= a", i - 1, "? a", i - 1, "?\n");
  }
  return text;
}

// Two alternatives with n parses each after each letter: n * n pairs to distinguish.
std::string ManyPairs() {
  std::string text = "root ::= a root \"y\" | b root \"y\" | \"q\"\na ::= \"x\" d\nb ::= \"x\" e";
  for (const char* rule : {"d", "e"}) {
    absl::StrAppend(&text, "\n", rule, " ::= \"z\"");
    for (int i = 0; i < 900; ++i) absl::StrAppend(&text, " | \"x\" ", rule);
  }
  return text;
}

TEST(Gbnf, GrammarsThatWouldTakeForeverAreRefused) {
  const struct {
    std::string text;
    const char* words;
  } cases[] = {
      {"root ::= root \"a\" | \"b\"", "left recursive"},
      {"root ::= a\na ::= b? a \"c\" | \"d\"\nb ::= \"e\"", "left recursive"},
      {"root ::= (\"a\"?)*", "may be empty"},
      {Doubling(), "too many ways"},
      // libllama would keep 2^n parses after n letters.
      {"root ::= \"x\" root \"y\" | \"x\" root \"z\" | \"q\"", "ambiguous"},
      {"root ::= \"xw\" root \"y\" | \"xw\" root \"z\" | \"q\"", "ambiguous"},
      {"root ::= \"[\" root \"]\" | \"[\" (root \",\")* root \"]\" | \"0\"", "ambiguous"},
      {ManyPairs(), "ambiguous"},
      // The same for a single token of n letters.
      {"root ::= (\" \" | \"  \")* \"a\"", "ambiguous"},
      {"root ::= ([a-z]+)* \"1\"", "ambiguous"},
      {"root ::= (((\"a\"{1,1000}){1,1000}){1,1000}) \"b\"", "too large"},
  };
  for (const auto& test : cases) {
    EXPECT_THAT(Check(test.text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(test.words)))
        << test.text.substr(0, 60);
  }
}

TEST(Gbnf, FindsRulesThatNeverEnd) {
  const auto grammar =
      ParseGbnf("root ::= a | b\na ::= \"x\" a\nb ::= \"y\" (b | \"z\")\nc ::= \"c\" d\nd ::= a");
  ASSERT_THAT(grammar, IsOk());
  std::vector<std::string> names;
  for (const size_t rule : EndlessGbnfRules(*grammar)) names.push_back(grammar->rules[rule].name);
  EXPECT_THAT(names, ElementsAre("a", "c", "d"));
  EXPECT_THAT(EndlessGbnfRules(*ParseGbnf(kJson)), IsEmpty());
}

}  // namespace
}  // namespace strata
