#include "node/control/control_calls.h"

#include <algorithm>
#include <utility>

namespace strata {

ControlCalls::~ControlCalls() {
  absl::MutexLock lock(mu_);
  for (Call& call : calls_) call.client->Cancel();
  const auto all_ended = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return std::ranges::all_of(calls_, &Call::has_ended);
  };
  mu_.Await(absl::Condition(&all_ended));
  JoinEnded();
}

// A thread that has ended its call only returns: joining it waits for nothing.
void ControlCalls::JoinEnded() {
  for (auto it = calls_.begin(); it != calls_.end();) {
    if (!it->has_ended) {
      ++it;
      continue;
    }
    it->thread.join();
    it = calls_.erase(it);
  }
}

absl::Status ControlCalls::Start(absl::AnyInvocable<void(CoordinatorClient*) &&> call) {
  absl::MutexLock lock(mu_);
  JoinEnded();
  if (calls_.size() >= kControlCallsMax) {
    return absl::ResourceExhaustedError("too many calls at a time; try again");
  }
  Call& made = calls_.emplace_back();
  made.client = new_client_();
  made.thread = std::thread([this, &made, call = std::move(call)]() mutable {
    std::move(call)(made.client.get());
    absl::MutexLock end_lock(mu_);
    made.has_ended = true;
  });
  return absl::OkStatus();
}

}  // namespace strata
