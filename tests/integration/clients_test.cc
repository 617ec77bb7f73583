// The clients that people use, from the npm registry and unmodified, against two nodes: their
// checks are in tests/clients.
#include <cstdint>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "node/workers/child_process.h"
#include "tests/integration/api_cluster.h"

namespace strata {
namespace {

constexpr int kSkipped = 77;

// A template for tools, which agents need. Of each message it shows the beginning, so that prompts
// of 20,000 tokens cost no time.
constexpr char kAgentsTemplate[] = R"(
{%- if tools %}{{ '<|im_start|>system\n# Tools\n' }}{% for tool in tools %}{{ tool.function.name + '\n' }}{% endfor %}
{{- 'For each call: <tool_call>\n{"name": <name>, "arguments": <arguments>}\n</tool_call><|im_end|>\n' }}{% endif %}
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}
{%- if message.content is string %}{{ message.content[:200] }}{% endif %}
{%- for call in message.tool_calls or [] %}{{ '<tool_call>\n{"name": "' + call.function.name + '", "arguments": '
  + (call.function.arguments | tojson) + '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})";

class Clients : public testing::ApiCluster {
 protected:
  // scripts/clients OPTION… MODEL URL…; skips the test where the clients cannot be had.
  void RunClients(std::vector<std::string> options, absl::Duration limit) {
    std::vector<std::string> lines;
    ChildProcess::Options child;
    child.program = STRATA_CLIENTS;
    child.args = {"clients"};
    child.args.insert(child.args.end(), options.begin(), options.end());
    child.args.push_back(name_);
    for (const uint16_t port : ports_) {
      child.args.push_back(absl::StrCat("http://127.0.0.1:", port));
    }
    child.on_stdout_line = [&lines](absl::string_view line) { lines.emplace_back(line); };
    auto clients = ChildProcess::Start(std::move(child));
    ASSERT_TRUE(clients.ok()) << clients.status();
    ASSERT_TRUE((*clients)->WaitForExit(limit)) << absl::StrJoin(lines, "\n");
    const ChildExit& exit = (*clients)->exit();
    if (exit.code == kSkipped) GTEST_SKIP() << exit.last_words;
    EXPECT_EQ(exit.code, 0) << exit.Words() << "\n" << absl::StrJoin(lines, "\n");
  }
};

TEST_F(Clients, OfEveryDialect) { RunClients({}, absl::Minutes(4)); }

class AgentPrograms : public Clients {
 protected:
  uint32_t seqs() const override { return 4; }
  uint32_t n_ctx() const override { return 32768; }
  std::vector<std::string> LoadArgs() const override {
    const std::string path = absl::StrCat(folders_[0], "/agents.jinja");
    std::ofstream(path) << kAgentsTemplate;
    return {"--chat-template", path};
  }
};

TEST_F(AgentPrograms, CallToolsAndGoOn) { RunClients({"--programs"}, absl::Minutes(9)); }

}  // namespace
}  // namespace strata
