#include "node/base/interrupt.h"

#include <unistd.h>

#include <utility>

#include "node/base/process_setup.h"

namespace strata {

Interrupt::Interrupt(std::function<void()> on_interrupt) : loop_(EventLoop::Create()) {
  const auto on_signal = [this, on_interrupt = std::move(on_interrupt)] {
    if (requested_.exchange(true)) _exit(130);
    on_interrupt();
  };
  for (int signum : EndSignals()) {
    handles_.push_back(loop_->OnSignal(signum, on_signal));
  }
  thread_ = std::thread([this] { loop_->Run(); });
}

Interrupt::~Interrupt() {
  loop_->Post([this] { handles_.clear(); });
  loop_->Stop();
  thread_.join();
}

}  // namespace strata
