#include "node/gateway/load_queue.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/request/request_status.h"

namespace strata {

std::string LoadQueue::Load::Words() const {
  uint64_t done = 0, total = 0;
  for (const auto& [stage, progress] : stages) {
    done += progress.bytes_done();
    total += progress.bytes_total();
  }
  if (total > 0) return absl::StrCat("loading ", name, " ", 100 * done / total, " %");
  return absl::StrCat("loading ", name, note.empty() ? "" : ": ", note);
}

LoadQueue::Place LoadQueue::Join(const std::string& key, const std::string& name, Waiter waiter,
                                 SteadyTime now) {
  {
    absl::MutexLock lock(mu_);
    if (n_waiting_ < options_.waiters_max) {
      const auto [load, is_first] = loads_.try_emplace(key, Load{.name = name});
      ++n_waiting_;
      load->second.waiting[++last_] = {.waiter = std::move(waiter),
                                       .until = now + options_.wait_time};
      return {.number = last_, .is_first = is_first};
    }
  }
  std::move(waiter.on_end)(WithRetryAfterMs(
      absl::ResourceExhaustedError("too many requests wait for models to be loaded; try again"),
      kRetrySoonMs));
  return {};
}

void LoadQueue::Leave(uint64_t number) {
  Waiter left;  // destroyed without the lock
  absl::MutexLock lock(mu_);
  for (auto& [key, load] : loads_) {
    const auto waiting = load.waiting.find(number);
    if (waiting == load.waiting.end()) continue;
    left = std::move(waiting->second.waiter);
    load.waiting.erase(waiting);
    --n_waiting_;
    return;
  }
}

void LoadQueue::Report(const std::string& key) {
  std::vector<std::function<void(const std::string&)>> callbacks;
  std::string words;
  {
    absl::MutexLock lock(mu_);
    const auto load = loads_.find(key);
    if (load == loads_.end()) return;
    words = load->second.Words();
    for (const auto& [number, waiting] : load->second.waiting) {
      callbacks.push_back(waiting.waiter.on_progress);
    }
  }
  for (const auto& on_progress : callbacks) on_progress(words);
}

void LoadQueue::OnNote(const std::string& key, const std::string& note) {
  {
    absl::MutexLock lock(mu_);
    if (const auto load = loads_.find(key); load != loads_.end()) load->second.note = note;
  }
  Report(key);
}

void LoadQueue::OnProgress(const std::string& key, const wire::StageProgress& progress) {
  {
    absl::MutexLock lock(mu_);
    if (const auto load = loads_.find(key); load != loads_.end()) {
      load->second.stages[progress.stage()] = progress.progress();
    }
  }
  Report(key);
}

void LoadQueue::OnEnd(const std::string& key, const absl::StatusOr<wire::ModelStatus>& result) {
  std::map<uint64_t, Waiting> ended;
  {
    absl::MutexLock lock(mu_);
    const auto load = loads_.find(key);
    if (load == loads_.end()) return;
    ended = std::move(load->second.waiting);
    n_waiting_ -= ended.size();
    loads_.erase(load);
  }
  for (auto& [number, waiting] : ended) std::move(waiting.waiter.on_end)(result);
}

void LoadQueue::Tick(SteadyTime now) {
  std::vector<std::pair<Waiter, absl::Status>> expired;
  std::vector<std::string> keys;
  {
    absl::MutexLock lock(mu_);
    for (auto& [key, load] : loads_) {
      keys.push_back(key);
      for (auto waiting = load.waiting.begin(); waiting != load.waiting.end();) {
        if (now < waiting->second.until) {
          ++waiting;
          continue;
        }
        expired.emplace_back(std::move(waiting->second.waiter),
                             WithRetryAfterMs(absl::UnavailableError(absl::StrCat(
                                                  "still ", load.Words(),
                                                  "; it goes on, so try again in a minute or so")),
                                              kRetrySoonMs));
        waiting = load.waiting.erase(waiting);
        --n_waiting_;
      }
    }
  }
  for (auto& [waiter, why] : expired) std::move(waiter.on_end)(why);
  for (const std::string& key : keys) Report(key);
}

bool LoadQueue::is_empty() const {
  absl::MutexLock lock(mu_);
  return n_waiting_ == 0;
}

}  // namespace strata
