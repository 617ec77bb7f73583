#include "coordinator/generation/remote_tokenizer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/request/request_status.h"

namespace strata {
namespace {

// A client alone may fill so much of the queue; the rest is for others.
constexpr double kClientShare = 0.75;
constexpr int64_t kRetryAfterMs = 1'000;

}  // namespace

std::optional<absl::Status> RemoteTokenizer::Full(const std::string& client) const {
  const auto found = of_client_.find(client);
  const size_t of_client = found == of_client_.end() ? 0 : found->second;
  const auto client_max =
      static_cast<size_t>(std::max(1.0, static_cast<double>(options_.waiting_max) * kClientShare));
  if (waiting_.size() < options_.waiting_max && of_client < client_max) return std::nullopt;
  absl::Status full = WithRetryAfterMs(absl::ResourceExhaustedError(absl::StrCat(
                                           waiting_.size(), " prompts are waiting, ", of_client,
                                           " of them from this client; try again later")),
                                       kRetryAfterMs);
  return of_client >= client_max ? AsOfOneClient(std::move(full)) : full;
}

NodeClient::CancelCall RemoteTokenizer::Tokenize(Job job) {
  uint64_t id = 0;
  std::optional<absl::Status> full;
  {
    absl::MutexLock lock(mu_);
    full = Full(job.client);
    if (!full) {
      id = ++last_id_;
      ++of_client_[job.client];
      std::swap(waiting_[id], job);
    }
  }
  if (full) {
    std::move(job.done)(*std::move(full));
    return [] {};
  }
  StartNext();
  return [weak = weak_from_this(), id] {
    if (const auto there = weak.lock()) there->Cancel(id);
  };
}

size_t RemoteTokenizer::size() const {
  absl::MutexLock lock(mu_);
  return waiting_.size() + in_flight_.size();
}

void RemoteTokenizer::StartNext() {
  while (true) {
    uint64_t id = 0;
    wire::TokenizeRequest request;
    {
      absl::MutexLock lock(mu_);
      if (waiting_.empty() || in_flight_.size() >= options_.in_flight_max) return;
      auto first = waiting_.extract(waiting_.begin());
      id = first.key();
      const auto client = of_client_.find(first.mapped().client);
      if (--client->second == 0) of_client_.erase(client);
      request = std::move(first.mapped().request);
      in_flight_[id].done = std::move(first.mapped().done);
    }
    NodeClient::CancelCall cancel = node_->TokenizeAsync(
        request, [self = shared_from_this(), id](absl::StatusOr<wire::TokenizeResponse> tokens) {
          self->OnDone(id, std::move(tokens));
        });
    bool cancelled = false;
    {
      absl::MutexLock lock(mu_);
      const auto found = in_flight_.find(id);
      if (found == in_flight_.end()) continue;  // it is done already
      found->second.cancel = cancel;
      cancelled = found->second.cancelled;
    }
    if (cancelled) cancel();
  }
}

void RemoteTokenizer::OnDone(uint64_t id, absl::StatusOr<wire::TokenizeResponse> tokens) {
  NodeClient::Tokenized done;
  {
    absl::MutexLock lock(mu_);
    done = std::move(in_flight_.extract(id).mapped().done);
  }
  StartNext();  // first: `done` may release the node
  std::move(done)(std::move(tokens));
}

void RemoteTokenizer::Cancel(uint64_t id) {
  NodeClient::Tokenized done;
  NodeClient::CancelCall cancel;
  {
    absl::MutexLock lock(mu_);
    if (auto job = waiting_.extract(id); !job.empty()) {
      const auto client = of_client_.find(job.mapped().client);
      if (--client->second == 0) of_client_.erase(client);
      done = std::move(job.mapped().done);
    } else if (const auto found = in_flight_.find(id); found != in_flight_.end()) {
      found->second.cancelled = true;
      cancel = found->second.cancel;
    }
  }
  if (cancel) cancel();
  if (done) std::move(done)(absl::CancelledError("the request was cancelled"));
}

}  // namespace strata
