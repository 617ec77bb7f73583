// Signals to processes whose pids a test has read, and which may not exist.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include "gtest/gtest.h"

namespace strata::testing {

// Fails without a process: kill(0, …) would end the tests and their runner.
inline void SendSignal(pid_t pid, int signum) {
  ASSERT_GT(pid, 0) << "no process to send signal " << signum << " to";
  EXPECT_EQ(kill(pid, signum), 0) << pid;
}

}  // namespace strata::testing
