#include "tests/support/fake_clock.h"

#include <algorithm>

#include "absl/log/check.h"

namespace strata {

void FakeClock::AdvanceUs(int64_t us) {
  CHECK_GE(us, 0);
  const int64_t target_us = NowUs() + us;
  while (true) {
    Sleeper* next = nullptr;
    int64_t due_us = kNever;
    for (Sleeper* sleeper : sleepers_) {
      const int64_t t = std::max(sleeper->NextDueUs(), NowUs());
      if (t < due_us) {
        next = sleeper;
        due_us = t;
      }
    }
    if (next == nullptr || due_us > target_us) break;
    now_us_.store(due_us);
    next->RunOne();
  }
  now_us_.store(std::max(target_us, NowUs()));
}

void FakeClock::Add(Sleeper* sleeper) { sleepers_.push_back(sleeper); }

void FakeClock::Remove(Sleeper* sleeper) { std::erase(sleepers_, sleeper); }

}  // namespace strata
