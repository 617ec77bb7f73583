// Deadlines of gRPC calls by the monotonic clock. Any thread.
//
//   context.set_deadline(DeadlineIn(absl::Seconds(5)));
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"
#include "grpc/support/time.h"
#include "grpcpp/support/time.h"

namespace strata {

inline gpr_timespec DeadlineIn(absl::Duration time) {
  return gpr_time_add(
      gpr_now(GPR_CLOCK_MONOTONIC),
      gpr_time_from_nanos(std::max<int64_t>(absl::ToInt64Nanoseconds(time), 0), GPR_TIMESPAN));
}

}  // namespace strata
