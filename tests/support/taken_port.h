// A port of 127.0.0.1 that is taken, by a listener that never answers.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "gtest/gtest.h"

namespace strata::testing {

class TakenPort {
 public:
  struct Options {
    uint16_t port = 0;    // 0: a free one
    bool listens = true;  // takes connections; else they are refused
  };
  explicit TakenPort(Options options) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    const int on = 1;
    setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(options.port);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    if (options.listens) {
      EXPECT_EQ(listen(fd_, 1), 0);
    }
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
  }
  TakenPort(const TakenPort&) = delete;
  ~TakenPort() { close(fd_); }

  uint16_t port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  const int fd_;
  uint16_t port_ = 0;
};

}  // namespace strata::testing
