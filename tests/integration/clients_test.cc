// The client libraries that people use, from the npm registry and unmodified, against two nodes:
// their checks are in tests/clients.
#include <memory>
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

using Clients = testing::ApiCluster;

constexpr int kSkipped = 77;

TEST_F(Clients, OfEveryDialect) {
  std::vector<std::string> lines;
  ChildProcess::Options options;
  options.program = STRATA_CLIENTS;
  options.args = {"clients", name_};
  for (const uint16_t port : ports_)
    options.args.push_back(absl::StrCat("http://127.0.0.1:", port));
  options.on_stdout_line = [&lines](absl::string_view line) { lines.emplace_back(line); };
  auto clients = ChildProcess::Start(std::move(options));
  ASSERT_TRUE(clients.ok()) << clients.status();
  ASSERT_TRUE((*clients)->WaitForExit(absl::Minutes(4))) << absl::StrJoin(lines, "\n");
  const ChildExit& exit = (*clients)->exit();
  if (exit.code == kSkipped) GTEST_SKIP() << exit.last_words;
  EXPECT_EQ(exit.code, 0) << exit.Words() << "\n" << absl::StrJoin(lines, "\n");
}

}  // namespace
}  // namespace strata
