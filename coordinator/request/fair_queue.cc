#include "coordinator/request/fair_queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/request/request_status.h"

namespace strata {
namespace {

// A client alone may fill so much of a queue; the rest is for others.
constexpr double kClientShare = 0.75;

bool Anyone(uint64_t) { return true; }

}  // namespace

absl::Status FairQueue::Add(uint64_t id, const std::string& client, bool begun) {
  const auto found = clients_.find(client);
  const size_t of_client = found == clients_.end() ? 0 : found->second.waiting.size();
  const auto client_max =
      std::max<size_t>(1, static_cast<size_t>(static_cast<double>(waiting_max_) * kClientShare));
  const bool over_share = !begun && of_client >= client_max;
  if (size() >= waiting_max_ || over_share) {
    absl::Status full =
        absl::ResourceExhaustedError(absl::StrCat(size(), " requests are waiting, ", of_client,
                                                  " of them from this client; try again later"));
    return over_share ? AsOfOneClient(std::move(full)) : full;
  }
  Client& of = clients_[client];
  if (of.n_requests++ == 0) of.turn = ++last_turn_;
  if (begun) {
    begun_.push_back(id);
  } else {
    of.waiting.push_back(id);
    ++n_new_;
    by_turn_.emplace(of.turn, &of);
  }
  return absl::OkStatus();
}

std::optional<uint64_t> FairQueue::NextBegun(Filter may) const {
  const auto next = std::find_if(begun_.begin(), begun_.end(), may);
  return next == begun_.end() ? std::nullopt : std::optional(*next);
}

std::optional<uint64_t> FairQueue::NextNew(Filter may) const {
  for (const auto& [turn, client] : by_turn_) {
    if (may(client->waiting.front())) return client->waiting.front();
  }
  return std::nullopt;
}

std::optional<uint64_t> FairQueue::Next() const {
  const std::optional<uint64_t> begun = NextBegun(Anyone);
  return begun.has_value() ? begun : NextNew(Anyone);
}

bool FairQueue::Remove(uint64_t id, Client* client) {
  if (std::erase(begun_, id) > 0 || std::erase(client->waiting, id) == 0) return false;
  --n_new_;
  if (client->waiting.empty()) by_turn_.erase(client->turn);
  return true;
}

void FairQueue::Take(uint64_t id, const std::string& client) {
  Client& of = clients_.at(client);
  if (!Remove(id, &of)) return;  // a request that has begun takes no turn
  by_turn_.erase(of.turn);
  of.turn = ++last_turn_;
  if (!of.waiting.empty()) by_turn_.emplace(of.turn, &of);
}

bool FairQueue::Leave(uint64_t id, const std::string& client) {
  const auto found = clients_.find(client);
  Remove(id, &found->second);
  if (--found->second.n_requests > 0) return false;
  clients_.erase(found);
  return true;
}

}  // namespace strata
