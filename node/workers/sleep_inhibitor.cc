#include "node/workers/sleep_inhibitor.h"

#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"

namespace strata {
namespace {

constexpr uint64_t kLookMs = 10'000;
constexpr int kCalmLooksMax = 6;

}  // namespace

std::vector<std::string> SleepInhibitor::SystemsCommand() {
#ifdef __APPLE__
  return {"/usr/bin/env", "caffeinate", "-i", "cat"};
#else
  return {"/usr/bin/env", "systemd-inhibit",    "--what=sleep:idle",
          "--who=Strata", "--why=requests run", "cat"};
#endif
}

SleepInhibitor::SleepInhibitor(EventLoop* loop, absl::AnyInvocable<uint64_t()> steps_done,
                               std::vector<std::string> command)
    : command_(std::move(command)), steps_done_(std::move(steps_done)) {
  timer_ = loop->StartTimer({.delay_ms = kLookMs, .repeat_ms = kLookMs}, [this] { Look(); });
}

void SleepInhibitor::Look() {
  const uint64_t steps = steps_done_();
  if (std::exchange(seen_, steps) != steps) {
    calm_looks_ = 0;
    if (!failed_) Hold();
  } else if (child_ != nullptr && ++calm_looks_ >= kCalmLooksMax) {
    child_.reset();
  }
}

void SleepInhibitor::Hold() {
  absl::Status status;
  if (child_ != nullptr && child_->WaitForExit(absl::ZeroDuration())) {
    status =
        absl::UnknownError(absl::StrCat(child_->exit().Words(), ": ", child_->exit().last_words));
    child_.reset();
  } else if (child_ == nullptr) {
    auto started = ChildProcess::Start({.program = command_.front(), .args = command_});
    status = started.status();
    if (started.ok()) child_ = *std::move(started);
  }
  if (status.ok()) return;
  failed_ = true;
  LOG(WARNING) << "this machine may fall asleep while requests run (--keep-awake): "
               << absl::StrCat(command_.size() > 1 ? command_[1] : command_[0], " ")
               << status.message();
}

}  // namespace strata
