// What one API token may do: so many requests in any minute, so many streams at once. Pure logic
// over times that it is told, microseconds of any clock that never goes back. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "node/api/api_token_file.h"

namespace strata {

class TokenLimiter {
 public:
  struct Answer {
    bool admitted = false;
    std::string why_not;         // for people: "60 requests in a minute are this token's limit"
    int64_t retry_after_us = 0;  // when asking again may help; 0: when a stream of its own ends
  };

  // A request at `now_us`, one that holds a stream until StreamEnded() if `stream`. What is refused
  // does not count: who keeps asking is not kept out by that.
  Answer Ask(const ApiTokenLimits& limits, int64_t now_us, bool stream);
  void StreamEnded();

  uint32_t streams() const { return streams_; }

 private:
  static constexpr int64_t kMinuteUs = 60'000'000;

  std::deque<int64_t> requests_us_;  // admitted in the last minute; at most kRequestsPerMinuteMax
  uint32_t streams_ = 0;
};

}  // namespace strata
