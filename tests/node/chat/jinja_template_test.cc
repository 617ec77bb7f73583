#include "node/chat/jinja_template.h"

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

using Json = nlohmann::ordered_json;

absl::StatusOr<std::string> Render(const std::string& source, const std::string& variables = "{}") {
  const auto parsed = JinjaTemplate::Parse(source);
  if (!parsed.ok()) return parsed.status();
  return (*parsed)->Render(Json::parse(variables), absl::UnixEpoch());
}

// As transformers sets Jinja2 up; a plain environment gives other texts.
TEST(JinjaTemplate, HasTheSettingsOfHuggingFace) {
  EXPECT_THAT(Render("  {% if 1 %}\n a\n  {% endif %}\nb\n"), IsOkAndHolds(" a\nb"));
  EXPECT_THAT(Render("{{ {'b': '<é>', 'a': [1]} | tojson }}"),
              IsOkAndHolds(R"({"b": "<é>", "a": [1]})"));
  EXPECT_THAT(Render("{{ x | tojson(indent=1, sort_keys=true) }}", R"({"x":{"b":1,"a":2}})"),
              IsOkAndHolds("{\n \"a\": 2,\n \"b\": 1\n}"));
  EXPECT_THAT(Render("{{ ['é'] | tojson(ensure_ascii=true, separators=(',', ':')) }}"),
              IsOkAndHolds(R"(["\u00e9"])"));
  EXPECT_THAT(Render("{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}"
                     "{% break %}{% endfor %}"),
              IsOkAndHolds("1"));
  EXPECT_THAT(Render("{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}"
                     "{{ x }}"),
              IsOkAndHolds("21"));
  EXPECT_THAT(Render("{{ '<b>' }}{{ missing }}"), IsOkAndHolds("<b>"));
}

TEST(JinjaTemplate, VariablesAreThoseOfJson) {
  EXPECT_THAT(
      Render("{{ x }}", R"({"x":{"b":[1,-2,2.5,1e3,18446744073709551615],"a":[true,null,"é"]}})"),
      IsOkAndHolds("{'b': [1, -2, 2.5, 1000.0, 18446744073709551615], 'a': [True, None, 'é']}"));
}

TEST(JinjaTemplate, TellsTheTimeThatItIsGiven) {
  const auto parsed = JinjaTemplate::Parse("{{ strftime_now('%Y-%m') }}");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_THAT((*parsed)->Render(Json::object(), absl::FromUnixSeconds(1'700'000'000)),
              IsOkAndHolds("2023-11"));
}

TEST(JinjaTemplate, ErrorsAreTheTemplatesWords) {
  EXPECT_THAT(Render("{{ raise_exception('ask\nsomething') }}"),
              StatusIs(absl::StatusCode::kInvalidArgument, "ask something"));
  EXPECT_THAT(Render("{{ 1 + 'a' }}"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("TypeError: unsupported")));
  EXPECT_THAT(Render("{{ x.y.z }}"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'x' is undefined")));
  EXPECT_THAT(Render("a\n{% if %}"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("(line 2)")));
  EXPECT_THAT(Render("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("too deeply")));
  EXPECT_LT(Render("{{ raise_exception('x' * 100000) }}").status().message().size(), 400);
}

TEST(JinjaTemplate, KnowsWhatItReads) {
  const auto parsed = JinjaTemplate::Parse(
      "{% if tools is none %}{% endif %}{% set own = 1 %}{{ own }}{{ m.thinking }}"
      "{% if 'reasoning' in m %}{% endif %}");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_TRUE((*parsed)->UsesVariable("tools"));
  EXPECT_FALSE((*parsed)->UsesVariable("own"));
  EXPECT_FALSE((*parsed)->UsesVariable("thinking"));
  EXPECT_TRUE((*parsed)->UsesField("thinking"));
  EXPECT_TRUE((*parsed)->UsesField("reasoning"));
  EXPECT_FALSE((*parsed)->UsesField("tool_calls"));
}

TEST(JinjaTemplate, BytesThatAreNotUtf8DoNoHarm) {
  const auto parsed = JinjaTemplate::Parse("\xff{{ x }}");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_THAT((*parsed)->Render({{"x", "\xff"}}, absl::UnixEpoch()),
              IsOkAndHolds("\xef\xbf\xbd\xff"));
}

// What a template may not reach, though it could ask for it.
TEST(JinjaTemplate, ATemplateStaysInItsSandbox) {
  for (const char* source :
       {"{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ raise_exception.__globals__ }}",
        "{{ self.__init__.__globals__ }}", "{{ cycler.__init__.__globals__.os }}",
        "{{ strftime_now.__self__ }}", "{{ x.append(1) }}", "{{ x.clear() }}",
        "{{ '{0.__class__}'.format(1) }}", "{{ ('{0.__class__}' | attr('format'))(1) }}",
        "{% include '/etc/passwd' %}", "{% import 'os' as os %}{{ os }}"}) {
    const auto text = Render(source, R"({"x":[1]})");
    if (text.ok()) {
      EXPECT_EQ(*text, "") << source;
    }
  }
}

TEST(JinjaTemplate, ThreadsShareTheInterpreter) {
  const auto parsed = JinjaTemplate::Parse("{% for x in range(1000) %}{{ x + y }}{% endfor %}");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&parsed, i] {
      const Json variables = {{"y", i}};
      const auto first = (*parsed)->Render(variables, absl::UnixEpoch());
      for (int k = 0; k < 20; ++k) {
        EXPECT_EQ((*parsed)->Render(variables, absl::UnixEpoch()), first);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// For the rest of the process: the last test, in a process of its own.
TEST(JinjaTemplateDeathTest, OnceSealedTheInterpreterReachesNothing) {
  const auto seal_and_render = [] {
    if (!StartJinja().ok()) std::exit(2);
    SealJinja();
    const auto text = Render(
        "{{ [3, 1] | sort }}{{ 'a b c' | wordwrap(2) | length }}{{ {'a': 1} | pprint }}"
        "{{ lipsum(1, false) | length > 1 }}{{ 'x' | urlize }}{{ [1] | tojson(indent=1) }}"
        "{{ strftime_now('%Y') | length }}{% if 1 %}{{ [2, 1] | random > 0 }}{% endif %}");
    const auto refused = Render("{{ raise_exception('said') }}");
    std::exit(text.ok() && refused.status().message() == "said" ? 0 : 1);
  };
  EXPECT_EXIT(seal_and_render(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace strata
