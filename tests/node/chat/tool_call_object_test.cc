#include "node/chat/tool_call_object.h"

#include <string>

#include "gtest/gtest.h"
#include "node/chat/known_tool_calls.h"

namespace strata {
namespace {

using State = ToolCallObjectReader::State;

struct Output {
  State state;
  std::string name, arguments, rest;
};
Output Read(const std::string& text, size_t bytes) {
  ToolCallObjectReader reader(KnownToolCallForms()[0], "",
                              [](const std::string& name) { return name == "sum"; });
  Output output;
  std::string pending;
  for (size_t at = 0; at < text.size(); at += bytes) {
    pending += text.substr(at, bytes);
    output.state = reader.Read(&pending);
    output.arguments += reader.TakeArguments();
  }
  output.name = reader.name();
  output.rest = pending;
  return output;
}

TEST(ToolCallObjectReader, ReadsMembersInAnyOrder) {
  for (
      const char* text :
      {R"({"name": "sum", "arguments": {"a": "}\"{"}})",
       R"({"arguments": {"a": "}\"{"}, "name": "sum"})",
       R"({"type": "function", "id": "x", "function": {"name": "sum", "parameters": {"a": "}\"{"}}})",
       R"({"name": "sum", "arguments": {"a": "}\"{"} , "id": "abc"})",
       R"({"name":"sum","arguments":"{\"a\": \"}\\\"{\"}"})"}) {
    for (size_t bytes = 1; bytes <= std::string(text).size(); ++bytes) {
      const Output output = Read(text, bytes);
      EXPECT_EQ(output.state, State::kComplete) << text;
      EXPECT_EQ(output.name, "sum") << text;
      EXPECT_EQ(output.arguments, R"({"a": "}\"{"})") << bytes << ": " << text;
    }
  }
}

TEST(ToolCallObjectReader, RefusesWhatIsNoCall) {
  EXPECT_EQ(Read(R"({"answer": 1)", 1).state, State::kRefused);
  EXPECT_EQ(Read(R"({"name": "other", )", 1).state, State::kRefused);
  EXPECT_EQ(Read(R"({})", 1).state, State::kRefused);
}

TEST(ToolCallObjectReader, LeavesWhatIsBehindTheObject) {
  const Output output = Read(R"({"name": "sum"}]</tool>)", 100);
  EXPECT_EQ(output.arguments, "{}");
  EXPECT_EQ(output.rest, "]</tool>");
}

}  // namespace
}  // namespace strata
