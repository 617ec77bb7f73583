#include "coordinator/generation/remote_tokenizer.h"

#include <optional>
#include <utility>

#include "coordinator/request/request_status.h"

namespace strata {
namespace {

constexpr int64_t kRetryAfterMs = 1'000;

}  // namespace

NodeClient::CancelCall RemoteTokenizer::Tokenize(Job job) {
  uint64_t id = 0;
  absl::Status full;
  {
    absl::MutexLock lock(mu_);
    id = ++last_id_;
    full = queue_.Add(id, job.client);
    if (full.ok()) std::swap(waiting_[id], job);
  }
  if (!full.ok()) {
    std::move(job.done)(WithRetryAfterMs(std::move(full), kRetryAfterMs));
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
      const std::optional<uint64_t> next = queue_.Next();
      if (!next.has_value() || in_flight_.size() >= options_.in_flight_max) return;
      id = *next;
      Job job = std::move(waiting_.extract(id).mapped());
      queue_.Take(id, job.client);
      request = std::move(job.request);
      InFlightCall& call = in_flight_[id];
      call.client = std::move(job.client);
      call.done = std::move(job.done);
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
    InFlightCall call = std::move(in_flight_.extract(id).mapped());
    queue_.Leave(id, call.client);
    done = std::move(call.done);
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
      queue_.Leave(id, job.mapped().client);
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
