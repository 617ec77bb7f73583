#include "node/chat/thoughts.h"

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

const ThoughtForm kThink = LearnThoughtForm({}, "");

struct Output {
  std::string thought, content;
  bool operator==(const Output&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Output& output) {
  return out << "thought \"" << output.thought << "\", content \"" << output.content << "\"";
}

Output Split(const ThoughtSplitter::Options& options, const std::string& text, size_t bytes) {
  ThoughtSplitter splitter(options);
  Output output;
  const auto take = [&output](const ThoughtSplitter::Piece& piece) {
    output.thought += piece.thought;
    output.content += piece.content;
  };
  for (size_t at = 0; at < text.size(); at += bytes) take(splitter.Add(text.substr(at, bytes)));
  take(splitter.Finish());
  return output;
}

struct Case {
  ThoughtSplitter::Options options;
  std::string text;
  Output output;
};

TEST(ThoughtSplitter, SplitsHoweverTheOutputComes) {
  const ThoughtForm brackets = LearnThoughtForm({}, "{{ '[THINK]' }}…{{ '[/THINK]' }}");
  const ThoughtForm channel = LearnThoughtForm({}, "<|channel>thought\n <channel|>");
  const Case cases[] = {
      {{.form = kThink},
       "<think>\nHm, a greeting.\n</think>\n\nHello!",
       {"Hm, a greeting.", "Hello!"}},
      {{.form = kThink, .begins_open = true},
       "Hm, a <b> greeting.\n\nYes.\n</think>\n\nHello!",
       {"Hm, a <b> greeting.\n\nYes.", "Hello!"}},
      {{.form = kThink, .begins_open = true}, "<think>\nHm.</think>Hello!", {"Hm.", "Hello!"}},
      {{.form = kThink}, "<think>\n\n</think>\n\nHello!", {"", "Hello!"}},
      {{.form = kThink}, "\n <think>a</think> <think>b</think>\nc", {"a\n\nb", "c"}},
      {{.form = kThink}, "Hello, <think>no</think>", {"", "Hello, <think>no</think>"}},
      {{.form = kThink}, "  Hello!", {"", "  Hello!"}},
      {{.form = kThink}, "<thin air", {"", "<thin air"}},
      {{.form = kThink}, "<think>cut </thi", {"cut", ""}},
      {{.form = kThink}, "<think>cut <", {"cut <", ""}},
      {{.form = kThink}, "<think>a</thinker> b</think>c", {"a</thinker> b", "c"}},
      {{.form = kThink, .splits = false}, "<think>a</think>b", {"", "<think>a</think>b"}},
      {{.form = brackets}, "[THINK]a[i] = 1[/THINK]b[0]", {"a[i] = 1", "b[0]"}},
      {{.form = channel}, "<|channel>thought\nHm.\n<channel|>Hello!", {"Hm.", "Hello!"}},
  };
  for (const Case& test : cases) {
    for (size_t bytes = 1; bytes <= test.text.size(); ++bytes) {
      EXPECT_EQ(Split(test.options, test.text, bytes), test.output) << bytes << ": " << test.text;
    }
  }
}

TEST(ThoughtSplitter, EmitsAThoughtAsItComes) {
  ThoughtSplitter splitter({.form = kThink});
  EXPECT_EQ(splitter.Add("<think>\nFirst").thought, "First");
  EXPECT_TRUE(splitter.in_thought());
  EXPECT_EQ(splitter.Add(" second").thought, " second");
  EXPECT_EQ(splitter.thought_end(), 0u);
  EXPECT_EQ(splitter.Add("\n</think>").thought, "");
  EXPECT_EQ(splitter.thought_end(), std::string("<think>\nFirst second\n</think>").size());
  EXPECT_FALSE(splitter.answers());
  EXPECT_EQ(splitter.Add("\n\nHi").content, "Hi");
  EXPECT_TRUE(splitter.answers());
}

TEST(ThoughtForm, IsLearnedFromAMessageThatShowsAThought) {
  const ThoughtForm seed = LearnThoughtForm(
      {.thought = "<bos>assistant\n<seed:think>Strata-Thought</seed:think>Strata-Words<eos>"}, "");
  EXPECT_EQ(seed.open, "<seed:think>");
  EXPECT_EQ(seed.close_text, "</seed:think>");
  // Not known before.
  const ThoughtForm own = LearnThoughtForm(
      {.thought = "<a>\n<inner_voice>\nStrata-Thought\n</inner_voice>\n\nStrata-Words</a>",
       .plain = "<a>\nStrata-Words</a>"},
      "");
  EXPECT_EQ(own.open, "<inner_voice>");
  EXPECT_EQ(own.close, "</inner_voice>");
  EXPECT_EQ(own.close_text, "\n</inner_voice>\n\n");
  EXPECT_TRUE(own.is_taught);
}

TEST(ThoughtForm, IsLearnedFromTheTemplatesTextWhereTheHistoryHasNone) {
  const ThoughtForm form = LearnThoughtForm({.thought = "assistant: Strata-Words"},
                                            "{{ content.split('</think>')[-1] }}");
  EXPECT_EQ(form.close, "</think>");
  EXPECT_TRUE(form.is_taught);
  EXPECT_FALSE(LearnThoughtForm({}, "{{ messages }}").is_taught);
}

TEST(ThoughtForm, EndsAsAMessageWithoutAThoughtShows) {
  for (const char* plain : {"<a></think>Strata-Words<e>", "<a><think></think>Strata-Words<e>"}) {
    EXPECT_EQ(LearnThoughtForm({.plain = plain}, "</think>").close_text, "</think>") << plain;
  }
  EXPECT_EQ(LearnThoughtForm({.plain = "</think>b Strata-Words"}, "</think>").close_text,
            "\n</think>\n\n");
}

TEST(ThoughtForm, MayHaveNoMarkBeforeAThought) {
  const ThoughtForm form =
      LearnThoughtForm({.thought = "<|assistant|>\nStrata-Thought\n[BEGIN ANSWER]\nStrata-Words",
                        .plain = "<|assistant|>\nStrata-Words"},
                       "");
  EXPECT_EQ(form.open, "");
  EXPECT_EQ(form.close, "[BEGIN ANSWER]");
  EXPECT_TRUE(form.IsOpenIn("<|assistant|>\nHere are my steps:\n"));
  EXPECT_EQ(Split({.form = form, .begins_open = true}, "Hm.\n[BEGIN ANSWER]\nHello!", 3),
            (Output{"Hm.", "Hello!"}));
}

TEST(ThoughtForm, TellsWhetherAPromptHasBegunOrEndedAThought) {
  EXPECT_TRUE(kThink.IsOpenIn("<assistant><think>\n"));
  EXPECT_FALSE(kThink.IsOpenIn("say <think> to think<assistant>"));
  EXPECT_TRUE(kThink.MayFollow("<assistant>"));
  EXPECT_FALSE(kThink.MayFollow("<assistant><think>\n\n</think>\n\n"));
}

}  // namespace
}  // namespace strata
