// A client with one request: checks the output against the one that the request determines.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "coordinator/generation/generation_call.h"
#include "coordinator/request/generation_request.h"
#include "coordinator/request/request_status.h"
#include "proto/coordinator.pb.h"
#include "tests/sim/sim_text.h"

namespace strata {

class SimClient final : public GenerationListener {
 public:
  struct Options {
    size_t number = 0;
    size_t node = 0;  // that got the request
    wire::GenerateRequest request;
    uint32_t layers = 1;
    uint32_t n_ctx = 1;
    bool steps_fail = false;
    std::function<void(const std::string&)> violation;
  };
  enum class Fate {
    kOpen,      // in progress
    kComplete,  // the whole output came
    kRefused,   // it did not start
    kFailed,    // it had started
    kStopped,   // by the client
    kGone,      // the node that got the request has died
  };

  explicit SimClient(Options options)
      : options_(std::move(options)),
        sequence_(options_.layers,
                  {options_.request.tokens().begin(), options_.request.tokens().end()}),
        prompt_(sequence_.length()) {}

  Fate fate() const { return fate_; }
  bool open() const { return fate_ == Fate::kOpen; }
  size_t node() const { return options_.node; }
  size_t number() const { return options_.number; }
  size_t tokens() const { return sequence_.length() - prompt_; }
  const absl::Status& status() const { return status_; }
  bool has_handle() const { return handle_ != nullptr; }

  void SetHandle(std::shared_ptr<GenerationHandle> handle) { handle_ = std::move(handle); }
  void Stop(bool finish) {
    stopped_ = true;
    if (finish) {
      handle_->Finish();
    } else {
      handle_->Cancel();
    }
  }
  // Its connection is lost: it hears nothing more.
  void Gone() {
    if (open()) fate_ = Fate::kGone;
    handle_ = nullptr;
  }

  void OnStarted(const std::vector<int32_t>& prompt) override {
    if (fate_ == Fate::kGone) return;
    if (!open() || started_) Wrong("starts a second time, or after its end");
    if (prompt.size() != prompt_) Wrong("has another prompt");
    started_ = true;
  }

  void OnToken(const wire::SampledToken& token) override {
    if (fate_ == Fate::kGone) return;
    if (!open()) return Wrong("gets a token after its end");
    if (!started_) Wrong("gets a token before its start");
    const SimChoice next = sequence_.Next(options_.request.sampler().seed());
    if (token.position() != static_cast<int32_t>(sequence_.length())) {
      return Wrong(
          absl::StrCat("gets position ", token.position(), " instead of ", sequence_.length()));
    }
    if (next.is_end || token.token() != next.token) {
      return Wrong(absl::StrCat("gets another token at ", sequence_.length()));
    }
    sequence_.Push(token.token());
    if (tokens() > options_.request.tokens_max()) Wrong("gets more tokens than it asked for");
  }

  void OnEnd(absl::Status status, FinishReason reason, const GenerationUsage& usage) override {
    if (fate_ == Fate::kGone) return;
    if (!open()) return Wrong("ends a second time");
    status_ = std::move(status);
    handle_ = nullptr;
    if (stopped_) {
      fate_ = Fate::kStopped;
    } else if (!status_.ok()) {
      fate_ = started_ ? Fate::kFailed : Fate::kRefused;
      CheckFailure();
    } else {
      fate_ = Fate::kComplete;
      const bool ends = sequence_.Next(options_.request.sampler().seed()).is_end;
      const bool full =
          tokens() == options_.request.tokens_max() || sequence_.length() >= options_.n_ctx;
      if (reason == FinishReason::kEndOfGeneration ? !ends : !full) {
        Wrong(absl::StrCat("ends after ", tokens(), " tokens of ", options_.request.tokens_max()));
      }
      if (usage.tokens != tokens()) Wrong("gets a usage with another number of tokens than it got");
    }
  }

 private:
  // The errors that a cluster which has lost nodes may return.
  void CheckFailure() {
    const bool plain = absl::IsUnavailable(status_) || absl::IsResourceExhausted(status_) ||
                       absl::IsNotFound(status_) || absl::IsAborted(status_) ||
                       (options_.steps_fail && absl::IsInternal(status_));
    if (!plain) Wrong(absl::StrCat("ends with ", status_.ToString()));
    if (started_ && absl::IsResourceExhausted(status_) && RetryAfterMs(status_)) {
      Wrong(absl::StrCat("had begun, and ends since others wait: ", status_.message()));
    }
  }

  void Wrong(const std::string& what) {
    options_.violation(absl::StrCat("request ", options_.number, " ", what));
  }

  const Options options_;
  SimSequence sequence_;
  const size_t prompt_;
  Fate fate_ = Fate::kOpen;
  bool started_ = false;
  bool stopped_ = false;
  absl::Status status_;
  std::shared_ptr<GenerationHandle> handle_;  // shared with the request's source
};

}  // namespace strata
