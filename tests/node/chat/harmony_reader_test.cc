#include "node/chat/harmony_reader.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::ElementsAre;

struct Output {
  std::string thought, content;
  std::vector<std::string> calls;  // "name arguments"
};

Output Read(const std::string& text, size_t bytes, const std::string& prompt = "") {
  HarmonyReader reader(prompt, {{.name = "sum", .parameters = {}}});
  Output output;
  const auto take = [&output](const HarmonyReader::Piece& piece) {
    output.thought += piece.thought;
    output.content += piece.tools.content;
    for (const ToolPiece::Call& call : piece.tools.calls) {
      if (!call.name.empty()) output.calls.push_back(call.name + " ");
      ASSERT_LT(call.index, output.calls.size());
      output.calls[call.index] += call.arguments;
    }
  };
  for (size_t at = 0; at < text.size(); at += bytes) take(reader.Add(text.substr(at, bytes)));
  take(reader.Finish());
  EXPECT_EQ(reader.calls(), output.calls.size());
  return output;
}

struct Case {
  std::string text, thought, content;
  std::vector<std::string> calls;
};

TEST(HarmonyReader, TellsChannelsApartHoweverTheOutputComes) {
  const Case cases[] = {
      {"<|channel|>analysis<|message|>A greeting.<|end|><|start|>assistant<|channel|>final"
       "<|message|>Hello <b>!",
       "A greeting.",
       "Hello <b>!",
       {}},
      {"<|channel|>analysis<|message|>I add.<|end|><|start|>assistant<|channel|>commentary "
       "to=functions.sum <|constrain|>json<|message|>{\"a\": [1, \"<|\"]}<|call|>",
       "I add.",
       "",
       {"sum {\"a\": [1, \"<|\"]}"}},
      {" to=functions.sum<|channel|>commentary json<|message|>{\"a\":1}",
       "",
       "",
       {"sum {\"a\":1}"}},
      {"<|channel|>commentary<|message|>I add.<|end|><|start|>assistant<|channel|>commentary "
       "to=functions.sum<|message|>{}",
       "",
       "I add.",
       {"sum {}"}},
      {"<|channel|>commentary to=functions.other<|message|>{}", "", "{}", {}},
      {"Hello!", "", "Hello!", {}},
      {"<|channel|>final<|message|>cut <|en", "", "cut ", {}},
      {"<|channel|>ana", "", "", {}},
      {"<|channel|>analysis<|message|>a<|channel|>final<|message|>b", "a", "b", {}},
  };
  for (const Case& test : cases) {
    for (size_t bytes = 1; bytes <= test.text.size(); ++bytes) {
      const Output output = Read(test.text, bytes, "…<|start|>assistant");
      EXPECT_EQ(output.thought, test.thought) << bytes << ": " << test.text;
      EXPECT_EQ(output.content, test.content) << bytes << ": " << test.text;
      EXPECT_EQ(output.calls, test.calls) << bytes << ": " << test.text;
    }
  }
}

TEST(HarmonyReader, GoesOnWithTheMessageThatThePromptHasBegun) {
  const Output output = Read("Hello!", 2, "<|start|>assistant<|channel|>final<|message|>");
  EXPECT_EQ(output.content, "Hello!");
  EXPECT_EQ(Read("Hm.", 2, "<|start|>assistant<|channel|>analysis<|message|>").thought, "Hm.");
}

TEST(HarmonyReader, TellsWhereAThoughtEnds) {
  HarmonyReader reader("<|start|>assistant", {});
  reader.Add("<|channel|>analysis<|message|>Hm.");
  EXPECT_TRUE(reader.in_thought());
  EXPECT_EQ(reader.thought_end(), 0u);
  reader.Add("<|end|><|start|>");
  EXPECT_EQ(reader.thought_end(), std::string("<|channel|>analysis<|message|>Hm.<|end|>").size());
  EXPECT_FALSE(reader.in_thought());
  EXPECT_FALSE(reader.answers());
}

}  // namespace
}  // namespace strata
