// One sequence from prompt to end over a pipeline: cuts the prompt into chunks that follow each
// other through the stages, then feeds every sampled token back as the next step.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "coordinator/generation/pipeline.h"
#include "coordinator/request/generation_request.h"
#include "proto/frame.pb.h"

namespace strata {

struct GenerateRequest {
  std::vector<int32_t> prompt;  // at least one token
  uint32_t tokens_max = 128;
  uint32_t n_ctx = 512;         // of the pipeline
  uint32_t chunk_tokens = 128;  // rows of a prompt step, at most the pipeline's n_batch
  wire::SamplerSettings sampler;
};

struct GenerateResult {
  std::vector<wire::SampledToken> tokens;
  FinishReason finish = FinishReason::kLength;
  int64_t prompt_us = 0;  // from the first step sent to the first token
  int64_t decode_us = 0;  // from the first token to the last
  using StageTotal = strata::StageTotal;
  std::vector<StageTotal> prompt_stages;  // by stage
  std::vector<StageTotal> decode_stages;
};

// Takes a pipeline's events and runs one text at a time. The pipeline is built with it as its
// listener.
class Generator final : public Pipeline::Listener {
 public:
  // Blocks until the text ends, in slot 0 of `pipeline`, which it leaves empty. `on_token` is
  // called on this thread for each token as it comes; false ends the text (kCancelled).
  // kInvalidArgument: an empty prompt, or one with no room for a token behind it; else the status
  // of the step or the pipeline that failed.
  absl::StatusOr<GenerateResult> Run(Pipeline* pipeline, const GenerateRequest& request,
                                     absl::FunctionRef<bool(const wire::SampledToken&)> on_token);

  // Any thread; also from a signal's thread: a Run() under way ends with kCancelled.
  void Cancel();

  Generator();
  ~Generator() override;

 private:
  void OnResult(wire::Result result) override;
  void OnStepError(wire::StepError error) override;
  void OnWritable() override;
  void OnBroken(absl::Status status) override;

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace strata
