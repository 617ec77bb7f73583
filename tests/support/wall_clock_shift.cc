// Preloaded into a program: its wall clock is the machine's, shifted by the current value of a file
// (wall_clock_shift.h), and waits until a time of it end at that time, as with a clock that was
// really set. The machine's own clock stays as it is.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>

namespace {

constexpr int64_t kNsPerS = 1'000'000'000;
constexpr int64_t kLookEveryNs = 10'000'000;

int64_t ShiftNs() {
  static const int64_t* const shift = []() -> const int64_t* {
    const char* const path = getenv("STRATA_TEST_WALL_CLOCK");
    const int fd = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return nullptr;
    void* const at = mmap(nullptr, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    return at == MAP_FAILED ? nullptr : static_cast<const int64_t*>(at);
  }();
  return shift == nullptr ? 0 : __atomic_load_n(shift, __ATOMIC_RELAXED);
}

template <typename Fn>
Fn* Next(const char* name) {
  return reinterpret_cast<Fn*>(dlsym(RTLD_NEXT, name));
}

int64_t NsOf(const timespec& time) { return time.tv_sec * kNsPerS + time.tv_nsec; }
timespec TimeOf(int64_t ns) {
  timespec time = {.tv_sec = ns / kNsPerS, .tv_nsec = ns % kNsPerS};
  if (time.tv_nsec < 0) {
    --time.tv_sec;
    time.tv_nsec += kNsPerS;
  }
  return time;
}

int64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return NsOf(now);
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* now) noexcept {
  static auto* const real = Next<int(clockid_t, timespec*)>("clock_gettime");
  const int result = real(clock, now);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    *now = TimeOf(NsOf(*now) + ShiftNs());
  }
  return result;
}

int gettimeofday(timeval* now, void* /*zone*/) noexcept {
  const int64_t us = NowNs() / 1000;
  now->tv_sec = us / 1'000'000;
  now->tv_usec = us % 1'000'000;
  return 0;
}

time_t time(time_t* out) noexcept {
  const time_t now = NowNs() / kNsPerS;
  if (out != nullptr) *out = now;
  return now;
}

// Abseil waits with it.
long syscall(long number, ...) noexcept {
  static auto* const real = Next<long(long, ...)>("syscall");
  long args[6];
  va_list list;
  va_start(list, number);
  for (long& arg : args) arg = va_arg(list, long);
  va_end(list);
  const bool waits = number == SYS_futex && (args[1] & FUTEX_CLOCK_REALTIME) != 0 && args[3] != 0;
  if (!waits) return real(number, args[0], args[1], args[2], args[3], args[4], args[5]);
  const int64_t until_ns = NsOf(*reinterpret_cast<const timespec*>(args[3]));
  for (;;) {
    const int64_t left_ns = until_ns - NowNs();
    if (left_ns <= 0) {
      errno = ETIMEDOUT;
      return -1;
    }
    timespec look;
    clock_gettime(CLOCK_MONOTONIC, &look);
    look = TimeOf(NsOf(look) + std::min(left_ns, kLookEveryNs));
    const long result = real(number, args[0], args[1] & ~long{FUTEX_CLOCK_REALTIME}, args[2], &look,
                             args[4], args[5]);
    if (result == 0 || errno != ETIMEDOUT) return result;
  }
}

}  // extern "C"
