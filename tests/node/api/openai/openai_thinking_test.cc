#include "node/api/openai/openai_thinking.h"

#include <optional>
#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "node/api/openai/openai_request.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;
using Json = nlohmann::json;

ApiRequest Read(const std::string& fields) {
  auto request = ParseChat(R"({"messages":[{"role":"user","content":"Hi"}],)" + fields + "}");
  EXPECT_THAT(request, IsOk()) << fields;
  return request.ok() ? *std::move(request) : ApiRequest();
}
Json Variables(const std::string& fields) {
  const std::string text = Read(fields).template_variables;
  return text.empty() ? Json() : Json::parse(text);
}

TEST(Thinking, IsTurnedOffInEveryDialect) {
  for (const char* fields :
       {R"("enable_thinking":false)", R"("think":false)", R"("thinking":{"type":"disabled"})",
        R"("reasoning_effort":"none")", R"("reasoning":{"enabled":false})",
        R"("reasoning":{"effort":"none"})", R"("thinking_budget":0)", R"("reasoning_budget":0)"}) {
    const ApiRequest request = Read(fields);
    const Json variables = Json::parse(request.template_variables);
    EXPECT_EQ(variables["enable_thinking"], false) << fields;
    EXPECT_EQ(variables["thinking"], false) << fields;
    EXPECT_EQ(request.thought_tokens_max, 0u) << fields;
  }
  EXPECT_EQ(Read(R"("chat_template_kwargs":{"enable_thinking":false})").thought_tokens_max, 0u);
}

TEST(Thinking, HasAnEffort) {
  for (const char* fields :
       {R"("reasoning_effort":"high")", R"("reasoning":{"effort":"high"})", R"("think":"high")"}) {
    const Json variables = Variables(fields);
    EXPECT_EQ(variables["reasoning_effort"], "high") << fields;
    EXPECT_EQ(variables["enable_thinking"], true) << fields;
  }
  EXPECT_EQ(Variables(R"("reasoning_effort":"minimal")")["reasoning_effort"], "low");
}

TEST(Thinking, HasABudget) {
  for (const char* fields :
       {R"("thinking":{"type":"enabled","budget_tokens":1024})", R"("thinking_budget":1024)",
        R"("reasoning":{"max_tokens":1024})", R"("thinking_token_budget":1024)"}) {
    EXPECT_EQ(Read(fields).thought_tokens_max, 1024u) << fields;
  }
  EXPECT_EQ(Read(R"("reasoning_budget":-1)").thought_tokens_max, std::nullopt);
  EXPECT_EQ(Read(R"("n":1)").thought_tokens_max, std::nullopt);
}

TEST(Thinking, TheTemplatesOwnVariablesWin) {
  const Json variables = Variables(
      R"("reasoning_effort":"high","chat_template_kwargs":{"reasoning_effort":"low","x":1})");
  EXPECT_EQ(variables["reasoning_effort"], "low");
  EXPECT_EQ(variables["x"], 1);
  EXPECT_TRUE(Variables(R"("n":1)").is_null());
}

TEST(Thinking, IsToldApartOrNot) {
  EXPECT_FALSE(Read(R"("reasoning_format":"none")").splits_thoughts);
  EXPECT_TRUE(Read(R"("reasoning_format":"deepseek")").splits_thoughts);
  EXPECT_FALSE(Read(R"("include_reasoning":false)").shows_thoughts);
  EXPECT_FALSE(Read(R"("reasoning":{"exclude":true})").shows_thoughts);
}

TEST(Thinking, WrongValuesAreRefusedByName) {
  for (const char* name : {"reasoning_effort", "reasoning", "think", "enable_thinking", "thinking",
                           "thinking_budget", "reasoning_format", "include_reasoning"}) {
    const auto request = ParseChat(Json({{"messages", {{{"role", "user"}, {"content", "Hi"}}}},
                                         {name, {{"x", 1.5}, {"type", 3}}}})
                                       .dump());
    if (std::string(name) == "reasoning") {
      EXPECT_THAT(request, IsOk());  // further members are passed over
      continue;
    }
    EXPECT_THAT(request, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(name)));
  }
}

TEST(Thinking, OfTheHistoryGoesToTheTemplate) {
  for (
      const char* message :
      {R"({"role":"assistant","content":"Hi","reasoning_content":"Hm."})",
       R"({"role":"assistant","content":"Hi","reasoning":"Hm."})",
       R"({"role":"assistant","content":[{"type":"thinking","thinking":"Hm."},{"type":"text","text":"Hi"}]})"}) {
    const auto request = ParseChat(std::string(R"({"messages":[)") + message +
                                   R"(,{"role":"user","content":"Go"}]})");
    ASSERT_THAT(request, IsOk()) << message;
    EXPECT_EQ(request->messages[0].reasoning, "Hm.") << message;
    EXPECT_EQ(request->messages[0].content, "Hi") << message;
  }
}

}  // namespace
}  // namespace strata
