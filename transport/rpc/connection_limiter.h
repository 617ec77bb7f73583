// Limits the connections that a port accepts: token buckets for each source address and for all of
// them, so that handshakes of unknown peers cost a bounded part of a machine. Pure logic over a
// Clock. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "transport/base/clock.h"
#include "transport/base/mutex.h"

namespace strata {

// A handshake of TLS 1.3 with Ed25519, both sides verified, and gRPC's setup of a connection take
// about 1.6 ms of one core.
struct ConnectionLimits {
  // For an unknown source. A plan opens some dozens of connections between two machines, and they
  // reconnect each minute; all workers and verbs of one machine come from its loopback address.
  uint32_t source_per_s = 64;
  uint32_t source_burst = 256;
  // Less than half a core.
  uint32_t total_per_s = 256;
  uint32_t total_burst = 1024;
  // Sources that are known or whose buckets are not full. More than can have connected while one
  // bucket fills.
  size_t sources_max = 4096;
};

class ConnectionLimiter {
 public:
  enum class Verdict : uint8_t { kAdmitted, kTooManyOfSource, kTooMany };

  // `clock` outlives this.
  ConnectionLimiter(const ConnectionLimits& limits, Clock* clock);

  // Counts one connection from `source`, an address without a port. Refused ones do not count.
  Verdict Admit(absl::string_view source);

  // A handshake with `source` succeeded. For an hour it has the bounds of `total` for itself, and
  // does not count towards `total`: many unknown sources together cannot keep out a known one.
  void SetKnown(absl::string_view source);

  size_t n_sources() const;

 private:
  struct Bucket {
    double tokens = 0;
    int64_t filled_us = 0;
  };
  struct Source {
    Bucket bucket;
    int64_t known_until_us = 0;
  };

  static void Fill(Bucket* bucket, uint32_t per_s, uint32_t burst, int64_t now_us);
  // Finds or adds `source`. Null: there is no room.
  Source* Find(absl::string_view source, int64_t now_us) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ForgetFull(int64_t now_us) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const ConnectionLimits limits_;
  Clock* const clock_;

  mutable Mutex mu_;
  Bucket total_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, Source, std::less<>> sources_ ABSL_GUARDED_BY(mu_);
  // All sources for which there is no room.
  Source others_ ABSL_GUARDED_BY(mu_);
  int64_t forgot_us_ ABSL_GUARDED_BY(mu_) = INT64_MIN;
};

}  // namespace strata
