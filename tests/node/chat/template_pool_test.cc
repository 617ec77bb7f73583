#include "node/chat/template_pool.h"

#include <signal.h>
#include <sys/types.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/sanitizer.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::strata::testing::MakeTestFolder;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Prompt = absl::StatusOr<ChatTemplate::Prompt>;

const TemplateTurns::Owner kOwner = {.model = "a model", .client = "somebody"};

constexpr char kUsual[] = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
constexpr char kEndless[] =
    "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}"
    "{% endfor %}{% endfor %}{% endfor %}";
// Parses quickly, and renders without end for messages that say "loop".
const std::string kEndlessOnRequest =
    absl::StrCat("{% for m in messages %}{{ m.content }}{% if m.content == 'loop' %}", kEndless,
                 "{% endif %}{% endfor %}");

TemplatePool::Options Limits() {
  TemplatePool::Options options;
  options.program = STRATA_PROGRAM;
  options.limits.time_ms = strata::testing::kHasAddressSanitizer ? 5'000 : 2'000;
  options.limits.memory_bytes = 256 << 20;
  return options;
}

// For tests of the time limit: AddressSanitizer keeps freed memory for a while.
TemplatePool::Options LimitsOfTime() {
  TemplatePool::Options options = Limits();
  if (strata::testing::kHasAddressSanitizer) options.limits.memory_bytes = 1 << 30;
  return options;
}

TemplateRequest MakeRequest(const std::string& source, const std::string& content = "Hi") {
  return {.source = {.text = source, .bos = "<s>", .eos = "</s>"},
          .messages = {{.role = "user", .content = content}},
          .tools = {},
          .now = absl::UnixEpoch()};
}

Prompt Render(TemplatePool* pool, TemplateRequest request,
              const TemplateTurns::Owner& owner = kOwner) {
  Prompt prompt;
  absl::Notification done;
  pool->Render(owner, std::move(request), [&](Prompt rendered) {
    prompt = std::move(rendered);
    done.Notify();
  });
  done.WaitForNotification();
  return prompt;
}

auto HasText(const std::string& text) {
  return IsOkAndHolds(Field(&ChatTemplate::Prompt::text, text));
}

TEST(TemplatePool, RendersTheSamePromptsAsInThisProcess) {
  TemplatePool pool(Limits());
  TemplateRequest request = MakeRequest(
      "{{ bos_token }}{% for t in tools or [] %}{{ t.function.name }};{% endfor %}{% for m in "
      "messages %}"
      "{{ m.content }}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}|"
      "{% endfor %}{{ strftime_now('%Y') }}{{ mood }}{{ add_generation_prompt }}");
  request.options = {.ends_with_opening = false, .variables = R"({"mood":"calm"})"};
  request.messages = {{.role = "user", .content = "2+2? \xc3\xa9"},
                      {.role = "assistant",
                       .content = "",
                       .calls = {{.id = "c1", .name = "sum", .arguments = R"({"a":2})"}}},
                      {.role = "tool", .content = "4", .call_id = "c1"}};
  request.tools.list.push_back({.name = "sum",
                                .json = R"({"type":"function","function":{"name":"sum"}})",
                                .parameters = {}});
  const auto here = ChatTemplate::Parse(request.source);
  ASSERT_TRUE(here.ok());
  const Prompt expected =
      (*here)->Render(request.messages, request.tools, request.now, request.options);
  ASSERT_TRUE(expected.ok()) << expected.status();
  EXPECT_THAT(expected->text, HasSubstr("calmFalse"));
  for (int i = 0; i < 2; ++i) {  // read; known
    const Prompt prompt = Render(&pool, request);
    ASSERT_TRUE(prompt.ok()) << prompt.status();
    EXPECT_EQ(prompt->text, expected->text);
    EXPECT_TRUE(prompt->has_bos);
  }
  request.tools.choice = ChatTools::Choice::kNone;
  const Prompt without = Render(&pool, request);
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_THAT(without->text, ::testing::Not(HasSubstr("sum;")));
}

TEST(TemplatePool, OneProcessServesSequentialRequests) {
  TemplatePool pool(Limits());
  EXPECT_EQ(pool.processes(), 0);
  for (int i = 0; i < 20; ++i) {
    EXPECT_THAT(Render(&pool, MakeRequest(kUsual, absl::StrCat(i))),
                HasText(absl::StrCat("[user]", i)));
  }
  EXPECT_EQ(pool.processes(), 1);
}

// As the kernel does it when memory is short.
TEST(TemplatePool, AnIdleProcessThatWasKilledIsNoFaultOfTheTemplate) {
  const std::string folder = MakeTestFolder(), pid_file = folder + "/pid";
  TemplatePool::Options options = Limits();
  options.program = folder + "/program";
  std::ofstream(options.program) << "#!/bin/sh\necho $$ > " << pid_file << "\nexec "
                                 << STRATA_PROGRAM << " \"$@\"\n";
  std::filesystem::permissions(options.program, std::filesystem::perms::owner_all);
  TemplatePool pool(options);
  ASSERT_THAT(Render(&pool, MakeRequest(kUsual)), HasText("[user]Hi"));
  pid_t pid = 0;
  std::ifstream(pid_file) >> pid;
  ASSERT_GT(pid, 0);
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  for (int i = 0; i < 2; ++i) EXPECT_THAT(Render(&pool, MakeRequest(kUsual)), HasText("[user]Hi"));
}

