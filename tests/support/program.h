// The strata program as a person or a script runs it. STRATA_PROGRAM names it (tests' CMake).
#pragma once

#include <sys/types.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "node/workers/child_process.h"
#include "tests/support/test_key.h"

namespace strata {

// A node of the tests' has no configuration but what a test gives it.
inline const bool kNoConfiguration = setenv("STRATA_CONFIG", "", /*overwrite=*/1) == 0;

class Program {
 public:
  // Long enough for anything that ends at all.
  static constexpr absl::Duration kLong = absl::Seconds(120);

  explicit Program(std::vector<std::string> args, std::vector<std::string> env = {}) {
    ChildProcess::Options options;
    options.program = STRATA_PROGRAM;
    options.args = {"strata"};
    options.args.insert(options.args.end(), args.begin(), args.end());
    options.env = std::move(env);
    options.on_stdout_line = [this](absl::string_view line) { Add(&out_, line); };
    options.on_stderr_line = [this](absl::string_view line) { Add(&err_, line); };
    options.stop_grace = absl::Seconds(30);
    auto started = ChildProcess::Start(std::move(options));
    EXPECT_TRUE(started.ok()) << started.status();
    process_ = *std::move(started);
  }
  ChildProcess* operator->() { return process_.get(); }

  int ExitStatus() {
    EXPECT_TRUE(process_->WaitForExit(kLong)) << "still running; stderr: " << err();
    EXPECT_EQ(process_->exit().signal, 0);
    return process_->exit().code;
  }
  // Waits for the first line of stdout.
  std::string FirstLine() {
    absl::MutexLock lock(mu_);
    const auto there = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !out_.empty(); };
    mu_.AwaitWithTimeout(absl::Condition(&there), kLong);
    return out_.empty() ? "" : out_[0];
  }
  // Waits for a line of stderr that contains `text`; false where none came in kLong.
  bool Says(absl::string_view text) {
    absl::MutexLock lock(mu_);
    const auto there = [this, text]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return absl::c_any_of(
          err_, [text](absl::string_view line) { return absl::StrContains(line, text); });
    };
    return mu_.AwaitWithTimeout(absl::Condition(&there), kLong);
  }
  std::string out() { return absl::StrJoin(out_lines(), "\n"); }
  std::vector<std::string> out_lines() {
    absl::MutexLock lock(mu_);
    return out_;
  }
  std::string err() { return absl::StrJoin(err_lines(), "\n"); }
  std::vector<std::string> err_lines() {
    absl::MutexLock lock(mu_);
    return err_;
  }

 private:
  void Add(std::vector<std::string>* lines, absl::string_view line) {
    absl::MutexLock lock(mu_);
    lines->emplace_back(line);
  }

  absl::Mutex mu_;
  std::vector<std::string> out_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> err_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<ChildProcess> process_;
};

}  // namespace strata
