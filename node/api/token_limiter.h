// The limits of one API token: requests in any minute, and streams at once. Pure logic over times
// that the caller passes, microseconds of any clock that never goes back. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "node/api/api_token_file.h"

namespace strata {

class TokenLimiter {
 public:
  struct Result {
    bool admitted = false;
    std::string why_not;         // for people: "60 requests in a minute are this token's limit"
    int64_t retry_after_us = 0;  // when a retry may help; 0: when one of the token's streams ends
  };

  // Counts a request at `now_us`, one that holds a stream until StreamEnded() if `stream`. Refused
  // requests do not count: a client that keeps trying is not locked out by that.
  Result Admit(const ApiTokenLimits& limits, int64_t now_us, bool stream);
  void StreamEnded();

  uint32_t streams() const { return streams_; }

 private:
  static constexpr int64_t kMinuteUs = 60'000'000;

  std::deque<int64_t> requests_us_;  // admitted in the last minute; at most kRequestsPerMinuteMax
  uint32_t streams_ = 0;
};

}  // namespace strata