TEST(TemplatePool, ErrorMessagesOfATemplateAreReturned) {
  TemplatePool pool(Limits());
  EXPECT_THAT(Render(&pool, MakeRequest("{% if messages[0].content == 'Hi' %}"
                                        "{{ raise_exception('ask something') }}{% endif %}")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("ask something")));
  EXPECT_THAT(Render(&pool, MakeRequest("{% for m in %}")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cannot be read")));
  EXPECT_EQ(pool.processes(), 1);  // none has died
}

std::string Times(const std::string& text, int n) {
  std::string all;
  for (int i = 0; i < n; ++i) all += text;
  return all;
}

struct Hostile {
  const char* name;
  std::string source;
};
class HostileTemplate : public ::testing::TestWithParam<Hostile> {};

TEST_P(HostileTemplate, FailsItsOwnRequestOnly) {
  TemplatePool pool(Limits());
  ASSERT_THAT(Render(&pool, MakeRequest(kUsual)), HasText("[user]Hi"));
  const Prompt prompt = Render(&pool, MakeRequest(GetParam().source));
  EXPECT_THAT(
      prompt.status().message(),
      AllOf(StartsWith("the model's chat template"),
            AnyOf(HasSubstr("takes more than"), HasSubstr("needs more than"),
                  HasSubstr("too deeply"), HasSubstr("cannot be read"), HasSubstr("Range too big"),
                  HasSubstr("unsafe"), HasSubstr("may not do this"))));
  EXPECT_TRUE(absl::IsInvalidArgument(prompt.status())) << prompt.status();
  EXPECT_THAT(Render(&pool, MakeRequest(kUsual)), HasText("[user]Hi"));
}

INSTANTIATE_TEST_SUITE_P(
    All, HostileTemplate,
    ::testing::Values(
        Hostile{"HugeRange", "{% for a in range(2000000000) %}{% endfor %}"},
        Hostile{"LoopsInLoops", kEndless},
        Hostile{"DoubledString",
                "{% set n = namespace(s='xxxxxxxx') %}{% for i in range(60) %}"
                "{% set n.s = n.s + n.s %}{% endfor %}{{ n.s }}"},
        Hostile{"DoubledList",
                "{% set n = namespace(l=[1, 2, 3, 4]) %}{% for i in range(60) %}"
                "{% set n.l = n.l + n.l %}{% endfor %}{{ n.l }}"},
        Hostile{"RepeatedString", "{{ 'x' * 2000000000 }}{{ 'x' * 2000000000 }}"},
        Hostile{"EndlessOutput",
                "{% for a in range(100000000) %}{{ 'many words of many words' }}{% endfor %}"},
        Hostile{"RecursingMacro", "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}"},
        Hostile{"MacrosOfEachOther",
                "{% macro f(n) %}{{ g(n) }}{% endmacro %}{% macro g(n) %}{{ f(n) }}{% endmacro %}"
                "{{ f(0) }}"},
        Hostile{"DoublyRecursingMacro",
                "{% macro f(n) %}{% if n > 0 %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}"
                "{% endmacro %}{{ f(200) }}"},
        Hostile{"ListOfItself",
                "{% set n = namespace(l=[]) %}{% set x = n.l.append(n.l) %}{{ n.l }}"},
        Hostile{"DeepParentheses", "{{ " + Times("(", 120'000) + "1" + Times(")", 120'000) + " }}"},
        Hostile{"DeepLists", "{{ " + Times("[", 120'000) + Times("]", 120'000) + " }}"},
        Hostile{"DeepBlocks", Times("{%if 1%}", 14'000) + Times("{%endif%}", 14'000)},
        Hostile{"LongComment", "{#" + std::string(250'000, '#') + "{{"}),
    [](const auto& param) { return std::string(param.param.name); });

// Such sources need more than the stack of an ordinary thread.
TEST(TemplatePool, LongTokensInASourceAreParsed) {
  TemplatePool pool(Limits());
  EXPECT_THAT(Render(&pool, MakeRequest("{{ " + std::string(100'000, 'a') + " }}")), HasText(""));
  EXPECT_THAT(Render(&pool, MakeRequest("a{# " + std::string(100'000, ' ') + " #}b")),
              HasText("ab"));
  EXPECT_THAT(Render(&pool, MakeRequest("a" + std::string(100'000, ' ') + "{{- 1 }}")),
              HasText("a1"));
}

TEST(TemplatePool, ATemplateThatExceedsTheTimeWhileParsedIsNotParsedAgain) {
  TemplatePool pool(LimitsOfTime());
  const Prompt first = Render(&pool, MakeRequest(kEndless));
  EXPECT_THAT(first, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("takes more than")));
  const absl::Time began = absl::Now();
  for (int i = 0; i < 1000; ++i)
    EXPECT_EQ(Render(&pool, MakeRequest(kEndless)).status(), first.status());
  EXPECT_LT(absl::Now() - began, absl::Minutes(1));  // reading again takes it seconds each
  EXPECT_EQ(pool.processes(), 0);
}

TEST(TemplatePool, ASlowTemplateOccupiesOneProcessAtMost) {
  const TemplatePool::Options options = LimitsOfTime();
  TemplatePool pool(options);
  EXPECT_THAT(Render(&pool, MakeRequest(kEndlessOnRequest, "loop")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("takes more than")));
  // The template is not remembered as broken for one client's messages.
  EXPECT_THAT(Render(&pool, MakeRequest(kEndlessOnRequest)), HasText("Hi"));

  absl::BlockingCounter slow(3);
  std::atomic<int> ended = 0;
  for (int i = 0; i < 3; ++i) {
    pool.Render(kOwner, MakeRequest(kEndlessOnRequest, "loop"), [&](const Prompt&) {
      ++ended;
      slow.DecrementCount();
    });
  }
  // Of the same client: its other models do not wait for the slow one.
  const TemplateTurns::Owner other = {.model = "another model", .client = kOwner.client};
  for (int i = 0; i < 20; ++i) {
    EXPECT_THAT(Render(&pool, MakeRequest(kUsual), other), HasText("[user]Hi"));
  }
  EXPECT_LT(ended, 2);  // with all processes taken, two would have had to end first
  slow.Wait();
}

// No prompt's speed is known yet.
TEST(TemplatePool, UnknownSlowPromptsLeaveAProcessForAnotherModel) {
  TemplatePool pool(LimitsOfTime());
  constexpr int kClients = 4;
  absl::BlockingCounter slow(kClients);
  std::atomic<int> ended = 0;
  for (int i = 0; i < kClients; ++i) {
    pool.Render({.model = "slow", .client = absl::StrCat("client ", i)},
                MakeRequest(kEndlessOnRequest, "loop"), [&](const Prompt&) {
                  ++ended;
                  slow.DecrementCount();
                });
  }
  for (int i = 0; i < 20; ++i) {
    EXPECT_THAT(Render(&pool, MakeRequest(kUsual), {.model = "good", .client = "client 0"}),
                HasText("[user]Hi"));
  }
  EXPECT_LT(ended, kClients);
  slow.Wait();
}

TEST(TemplatePool, FailsWithUnavailableWhenTooManyWait) {
  TemplatePool::Options options = Limits();
  options.processes_max = 1;
  options.waiting_max = 1;
  TemplatePool pool(options);
  absl::BlockingCounter others(2);
  const auto count = [&](const Prompt&) { others.DecrementCount(); };
  pool.Render(kOwner, MakeRequest(kEndlessOnRequest, "loop"), count);
  while (pool.processes() == 0) absl::SleepFor(absl::Milliseconds(1));
  pool.Render(kOwner, MakeRequest(kUsual), count);
  EXPECT_THAT(Render(&pool, MakeRequest(kUsual)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("try again")));
  others.Wait();
}

TEST(TemplatePool, TheDestructorEndsAHangingTemplate) {
  bool called = false;
  const absl::Time began = absl::Now();
  {
    TemplatePool::Options options = Limits();
    options.limits.time_ms = 600'000;
    TemplatePool pool(options);
    pool.Render(kOwner, MakeRequest(kEndless), [&](const Prompt&) { called = true; });
    while (pool.processes() == 0) absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_FALSE(called);
  EXPECT_LT(absl::Now() - began, absl::Seconds(60));
}

TEST(TemplatePool, WithoutAProgramRenderIsUnavailable) {
  TemplatePool::Options options = Limits();
  options.program = "/no/such/program";
  TemplatePool pool(options);
  EXPECT_THAT(Render(&pool, MakeRequest(kUsual)), StatusIs(absl::StatusCode::kUnavailable));
}

TEST(TemplatePool, AWrongProgramIsNoTemplatesFault) {
  TemplatePool::Options options = Limits();
  options.program = "/bin/false";
  TemplatePool pool(options);
  EXPECT_THAT(Render(&pool, MakeRequest(kUsual)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("exited with status 1")));
}

// Contexts and macros hold each other, until the collector of garbage comes.
TEST(TemplatePool, AProcessThatKeepsMemoryIsReplaced) {
  TemplatePool::Options options = Limits();
  options.limits.memory_bytes = 100 << 20;
  TemplatePool pool(options);
  const std::string keeps = absl::StrCat("{% macro f(x) %}{{ x }}{% endmacro %}", kUsual);
  const std::string large(2 << 20, 'x');
  for (int i = 0; i < 55; ++i) {  // 110 MiB
    const Prompt prompt = Render(&pool, MakeRequest(keeps, large));
    ASSERT_TRUE(prompt.ok()) << i << ": " << prompt.status();
    EXPECT_EQ(prompt->text.size(), large.size() + 6);
  }
}

}  // namespace
}  // namespace strata
