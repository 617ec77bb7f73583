// Tells people of connections that did not get in: once for each source address and reason in five
// minutes, however many there are. Thread-safe.
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

// Sources and reasons that are kept apart; what is beyond is told of as one.
inline constexpr size_t kRefusalsMax = 256;

class RefusalLog {
 public:
  // `port`: of what was refused, for the text. `clock` outlives this.
  RefusalLog(std::string port, Clock* clock) : port_(std::move(port)), clock_(clock) {}

  // `reason`: in words, one of few; never bytes of the peer's. Says
  // "10.0.0.7 does not get in at port 7400: it shows no certificate".
  void Add(absl::string_view source, absl::string_view reason);

 private:
  struct Refusals {
    int64_t told_us = 0;
    uint64_t since = 0;  // not told of yet
  };

  const std::string port_;
  Clock* const clock_;
  Mutex mu_;
  // By source and reason.
  std::map<std::pair<std::string, std::string>, Refusals> refusals_ ABSL_GUARDED_BY(mu_);
};

// Whether `limiter` lets in one more connection from `source`, an address without a port; where
// not, tells `log` why. Any thread.
bool AdmitOrTell(absl::string_view source, ConnectionLimiter* limiter, RefusalLog* log);

}  // namespace strata
