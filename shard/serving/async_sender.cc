#include "shard/serving/async_sender.h"

#include <utility>

#include "transport/base/steady_time.h"

namespace strata {

AsyncSender::~AsyncSender() {
  {
    absl::MutexLock lock(mu_);
    ends_ = true;
    given_.Signal();
  }
  if (thread_.joinable()) thread_.join();
}

void AsyncSender::Run(Work work) {
  if (!thread_.joinable()) thread_ = std::thread([this] { Loop(); });
  Wait();
  absl::MutexLock lock(mu_);
  work_ = std::move(work);
  has_work_ = true;
  given_.Signal();
}

bool AsyncSender::Wait(absl::Duration most) {
  absl::MutexLock lock(mu_);
  const SteadyTime end = SteadyTime::Now() + most;
  while (has_work_ && !done_.WaitWithTimeout(&mu_, end - SteadyTime::Now())) {
  }
  return !has_work_;
}

void AsyncSender::Loop() {
  while (true) {
    Work work;
    {
      absl::MutexLock lock(mu_);
      while (!has_work_ && !ends_) given_.Wait(&mu_);
      if (!has_work_) return;
      work = std::move(work_);
    }
    std::move(work)();
    absl::MutexLock lock(mu_);
    has_work_ = false;
    done_.Signal();
  }
}

}  // namespace strata
