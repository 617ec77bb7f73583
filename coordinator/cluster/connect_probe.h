// One attempt to connect to an address, for what the system says to it: whether somebody listens
// there. Nothing is sent. Loop thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "transport/base/event_loop.h"

namespace strata {

class ConnectProbe {
 public:
  // Calls `done` once on the loop, not from inside this call: with 0 when somebody listens, else
  // with an errno, ETIMEDOUT where nothing has come back by then and EINVAL where the address is
  // not a number and a port, since names cannot be looked up on a loop. It may destroy this, which
  // ends an attempt under way without a call.
  static std::unique_ptr<ConnectProbe> Start(EventLoop* loop, const std::string& address,
                                             int64_t timeout_ms,
                                             absl::AnyInvocable<void(int) &&> done);
  ~ConnectProbe();

  ConnectProbe(const ConnectProbe&) = delete;
  ConnectProbe& operator=(const ConnectProbe&) = delete;

 private:
  explicit ConnectProbe(absl::AnyInvocable<void(int) &&> done) : done_(std::move(done)) {}
  // 0: under way.
  int Connect(const std::string& address);
  void End(int error);

  absl::AnyInvocable<void(int) &&> done_;
  int fd_ = -1;
  std::unique_ptr<EventLoop::Handle> watch_;  // of fd_
  std::unique_ptr<EventLoop::Handle> timer_;
};

}  // namespace strata
