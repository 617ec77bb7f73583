#include "node/hub/pull_progress.h"

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class PullProgressTest : public ::testing::Test {
 protected:
  std::string Printed() {
    std::string text(static_cast<size_t>(std::ftell(file_.get())), '\0');
    EXPECT_EQ(std::fseek(file_.get(), 0, SEEK_SET), 0);
    text.resize(std::fread(text.data(), 1, text.size(), file_.get()));
    return text;
  }
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_{std::tmpfile(), &std::fclose};
};

TEST_F(PullProgressTest, ShowsSpeedAndTimeLeft) {
  EXPECT_THAT(PullProgressText("m.gguf", 1 << 30, 3ull << 30, 35e6),
              AllOf(HasSubstr("m.gguf"), HasSubstr("33 %"), HasSubstr("1.0 GiB of 3.0 GiB"),
                    HasSubstr("35.0 MB/s"), HasSubstr("1:02 left")));
  EXPECT_THAT(PullProgressText("m", 0, 400'000'000'000, 1e7), HasSubstr("11:06:40 left"));
  EXPECT_THAT(PullProgressText("m", 0, 0, 0), Not(HasSubstr("left")));
}

TEST_F(PullProgressTest, PrintsALineForEachTenthWithoutATerminal) {
  {
    PullProgress progress(file_.get(), /*terminal=*/false, "m");
    for (uint64_t done = 0; done <= 1000; ++done) progress.Update(done, 1000);
  }
  const std::string text = Printed();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 10);
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
}

TEST_F(PullProgressTest, ANoteIsALineOfItsOwn) {
  {
    PullProgress progress(file_.get(), /*terminal=*/true, "m");
    progress.Update(1, 2);
    progress.Note("try\nagain");
    progress.Update(2, 2);
  }
  EXPECT_THAT(Printed(), AllOf(HasSubstr("\x1b[2Ktry\\nagain\n"), HasSubstr("100 %")));
}

}  // namespace
}  // namespace strata
