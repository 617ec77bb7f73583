// A file descriptor that its owner closes on destruction. Moves only. Not thread-safe.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace strata {

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.Release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() { Close(); }

  bool valid() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }
  // Leaves errno as it is.
  void Close() {
    const int error = errno;
    if (valid()) close(Release());
    errno = error;
  }

 private:
  int fd_;
};

}  // namespace strata
