#include "transport/rpc/refusal_log.h"

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"

namespace strata {
namespace {

constexpr int64_t kQuietMin = 5;
constexpr int64_t kQuietUs = kQuietMin * 60 * 1'000'000;
// The source of refusals beyond kRefusalsMax, one for each reason.
constexpr char kOthers[] = "another address";

}  // namespace

void RefusalLog::Add(absl::string_view source, absl::string_view reason) {
  const int64_t now_us = clock_->NowUs();
  std::string shown;
  uint64_t since = 0;
  {
    MutexLock lock(&mu_);
    std::pair<std::string, std::string> key(source, reason);
    auto found = refusals_.find(key);
    if (found == refusals_.end() && refusals_.size() >= kRefusalsMax) {
      std::erase_if(refusals_,
                    [&](const auto& old) { return now_us - old.second.logged_us >= kQuietUs; });
      if (refusals_.size() >= kRefusalsMax) {
        key.first = kOthers;
        found = refusals_.find(key);
      }
    }
    if (found != refusals_.end() && now_us - found->second.logged_us < kQuietUs) {
      ++found->second.since;
      return;
    }
    Refusals& refusals = refusals_[key];
    since = std::exchange(refusals.since, 0);
    refusals.logged_us = now_us;
    shown = std::move(key.first);
  }
  LOG(WARNING) << shown << " does not get in at port " << port_ << ": " << reason
               << (since == 0 ? ""
                              : absl::StrCat(" (and ", since, " more since this was last logged)"));
}

bool AdmitOrLog(absl::string_view source, ConnectionLimiter* limiter, RefusalLog* log) {
  switch (limiter->Admit(source)) {
    case ConnectionLimiter::Verdict::kAdmitted:
      return true;
    case ConnectionLimiter::Verdict::kTooManyOfSource:
      log->Add(source, "it opens too many connections");
      return false;
    case ConnectionLimiter::Verdict::kTooMany:
      log->Add("an address of no member", "such addresses together open too many connections");
      return false;
  }
  return false;
}

}  // namespace strata
