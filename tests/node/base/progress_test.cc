#include "node/base/progress.h"

#include <cstdio>
#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Bars that print into a file, and their output.
class ProgressBarsTest : public ::testing::Test {
 protected:
  std::string Printed() {
    std::string text(static_cast<size_t>(std::ftell(file_.get())), '\0');
    std::rewind(file_.get());
    text.resize(std::fread(text.data(), 1, text.size(), file_.get()));
    return text;
  }
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_{std::tmpfile(), &std::fclose};
};

TEST_F(ProgressBarsTest, PrintsEachRowOnceWithoutATerminal) {
  ProgressBars bars(file_.get(), /*terminal=*/false, {"node-1", "node-10"});
  for (uint64_t done = 0; done <= 1024; done += 64) bars.Update(0, done, 1024);
  bars.Update(1, 1, 3 << 20);
  bars.Finish();
  EXPECT_EQ(Printed(), "  node-1   1.0 KiB\n  node-10  3.0 MiB\n");
}

TEST_F(ProgressBarsTest, AlignsWideNames) {
  ProgressBars bars(file_.get(), /*terminal=*/false, {"台所", "Küche"});
  bars.Update(0, 1, 1);
  bars.Update(1, 1, 1);
  bars.Finish();
  EXPECT_EQ(Printed(), "  台所   1 B\n  Küche  1 B\n");
}

TEST_F(ProgressBarsTest, RedrawsInPlaceOnATerminal) {
  ProgressBars bars(file_.get(), /*terminal=*/true, {"a", "b"});
  bars.Update(0, 12, 24);
  bars.Update(0, 12, 24);  // nothing new to show
  bars.Update(0, 24, 24);
  bars.Finish();
  const std::string text = Printed();
  EXPECT_THAT(text, HasSubstr("\x1b[2A"));
  EXPECT_THAT(text, HasSubstr("████████████░░░░░░░░░░░░"));
  EXPECT_THAT(text, HasSubstr("████████████████████████"));
}

TEST_F(ProgressBarsTest, NeverShowsMoreThanAll) {
  ProgressBars bars(file_.get(), /*terminal=*/true, {"a"});
  bars.Update(0, 100, 10);
  bars.Update(0, 5, 0);
  EXPECT_THAT(Printed(), Not(HasSubstr("█████████████████████████")));
}

TEST(BytesString, TakesTheUnitThatFits) {
  EXPECT_EQ(BytesString(0), "0 B");
  EXPECT_EQ(BytesString(1023), "1023 B");
  EXPECT_EQ(BytesString(12582912), "12.0 MiB");
  EXPECT_EQ(BytesString(3ull << 40), "3.0 TiB");
  EXPECT_EQ(BytesString(UINT64_MAX), "16777216.0 TiB");
}

}  // namespace
}  // namespace strata
