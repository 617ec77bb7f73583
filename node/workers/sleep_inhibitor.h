// Keeps the machine from going to sleep while its stages compute: systemd-inhibit(1) or
// caffeinate(8) runs beside the node for as long, and a minute more. Loop thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "node/workers/child_process.h"
#include "transport/base/event_loop.h"

namespace strata {

class SleepInhibitor {
 public:
  // Both hold as long as the program that they start, which ends with its stdin.
  static std::vector<std::string> SystemsCommand();

  // `steps_done` is called on the loop: a number that grows as stages compute. Where the command
  // fails that is logged once, and the machine sleeps as it would.
  SleepInhibitor(EventLoop* loop, absl::AnyInvocable<uint64_t()> steps_done,
                 std::vector<std::string> command = SystemsCommand());

  bool holds() const { return child_ != nullptr; }

 private:
  void Look();
  void Hold();

  const std::vector<std::string> command_;
  absl::AnyInvocable<uint64_t()> steps_done_;
  uint64_t seen_ = 0;  // steps
  int calm_looks_ = 0;
  bool failed_ = false;
  std::unique_ptr<ChildProcess> child_;  // while it holds
  std::unique_ptr<EventLoop::Handle> timer_;
};

}  // namespace strata
