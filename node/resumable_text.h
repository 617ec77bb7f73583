// What a client has heard of its text, so that another node can go on with it when the one that
// wrote it has gone. Stands between the text's source, one after the other, and who hears of it.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "node/text_call.h"
#include "proto/coordinator.pb.h"

namespace strata {

// Calls come as TextSink's: one source at a time, and a later one begins after the earlier one's
// last call. Not thread-safe.
class ResumableText final : public TextSink {
 public:
  ResumableText(const wire::GenerateTextRequest& request, std::shared_ptr<TextSink> sink)
      : request_(request), sink_(std::move(sink)) {}

  bool started() const { return started_; }

  // What to ask the next source for, once the text has started.
  wire::GenerateTextRequest Rest() const {
    wire::GenerateTextRequest rest = request_;
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
  void OnToken(const wire::SampledToken& token) override {
    tokens_.push_back(token.token());
    if (request_.sampler().mirostat() != 0) mirostat_mu_.push_back(token.mirostat_mu());
    sink_->OnToken(token);
  }
  void OnEnd(absl::Status status, FinishReason reason, const TextUsage& usage) override {
    TextUsage all = usage;
    all.prompt_tokens = static_cast<uint32_t>(prompt_.size());
    all.tokens = static_cast<uint32_t>(tokens_.size());
    sink_->OnEnd(std::move(status), reason, all);
  }

 private:
  const wire::GenerateTextRequest request_;
  const std::shared_ptr<TextSink> sink_;  // shared with who asked
  bool started_ = false;
  std::vector<int32_t> prompt_, tokens_;
  std::vector<float> mirostat_mu_;
};

}  // namespace strata
