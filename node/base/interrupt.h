// Handles Ctrl-C, SIGTERM and SIGHUP (EndSignals()) for a verb that must stop in order. A second
// signal ends the process, and its children with it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "transport/base/event_loop.h"

namespace strata {

class Interrupt {
 public:
  // Calls `on_interrupt` once, on a thread of its own. All that `on_interrupt` uses outlives this.
  explicit Interrupt(std::function<void()> on_interrupt);
  ~Interrupt();

  bool requested() const { return requested_; }

 private:
  std::atomic<bool> requested_{false};
  std::unique_ptr<EventLoop> loop_;
  std::vector<std::unique_ptr<EventLoop::Handle>> handles_;
  std::thread thread_;
};

}  // namespace strata
