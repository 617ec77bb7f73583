// The page in a real browser, against two nodes: its checks are in tests/page.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "node/workers/child_process.h"

namespace strata {
namespace {

constexpr int kSkipped = 77;

TEST(Page, InABrowser) {
  std::vector<std::string> lines;
  ChildProcess::Options child;
  child.program = STRATA_PAGE_TEST;
  child.args = {"page-test", STRATA_PROGRAM};
  child.on_stdout_line = [&lines](absl::string_view line) { lines.emplace_back(line); };
  auto test = ChildProcess::Start(std::move(child));
  ASSERT_TRUE(test.ok()) << test.status();
  ASSERT_TRUE((*test)->WaitForExit(absl::Minutes(8))) << absl::StrJoin(lines, "\n");
  const ChildExit& exit = (*test)->exit();
  if (exit.code == kSkipped) GTEST_SKIP() << exit.last_words;
  EXPECT_EQ(exit.code, 0) << exit.Words() << "\n" << absl::StrJoin(lines, "\n");
}

}  // namespace
}  // namespace strata
