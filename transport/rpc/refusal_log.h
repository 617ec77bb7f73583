// Logs refused connections: once for each source address and reason in five minutes, however many
// there are. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "transport/base/clock.h"
#include "transport/base/mutex.h"
#include "transport/rpc/connection_limiter.h"

namespace strata {

// Sources and reasons that are kept apart; the others are logged as one.
inline constexpr size_t kRefusalsMax = 256;

class RefusalLog {
 public:
  // `port`: of the refused connections, for the message. `clock` outlives this.
  RefusalLog(std::string port, Clock* clock) : port_(std::move(port)), clock_(clock) {}

  // `reason`: one of a few fixed phrases, never bytes from the peer. Logs
  // "10.0.0.7 does not get in at port 7400: it shows no certificate".
  void Add(absl::string_view source, absl::string_view reason);

 private:
  struct Refusals {
    int64_t logged_us = 0;
    uint64_t since = 0;  // refused since then, not logged yet
  };

  const std::string port_;
  Clock* const clock_;
  Mutex mu_;
  // By source and reason.
  std::map<std::pair<std::string, std::string>, Refusals> refusals_ ABSL_GUARDED_BY(mu_);
};

// Whether `limiter` admits one more connection from `source`, an address without a port; where not,
// adds the reason to `log`. Any thread.
bool AdmitOrLog(absl::string_view source, ConnectionLimiter* limiter, RefusalLog* log);

}  // namespace strata
