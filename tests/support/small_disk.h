// A small file system in memory, which becomes full when a test wants it. It needs a mount, which
// is not allowed everywhere.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace strata::testing {

// A file system of `bytes` at a folder, as long as this lives. The thread that makes it, and those
// that it starts later, see it.
class SmallDisk {
 public:
  explicit SmallDisk(uint64_t bytes) : path_(MakeTestFolder()) {
    if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) {
      problem_ = strerror(errno);
      return;
    }
    // Hidden from other processes.
    if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", path_.c_str(), "tmpfs", 0, absl::StrCat("size=", bytes).c_str()) != 0) {
      problem_ = strerror(errno);
    }
  }
  ~SmallDisk() {
    if (problem_.empty()) umount2(path_.c_str(), MNT_DETACH);
  }
  const std::string& path() const { return path_; }
  const std::string& problem() const { return problem_; }  // why there is none; empty: there is

  // Writes a file until the file system is full.
  void Fill() {
    const int fd = open(filler().c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ASSERT_GE(fd, 0);
    const std::string bytes(1 << 20, 'x');
    size_t size = bytes.size();
    while (size > 0) {
      if (write(fd, bytes.data(), size) < 0) size /= 2;
    }
    close(fd);
  }
  void MakeRoom() { std::filesystem::remove(filler()); }

 private:
  std::string filler() const { return path_ + "/of_somebody_else"; }

  const std::string path_;
  std::string problem_;
};

}  // namespace strata::testing
