// The speed at which bytes have come in the last seconds. One thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "transport/base/steady_time.h"

namespace strata {

class SpeedMeter {
 public:
  // `done` bytes in all; fewer than before begin anew.
  void Update(SteadyTime now, uint64_t done);
  double bytes_per_s() const;  // 0: not known yet

 private:
  std::deque<std::pair<SteadyTime, uint64_t>> seen_;  // of the last seconds
};

// "35.0 MB/s  0:52 left"; empty where the speed is not known.
std::string SpeedText(double bytes_per_s, uint64_t bytes_left);

}  // namespace strata
