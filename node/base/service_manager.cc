#include "node/base/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "absl/strings/numbers.h"
#include "transport/base/descriptor.h"

namespace strata {

void NotifyServiceManager(absl::string_view state) {
  const char* const path = std::getenv("NOTIFY_SOCKET");
  sockaddr_un to = {};
  const size_t bytes = path == nullptr ? 0 : std::strlen(path);
  if (bytes == 0 || bytes >= sizeof(to.sun_path)) return;
  to.sun_family = AF_UNIX;
  std::memcpy(to.sun_path, path, bytes);
  if (to.sun_path[0] == '@') to.sun_path[0] = '\0';  // an abstract name
  const Descriptor socket(::socket(AF_UNIX, SOCK_DGRAM, 0));
  if (!socket.valid()) return;
  // It may be gone; then nobody asks any more.
  sendto(socket.fd(), state.data(), state.size(), MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&to),
         static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + bytes));
}

absl::Duration WatchdogInterval() {
  const char* const text = std::getenv("WATCHDOG_USEC");
  int64_t us = 0;
  if (text == nullptr || !absl::SimpleAtoi(text, &us) || us <= 0) return absl::ZeroDuration();
  return absl::Microseconds(us);
}

}  // namespace strata
