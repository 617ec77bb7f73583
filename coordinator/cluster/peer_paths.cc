#include "coordinator/cluster/peer_paths.h"

#include <algorithm>
#include <set>
#include <tuple>

namespace strata {
namespace {

// A smoothed time moves by this part of the difference, and a single time counts for twice the
// smoothed one at most: one late answer is a busy machine, many are a slow path.
constexpr int64_t kSmoothing = 8;
constexpr int64_t kOutlier = 2;
// "Lately" is within the time of so many probes of an address that works.
constexpr int64_t kLately = 3;

}  // namespace

void PeerPaths::SetAnnounced(const std::vector<std::string>& addresses) {
  const std::set<std::string> announced(
      addresses.begin(), addresses.begin() + static_cast<ptrdiff_t>(std::min(
                                                 addresses.size(), options_.addresses_max)));
  for (const std::string& address : announced) paths_[address];
  for (auto& [address, path] : paths_) path.announced = announced.contains(address);
  DropUnwanted();
}

void PeerPaths::Observe(const std::string& address) {
  paths_[address].observed = ++observations_;
  DropUnwanted();
}

void PeerPaths::DropUnwanted() {
  std::erase_if(
      paths_, [](const auto& each) { return !each.second.announced && each.second.observed == 0; });
  while (paths_.size() > options_.addresses_max) {
    auto oldest = paths_.end();
    for (auto it = paths_.begin(); it != paths_.end(); ++it) {
      if (it->second.announced) continue;
      if (oldest == paths_.end() || it->second.observed < oldest->second.observed) oldest = it;
    }
    if (oldest == paths_.end()) break;  // announced ones have the same bound
    paths_.erase(oldest);
  }
  Choose();
}

void PeerPaths::TryAgain() {
  for (auto& [address, path] : paths_) {
    path.failures = 0;
    path.wait_us = 0;
  }
}

bool PeerPaths::Silent(const Path& path, int64_t now_us) const {
  return path.in_flight > 0 && now_us - path.waiting_since_us > options_.silent_ms * 1000;
}

bool PeerPaths::Due(const std::string& address, const Path& path, bool trouble,
                    int64_t now_us) const {
  if (!path.probed) return true;
  if (path.in_flight > 0) return false;
  if (!path.works) return now_us - path.probed_us >= path.wait_us;
  if (path.round_trip_us == 0) return true;
  if (address == best_) return false;  // requests are sent there anyway
  return now_us - path.probed_us >=
         (trouble ? options_.retry_min_ms : options_.remeasure_ms) * 1000;
}

std::vector<std::string> PeerPaths::TakeProbes(int64_t now_us) {
  const auto best = paths_.find(best_);
  const bool trouble = best == paths_.end() || Silent(best->second, now_us);
  std::vector<std::string> probes;
  for (auto& [address, path] : paths_) {
    if (!Due(address, path, trouble, now_us)) continue;
    path.probed = true;
    path.probed_us = now_us;
    AddRequest(&path, now_us);
    probes.push_back(address);
  }
  return probes;
}

std::string PeerPaths::TakeBest(int64_t now_us) {
  auto chosen = paths_.find(best_);
  if (chosen == paths_.end()) return "";
  if (Silent(chosen->second, now_us)) {
    for (auto it = paths_.begin(); it != paths_.end(); ++it) {
      if (!it->second.works || Silent(it->second, now_us)) continue;
      if (Silent(chosen->second, now_us) ||
          it->second.round_trip_us < chosen->second.round_trip_us) {
        chosen = it;
      }
    }
  }
  AddRequest(&chosen->second, now_us);
  return chosen->first;
}

void PeerPaths::AddRequest(Path* path, int64_t now_us) {
  if (path->in_flight++ == 0) path->waiting_since_us = now_us;
}

void PeerPaths::EndRequest(Path* path, int64_t now_us) {
  path->in_flight = std::max(0, path->in_flight - 1);
  path->waiting_since_us = now_us;
}

void PeerPaths::Answered(const std::string& address, int64_t sent_us, int64_t now_us) {
  const auto it = paths_.find(address);
  if (it == paths_.end()) return;
  Path& path = it->second;
  EndRequest(&path, now_us);
  path.answered_sent_us = std::max(path.answered_sent_us, sent_us);
  path.failures = 0;
  if (!path.works) {
    path.works = true;
    path.connected_us = now_us;
    path.round_trip_us = 0;
  } else if (sent_us >= path.connected_us) {
    const int64_t took_us = std::max<int64_t>(1, now_us - sent_us);
    int64_t& smoothed_us = path.round_trip_us;
    if (smoothed_us == 0) {
      smoothed_us = took_us;
    } else {
      const int64_t bounded_us = std::min(took_us, kOutlier * smoothed_us + kSmoothing);
      smoothed_us += (bounded_us - smoothed_us) / kSmoothing;
    }
  }
  Choose();
}

void PeerPaths::Failed(const std::string& address, int64_t sent_us, int64_t now_us) {
  const auto it = paths_.find(address);
  if (it == paths_.end()) return;
  Path& path = it->second;
  EndRequest(&path, now_us);
  if (sent_us < path.answered_sent_us) return;  // lost, but a later one was answered
  path.works = false;
  path.wait_us =
      std::min(options_.retry_max_ms, options_.retry_min_ms << std::min(path.failures, 8)) * 1000;
  ++path.failures;
  Choose();
}

void PeerPaths::Wrong(const std::string& address, int64_t now_us) {
  const auto it = paths_.find(address);
  if (it == paths_.end()) return;
  EndRequest(&it->second, now_us);
  it->second.works = false;
  it->second.wait_us = options_.retry_wrong_ms * 1000;
  it->second.observed = 0;  // the observation is out of date
  it->second.answered_sent_us = 0;
  DropUnwanted();
}

// The path in use stays unless another is clearly faster: two equal ones must not alternate.
void PeerPaths::Choose() {
  const auto rank = [](const Path& path) {  // paths that were never timed come last
    return std::tuple(!path.works, path.round_trip_us == 0, path.round_trip_us);
  };
  auto fastest = paths_.end();
  for (auto it = paths_.begin(); it != paths_.end(); ++it) {
    if (!it->second.works) continue;
    if (fastest == paths_.end() || rank(it->second) < rank(fastest->second)) fastest = it;
  }
  if (fastest == paths_.end()) {
    best_.clear();
    return;
  }
  const auto current = paths_.find(best_);
  if (current != paths_.end() && current->second.works) {
    const auto limit_us = static_cast<int64_t>(options_.faster_by *
                                               static_cast<double>(current->second.round_trip_us));
    if (fastest->second.round_trip_us == 0 || current->second.round_trip_us == 0 ||
        fastest->second.round_trip_us >= limit_us) {
      return;
    }
  }
  best_ = fastest->first;
}

int64_t PeerPaths::round_trip_us() const {
  const auto it = paths_.find(best_);
  return it == paths_.end() ? 0 : it->second.round_trip_us;
}

std::vector<std::string> PeerPaths::Answering(int64_t now_us) const {
  std::vector<std::string> addresses;
  for (const auto& [address, path] : paths_) {
    if (path.answered_sent_us == 0) continue;
    if (now_us - path.answered_sent_us <= kLately * options_.remeasure_ms * 1000) {
      addresses.push_back(address);
    }
  }
  return addresses;
}

std::vector<std::string> PeerPaths::addresses() const {
  std::vector<std::string> addresses;
  for (const auto& [address, path] : paths_) addresses.push_back(address);
  return addresses;
}

}  // namespace strata
