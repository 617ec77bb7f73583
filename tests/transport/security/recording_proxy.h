// A proxy between a client and a server, for tests: forwards all bytes, and records the client's.
#pragma once

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"

namespace strata::testing {

// A connection to 127.0.0.1; reads end after a second without anything.
inline int ConnectTo(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  PCHECK(fd >= 0 && connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
  const timeval second = {.tv_sec = 1, .tv_usec = 0};
  PCHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second) == 0);
  return fd;
}

// Of one connection.
class RecordingProxy {
 public:
  explicit RecordingProxy(int server_port) {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in own = {};
    own.sin_family = AF_INET;
    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof own;
    PCHECK(listener_ >= 0 && bind(listener_, reinterpret_cast<sockaddr*>(&own), size) == 0 &&
           listen(listener_, 1) == 0 &&
           getsockname(listener_, reinterpret_cast<sockaddr*>(&own), &size) == 0);
    port_ = ntohs(own.sin_port);
    thread_ = std::thread([this, server_port] { Run(server_port); });
  }
  ~RecordingProxy() {
    if (thread_.joinable()) Said();
    close(listener_);
  }
  RecordingProxy(const RecordingProxy&) = delete;
  RecordingProxy& operator=(const RecordingProxy&) = delete;

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  // The client's bytes, once either side has closed the connection. Call it once.
  std::string Said() {
    thread_.join();
    return said_;
  }

 private:
  void Run(int server_port) {
    const int client = accept(listener_, nullptr, nullptr);
    PCHECK(client >= 0);
    const int server = ConnectTo(server_port);
    pollfd both[2] = {{.fd = client, .events = POLLIN, .revents = 0},
                      {.fd = server, .events = POLLIN, .revents = 0}};
    for (bool open = true; open;) {
      PCHECK(poll(both, 2, -1) > 0);
      for (int i = 0; i < 2; ++i) {
        if (both[i].revents == 0) continue;
        char bytes[16384];
        const ssize_t n = read(both[i].fd, bytes, sizeof bytes);
        open = open && n > 0;
        if (n <= 0) continue;
        if (i == 0) said_.append(bytes, static_cast<size_t>(n));
        open = send(both[1 - i].fd, bytes, static_cast<size_t>(n), MSG_NOSIGNAL) == n && open;
      }
    }
    close(client);
    close(server);
  }

  int listener_ = -1;
  int port_ = 0;
  std::string said_;  // the thread's
  std::thread thread_;
};

}  // namespace strata::testing
