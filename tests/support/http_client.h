// An HTTP client of raw bytes on a blocking socket, for tests: sends any bytes, also wrong ones and
// slowly, and reads the reply.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"

namespace strata::testing {

struct HttpReply {
  int status = 0;  // 0: none came
  std::string head;
  std::string body;  // chunks put together

  std::string Header(absl::string_view name) const {
    const std::string key = absl::StrCat("\r\n", absl::AsciiStrToLower(name), ": ");
    const std::string lower = absl::AsciiStrToLower(head);
    const size_t at = lower.find(key);
    if (at == std::string::npos) return "";
    const size_t from = at + key.size();
    return head.substr(from, head.find("\r\n", from) - from);
  }
};

class HttpClient {
 public:
  static constexpr int kLongMs = 60'000;

  struct Options {
    int receive_buffer_bytes = 0;  // 0: the system's
    int socket = -1;               // to be connected, and its own from then on
    const char* from = nullptr;  // an address of this machine's loopback, as another client has it
  };
  explicit HttpClient(uint16_t port) : HttpClient(port, Options()) {}
  HttpClient(uint16_t port, Options options)
      : fd_(options.socket >= 0 ? options.socket : socket(AF_INET, SOCK_STREAM, 0)) {
    const int bytes = options.receive_buffer_bytes;
    if (bytes > 0) setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
    if (options.from != nullptr) {
      sockaddr_in own = {};
      own.sin_family = AF_INET;
      inet_pton(AF_INET, options.from, &own.sin_addr);
      EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&own), sizeof(own)), 0) << options.from;
    }
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
  }
  ~HttpClient() { Close(); }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  bool connected() const { return connected_; }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

  // Ends its side of the connection; it can still read.
  void CloseSending() { shutdown(fd_, SHUT_WR); }

  // False: the other side has closed.
  bool Send(absl::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  bool Get(const std::string& path) {
    return Send(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  }
  bool Post(const std::string& path, const std::string& body) {
    return Send(absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: localhost\r\nContent-Type: ",
                             "application/json\r\nContent-Length: ", body.size(), "\r\n\r\n",
                             body));
  }

  // Reads up to and including `end`; where the connection ends before, all that came.
  std::string ReadUntil(absl::string_view end) {
    size_t at;
    while ((at = in_.find(end)) == std::string::npos) {
      if (!Receive()) return std::exchange(in_, {});
    }
    std::string read = in_.substr(0, at + end.size());
    in_.erase(0, read.size());
    return read;
  }
  std::string ReadToEnd() {
    while (Receive()) {
    }
    return std::exchange(in_, {});
  }
  std::string ReadBytes(size_t n) {
    while (in_.size() < n && Receive()) {
    }
    std::string read = in_.substr(0, n);
    in_.erase(0, read.size());
    return read;
  }

  HttpReply ReadHead() {
    HttpReply reply;
    reply.head = ReadUntil("\r\n\r\n");
    if (absl::StartsWith(reply.head, "HTTP/1.1 ")) reply.status = std::atoi(&reply.head[9]);
    return reply;
  }
  // The next chunk of a stream; empty: its end.
  std::string ReadChunk() {
    std::string size = ReadUntil("\r\n");
    size_t bytes = 0;
    if (!absl::SimpleHexAtoi(absl::StripSuffix(size, "\r\n"), &bytes)) return "";
    std::string chunk = ReadBytes(bytes);
    ReadBytes(2);
    return chunk;
  }
  HttpReply Read() {
    HttpReply reply = ReadHead();
    size_t length = 0;
    if (reply.Header("transfer-encoding") == "chunked") {
      for (std::string chunk; !(chunk = ReadChunk()).empty();) reply.body += chunk;
    } else if (absl::SimpleAtoi(reply.Header("content-length"), &length)) {
      reply.body = ReadBytes(length);
    }
    return reply;
  }

 private:
  bool Receive() {
    pollfd poll_fd = {.fd = fd_, .events = POLLIN, .revents = 0};
    if (poll(&poll_fd, 1, kLongMs) != 1) {
      ADD_FAILURE() << "nothing comes; so far: " << in_.substr(0, 1000);
      return false;
    }
    char bytes[16384];
    const ssize_t n = recv(fd_, bytes, sizeof(bytes), 0);
    if (n <= 0) return false;
    in_.append(bytes, static_cast<size_t>(n));
    return true;
  }

  int fd_;
  bool connected_ = false;
  std::string in_;
};

}  // namespace strata::testing
