#include "node/gateway/active_generations.h"

#include <utility>

#include "absl/random/random.h"

namespace strata {

ActiveGenerations::ActiveGenerations()
    : ActiveGenerations(absl::Uniform<uint64_t>(absl::BitGen(), 1, uint64_t{1} << 62)) {}

uint64_t ActiveGenerations::Open() {
  absl::MutexLock lock(mu_);
  requests_.try_emplace(++last_);
  return last_;
}

void ActiveGenerations::SetControl(uint64_t number, std::shared_ptr<GenerationHandle> control) {
  {
    absl::MutexLock lock(mu_);
    const auto found = requests_.find(number);
    if (found == requests_.end()) return;
    if (!found->second.finished) {
      found->second.control = std::move(control);
      return;
    }
  }
  control->Finish();
}

void ActiveGenerations::Finish(uint64_t number) {
  std::shared_ptr<GenerationHandle> control;
  {
    absl::MutexLock lock(mu_);
    const auto found = requests_.find(number);
    if (found == requests_.end()) return;
    found->second.finished = true;
    control = found->second.control;
  }
  if (control != nullptr) control->Finish();
}

void ActiveGenerations::Close(uint64_t number) {
  absl::MutexLock lock(mu_);
  requests_.erase(number);
}

}  // namespace strata
