// One attempt to connect to an address, to see by the system's reply whether a process listens
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
  // Calls `done` once on the loop, not from inside this call: with 0 when a process listens, else
  // with an errno: ETIMEDOUT without a reply in time, EINVAL where the host is not a number, since
  // names cannot be looked up on a loop. `done` may destroy this object. Destroying it before ends
  // the attempt without a call.
  static std::unique_ptr<ConnectProbe> Start(EventLoop* loop, const std::string& address,
                                             int64_t timeout_ms,
                                             absl::AnyInvocable<void(int) &&> done);
  ~ConnectProbe();

  ConnectProbe(const ConnectProbe&) = delete;
  ConnectProbe& operator=(const ConnectProbe&) = delete;

 private:
  explicit ConnectProbe(absl::AnyInvocable<void(int) &&> done) : done_(std::move(done)) {}
  // 0: in progress.
  int Connect(const std::string& address);
  void End(int error);

  absl::AnyInvocable<void(int) &&> done_;
  int fd_ = -1;
  std::unique_ptr<EventLoop::Handle> watch_;  // of fd_
  std::unique_ptr<EventLoop::Handle> timer_;
};

}  // namespace strata
