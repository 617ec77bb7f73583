// Replay buffer of a request: what its client has received, so that another node can resume it when
// the node that ran it has gone. Stands between the request's sources, one after the other, and its
// listener.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/generation/generation_call.h"
#include "coordinator/request/generation_request.h"
#include "coordinator/request/request_status.h"
#include "proto/coordinator.pb.h"

namespace strata {

// How a source ended.
struct SourceEnd {
  absl::Status status;
  bool from_source = true;  // false: the connection to the source broke
  bool started = false;     // the request had, at this source
  bool resumed = false;     // the request had begun at an earlier source
  bool wanted = true;       // false: the request was cancelled
};
enum class RetryDecision {
  kFinish,      // with the source's status
  kResume,      // with another source, which continues where this one was
  kRetryLater,  // with another source, which begins as this one did
  kRetry,       // the same, after a pause: the next coordinator has to load the model first, or has
                // more requests to resume than it takes at once
};
inline RetryDecision DecideRetry(const SourceEnd& end) {
  if (end.status.ok() || !end.wanted) return RetryDecision::kFinish;
  if (IsLeaderChanged(end.status)) return RetryDecision::kResume;
  if (!end.from_source) return end.started ? RetryDecision::kResume : RetryDecision::kRetryLater;
  // Without a time to try again, the exhausted resource is room for the model.
  const bool is_full = absl::IsResourceExhausted(end.status) && RetryAfterMs(end.status);
  const bool too_early = is_full || absl::IsNotFound(end.status) || absl::IsUnavailable(end.status);
  return end.resumed && !end.started && too_early ? RetryDecision::kRetry : RetryDecision::kFinish;
}

// Calls come as GenerationListener's: one source at a time, and a later source begins after the
// earlier source's last call. Not thread-safe.
class ResumableGeneration final : public GenerationListener {
 public:
  ResumableGeneration(const wire::GenerateRequest& request,
                      std::shared_ptr<GenerationListener> sink)
      : request_(request), sink_(std::move(sink)) {}

  bool started() const { return started_; }
  // In the sequence, of the first token that the client does not have.
  int32_t next_position() const {
    return static_cast<int32_t>(prompt_.size() + tokens_.size()) + request_.generated_size();
  }

  // The request for the next source. REQUIRES: the request has started.
  wire::GenerateRequest Rest() const {
    wire::GenerateRequest rest = request_;
    rest.clear_prompt();
    rest.mutable_tokens()->Assign(prompt_.begin(), prompt_.end());
    rest.mutable_generated()->Add(tokens_.begin(), tokens_.end());
    rest.mutable_mirostat_mu()->Add(mirostat_mu_.begin(), mirostat_mu_.end());
    return rest;
  }

  void OnStarted(const std::vector<int32_t>& prompt) override {
    if (std::exchange(started_, true)) return;
    prompt_ = prompt;
    sink_->OnStarted(prompt);
  }
  // Drops what the client knows: a later source begins with the prompt again.
  void OnProgress(const PromptProgress& progress) override {
    if (!tokens_.empty() || progress.done_tokens <= done_tokens_) return;
    done_tokens_ = progress.done_tokens;
    sink_->OnProgress(progress);
  }
  // Drops a token that the client has. REQUIRES: none is left out.
  void OnToken(const wire::SampledToken& token) override {
    if (token.position() < next_position()) return;
    if (!token.end_of_generation()) tokens_.push_back(token.token());
    if (request_.sampler().mirostat() != 0) mirostat_mu_.push_back(token.mirostat_mu());
    sink_->OnToken(token);
  }
  void OnEnd(absl::Status status, FinishReason reason, const GenerationUsage& usage) override {
    GenerationUsage all = usage;
    all.prompt_tokens = static_cast<uint32_t>(prompt_.size());
    all.tokens = static_cast<uint32_t>(tokens_.size());
    sink_->OnEnd(std::move(status), reason, all);
  }

 private:
  const wire::GenerateRequest request_;
  const std::shared_ptr<GenerationListener> sink_;  // shared with the caller
  bool started_ = false;
  std::vector<int32_t> prompt_, tokens_;
  std::vector<float> mirostat_mu_;
  std::optional<uint32_t> done_tokens_;  // of the prompt, as the client knows
};

}  // namespace strata
