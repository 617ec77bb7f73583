// Captures the log while it lives: warnings and worse.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/log_severity.h"
#include "absl/base/thread_annotations.h"
#include "absl/log/log_entry.h"
#include "absl/log/log_sink.h"
#include "absl/log/log_sink_registry.h"
#include "absl/strings/match.h"
#include "transport/base/mutex.h"

namespace strata::testing {

class LogCapture final : public absl::LogSink {
 public:
  LogCapture() { absl::AddLogSink(this); }
  ~LogCapture() override { absl::RemoveLogSink(this); }

  void Send(const absl::LogEntry& entry) override {
    if (entry.log_severity() < absl::LogSeverity::kWarning) return;
    MutexLock lock(&mu_);
    lines_.emplace_back(entry.text_message());
    changed_.NotifyAll();
  }

  // The lines with `part`, as soon as there is one; none after half a minute.
  std::vector<std::string> WaitFor(const std::string& part) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    MutexLock lock(&mu_);
    for (;;) {
      std::vector<std::string> found = With(part);
      if (!found.empty() || !changed_.WaitUntil(&mu_, deadline)) return found;
    }
  }
  std::vector<std::string> Lines(const std::string& part = "") {
    MutexLock lock(&mu_);
    return With(part);
  }
  // The lines since the last Take().
  std::vector<std::string> Take() {
    MutexLock lock(&mu_);
    return std::exchange(lines_, {});
  }

 private:
  std::vector<std::string> With(const std::string& part) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::vector<std::string> found;
    for (const std::string& line : lines_) {
      if (absl::StrContains(line, part)) found.push_back(line);
    }
    return found;
  }

  Mutex mu_;
  CondVar changed_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mu_);
};

}  // namespace strata::testing
