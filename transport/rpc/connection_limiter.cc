#include "transport/rpc/connection_limiter.h"

#include <algorithm>

namespace strata {
namespace {

constexpr int64_t kKnownUs = int64_t{3600} * 1'000'000;
// A scan of all sources takes a while, so it is not done for each connection of a flood.
constexpr int64_t kForgetUs = 1'000'000;

}  // namespace

ConnectionLimiter::ConnectionLimiter(const ConnectionLimits& limits, Clock* clock)
    : limits_(limits), clock_(clock) {
  const int64_t now_us = clock_->NowUs();
  total_ = {static_cast<double>(limits_.total_burst), now_us};
  others_.bucket = {static_cast<double>(limits_.source_burst), now_us};
}

void ConnectionLimiter::Fill(Bucket* bucket, uint32_t per_s, uint32_t burst, int64_t now_us) {
  const double passed_s = static_cast<double>(now_us - bucket->filled_us) / 1e6;
  bucket->tokens = std::min<double>(burst, bucket->tokens + passed_s * per_s);
  bucket->filled_us = now_us;
}

void ConnectionLimiter::ForgetFull(int64_t now_us) {
  if (forgot_us_ != INT64_MIN && now_us - forgot_us_ < kForgetUs) return;
  forgot_us_ = now_us;
  std::erase_if(sources_, [&](auto& entry) {
    Source& source = entry.second;
    if (source.known_until_us > now_us) return false;
    Fill(&source.bucket, limits_.source_per_s, limits_.source_burst, now_us);
    return source.bucket.tokens >= limits_.source_burst;
  });
}

ConnectionLimiter::Source* ConnectionLimiter::Find(absl::string_view source, int64_t now_us) {
  if (const auto found = sources_.find(source); found != sources_.end()) return &found->second;
  if (sources_.size() >= limits_.sources_max) ForgetFull(now_us);
  if (sources_.size() >= limits_.sources_max) return nullptr;
  Source& added = sources_[std::string(source)];
  added.bucket = {static_cast<double>(limits_.source_burst), now_us};
  return &added;
}

ConnectionLimiter::Verdict ConnectionLimiter::Admit(absl::string_view source) {
  const int64_t now_us = clock_->NowUs();
  MutexLock lock(&mu_);
  // Checked before a source is remembered, so that refused sources take no room.
  Fill(&total_, limits_.total_per_s, limits_.total_burst, now_us);
  const auto found = sources_.find(source);
  const bool known = found != sources_.end() && found->second.known_until_us > now_us;
  if (!known && total_.tokens < 1) return Verdict::kTooMany;
  Source* own = found != sources_.end() ? &found->second : Find(source, now_us);
  if (own == nullptr) own = &others_;
  Fill(&own->bucket, known ? limits_.total_per_s : limits_.source_per_s,
       known ? limits_.total_burst : limits_.source_burst, now_us);
  if (own->bucket.tokens < 1) return Verdict::kTooManyOfSource;
  own->bucket.tokens -= 1;
  if (!known) total_.tokens -= 1;
  return Verdict::kAdmitted;
}

void ConnectionLimiter::SetKnown(absl::string_view source) {
  const int64_t now_us = clock_->NowUs();
  MutexLock lock(&mu_);
  if (Source* own = Find(source, now_us); own != nullptr) own->known_until_us = now_us + kKnownUs;
}

size_t ConnectionLimiter::n_sources() const {
  MutexLock lock(&mu_);
  return sources_.size();
}

}  // namespace strata
