// A wall clock for the programs that this process starts, which may be set while they run. Linux,
// without sanitizers. STRATA_WALL_CLOCK_SHIFT names the preloaded library (tests' CMake).
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/log/check.h"
#include "absl/time/time.h"
#include "tests/support/temp_folder.h"

namespace strata::testing {

// Not thread-safe: it writes the environment.
class WallClockShift {
 public:
  WallClockShift() {
    const int fd = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && ftruncate(fd, sizeof(int64_t)) == 0);
    void* const at = mmap(nullptr, sizeof(int64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    close(fd);
    shift_ns_ = static_cast<int64_t*>(at);
  }
  ~WallClockShift() {
    unsetenv("LD_PRELOAD");
    munmap(shift_ns_, sizeof(int64_t));
  }
  WallClockShift(const WallClockShift&) = delete;
  WallClockShift& operator=(const WallClockShift&) = delete;

  // Programs that are started from now on have this clock.
  void Use() const {
    setenv("STRATA_TEST_WALL_CLOCK", path_.c_str(), 1);
    setenv("LD_PRELOAD", STRATA_WALL_CLOCK_SHIFT, 1);
  }
  // Sets the shift from the machine's own clock.
  void Set(absl::Duration shift) {
    __atomic_store_n(shift_ns_, absl::ToInt64Nanoseconds(shift), __ATOMIC_RELAXED);
  }

 private:
  const std::string path_ = MakeTestFolder() + "/shift";
  int64_t* shift_ns_ = nullptr;
};

}  // namespace strata::testing
