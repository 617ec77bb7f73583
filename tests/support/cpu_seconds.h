// The processor time of this process.
#pragma once

#include <sys/resource.h>
#include <sys/time.h>

namespace strata::testing {

// Of all its threads, in user and in kernel mode.
inline double CpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace strata::testing
