#include "transport/base/state_file.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/status/status_matchers.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;

TEST(StateFile, IsLockedByOneProcessWhateverSignalsComeToTheOthers) {
  const std::string path = testing::MakeTestFolder() + "/lock";
  auto lock = LockFile(path);
  ASSERT_THAT(lock, IsOk());
  struct sigaction action = {}, before = {};
  action.sa_handler = [](int) {};  // without SA_RESTART, so that waiting ends with EINTR
  sigaction(SIGUSR1, &action, &before);
  const pid_t waits = fork();
  if (waits == 0) {
    lock->Close();  // its copy, which would hold the lock as well
    _exit(LockFile(path).ok() ? 0 : 1);
  }
  sigaction(SIGUSR1, &before, nullptr);
  ASSERT_GT(waits, 0);
  for (int i = 0; i < 20; ++i) {
    absl::SleepFor(absl::Milliseconds(5));
    kill(waits, SIGUSR1);
    ASSERT_EQ(waitpid(waits, nullptr, WNOHANG), 0) << "it did not wait";
  }
  lock->Close();
  int status = 0;
  ASSERT_EQ(waitpid(waits, &status, 0), waits);
  EXPECT_EQ(status, 0);
}

TEST(StateFile, ThatIsOfNoUseIsSetAside) {
  const std::string path = testing::MakeTestFolder() + "/state";
  EXPECT_THAT(SetAside(path), StatusIs(absl::StatusCode::kNotFound));
  std::ofstream(path) << "damaged";
  const auto name = SetAside(path);
  ASSERT_THAT(name, IsOk());
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_TRUE(std::filesystem::exists(*name));
}

}  // namespace
}  // namespace strata
