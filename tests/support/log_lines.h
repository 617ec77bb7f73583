// What this process logs while one of these is there.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/log/log_entry.h"
#include "absl/log/log_sink.h"
#include "absl/log/log_sink_registry.h"
#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace strata::testing {

// The lines that have `what` in them. Thread-safe.
class LogLines final : public absl::LogSink {
 public:
  explicit LogLines(std::string what) : what_(std::move(what)) { absl::AddLogSink(this); }
  ~LogLines() override { absl::RemoveLogSink(this); }

  void Send(const absl::LogEntry& entry) override {
    if (!absl::StrContains(entry.text_message(), what_)) return;
    absl::MutexLock lock(mu_);
    lines_.emplace_back(entry.text_message());
  }

  // After the first has come, or half a minute.
  std::vector<std::string> Await() {
    absl::MutexLock lock(mu_);
    const auto any = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !lines_.empty(); };
    mu_.AwaitWithTimeout(absl::Condition(&any), absl::Seconds(30));
    return lines_;
  }

 private:
  const std::string what_;
  absl::Mutex mu_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mu_);
};

}  // namespace strata::testing
