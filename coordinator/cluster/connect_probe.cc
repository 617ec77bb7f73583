#include "coordinator/cluster/connect_probe.h"

#include <fcntl.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "transport/base/peer_addresses.h"

namespace strata {

std::unique_ptr<ConnectProbe> ConnectProbe::Start(EventLoop* loop, const std::string& address,
                                                  int64_t timeout_ms,
                                                  absl::AnyInvocable<void(int) &&> done) {
  auto connect_probe = std::unique_ptr<ConnectProbe>(
      new ConnectProbe(std::move(done)));  // the constructor is private
  ConnectProbe* const raw = connect_probe.get();
  const int error = raw->Connect(address);
  if (error == 0) {
    raw->watch_ = loop->WatchFd(raw->fd_, {.writable = true}, [raw](EventLoop::FdEvents) {
      int socket_error = 0;
      socklen_t size = sizeof socket_error;
      if (getsockopt(raw->fd_, SOL_SOCKET, SO_ERROR, &socket_error, &size) != 0) {
        socket_error = errno;
      }
      raw->End(socket_error);
    });
  }
  const auto wait_ms = error == 0 ? static_cast<uint64_t>(timeout_ms) : 0;
  raw->timer_ = loop->StartTimer({.delay_ms = wait_ms},
                                 [raw, error] { raw->End(error == 0 ? ETIMEDOUT : error); });
  return connect_probe;
}

ConnectProbe::~ConnectProbe() {
  watch_.reset();
  if (fd_ >= 0) close(fd_);
}

int ConnectProbe::Connect(const std::string& address) {
  const absl::StatusOr<HostPort> parsed = ParseHostPort(address);
  if (!parsed.ok()) return EINVAL;
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* info = nullptr;
  if (getaddrinfo(parsed->host.c_str(), absl::StrCat(parsed->port).c_str(), &hints, &info) != 0) {
    return EINVAL;
  }
  const absl::Cleanup free_info = [info] { freeaddrinfo(info); };
  fd_ = socket(info->ai_family, SOCK_STREAM, 0);
  if (fd_ < 0 || fcntl(fd_, F_SETFD, FD_CLOEXEC) != 0 || fcntl(fd_, F_SETFL, O_NONBLOCK) != 0) {
    return errno;
  }
  // A connection that is made at once is writable at once.
  if (connect(fd_, info->ai_addr, info->ai_addrlen) == 0 || errno == EINPROGRESS) return 0;
  return errno;
}

void ConnectProbe::End(int error) {
  watch_.reset();
  timer_.reset();
  std::move(std::exchange(done_, nullptr))(error);
}

}  // namespace strata
