#include "coordinator/generation/generate.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "transport/base/clock.h"
#include "transport/rpc/grpc_status.h"

namespace strata {

// What the pipeline's threads tell the thread in Run().
struct Generator::State {
  absl::Mutex mu;
  absl::CondVar changed;
  // What came back of each step, in order; at most the steps in flight.
  std::deque<absl::StatusOr<wire::Result>> outcomes ABSL_GUARDED_BY(mu);
  absl::Status broken ABSL_GUARDED_BY(mu);  // of the pipeline: nothing more will come
  bool cancelled ABSL_GUARDED_BY(mu) = false;
};

Generator::Generator() : state_(std::make_unique<State>()) {}
Generator::~Generator() = default;

void Generator::OnResult(wire::Result result) {
  absl::MutexLock lock(state_->mu);
  state_->outcomes.emplace_back(std::move(result));
  state_->changed.Signal();
}

void Generator::OnStepError(wire::StepError error) {
  absl::MutexLock lock(state_->mu);
  state_->outcomes.emplace_back(FromWire(error.status()));
  state_->changed.Signal();
}

void Generator::OnWritable() {
  absl::MutexLock lock(state_->mu);
  state_->changed.Signal();
}

void Generator::OnBroken(absl::Status status) {
  absl::MutexLock lock(state_->mu);
  if (state_->broken.ok()) state_->broken = std::move(status);
  state_->changed.Signal();
}

void Generator::Cancel() {
  absl::MutexLock lock(state_->mu);
  state_->cancelled = true;
  state_->changed.Signal();
}

namespace {

void AddTimings(const wire::Result& result, std::vector<GenerateResult::StageTotal>* totals) {
  for (const wire::StageTiming& timing : result.timings()) {
    if (timing.stage() >= totals->size()) continue;
    GenerateResult::StageTotal& total = (*totals)[timing.stage()];
    total.queue_us += timing.queue_us();
    total.compute_us += timing.compute_us();
    total.sample_us += timing.sample_us();
    ++total.steps;
  }
}

wire::Step PromptChunk(const GenerateRequest& request, size_t begin, size_t end) {
  wire::Step step;
  if (begin == 0) {
    wire::SequenceOpen* open = step.add_opens();
    open->mutable_prompt()->Add(request.prompt.begin(), request.prompt.end());
    *open->mutable_sampler() = request.sampler;
  }
  for (size_t i = begin; i < end; ++i) {
    step.add_tokens(request.prompt[i]);
    step.add_positions(static_cast<int32_t>(i));
    step.add_slots(0);
  }
  if (end == request.prompt.size()) step.add_sample_rows(static_cast<uint32_t>(end - begin - 1));
  return step;
}

wire::Step DecodeStep(const wire::SampledToken& token) {
  wire::Step step;
  step.add_tokens(token.token());
  step.add_positions(token.position());
  step.add_slots(0);
  step.add_sample_rows(0);
  return step;
}

wire::Step DropStep() {
  wire::Step step;
  wire::KvEdit* edit = step.add_edits();
  edit->set_kind(wire::KvEdit::DROP);
  edit->set_slot(0);
  return step;
}

}  // namespace

absl::StatusOr<GenerateResult> Generator::Run(
    Pipeline* pipeline, const GenerateRequest& request,
    absl::FunctionRef<bool(const wire::SampledToken&)> on_token) {
  if (request.prompt.empty()) return absl::InvalidArgumentError("the prompt is empty");
  if (request.prompt.size() + 1 > request.n_ctx) {
    return absl::InvalidArgumentError(absl::StrCat("the prompt has ", request.prompt.size(),
                                                   " tokens; a context of ", request.n_ctx,
                                                   " has no room for it and an answer"));
  }
  const size_t tokens_max =
      std::min<size_t>(request.tokens_max, request.n_ctx - request.prompt.size());
  const Clock& clock = *Clock::Real();

  GenerateResult result;
  result.prompt_stages.resize(pipeline->stages().size());
  result.decode_stages.resize(pipeline->stages().size());
  size_t in_flight = 0;
  const auto submit = [&](const wire::Step& step) -> absl::Status {
    while (true) {
      absl::Status sent = pipeline->Submit(step).status();
      if (sent.ok()) {
        ++in_flight;
        return sent;
      }
      absl::MutexLock lock(state_->mu);
      if (!state_->broken.ok()) return state_->broken;
      if (!absl::IsResourceExhausted(sent)) return sent;
      if (state_->cancelled) return absl::CancelledError("cancelled");
      // OnWritable() may have come between Submit() and this lock, so never wait for it alone.
      state_->changed.WaitWithTimeout(&state_->mu, absl::Milliseconds(20));
    }
  };
  const auto next_outcome = [&]() -> absl::StatusOr<wire::Result> {
    absl::MutexLock lock(state_->mu);
    while (state_->outcomes.empty()) {
      if (!state_->broken.ok()) return state_->broken;
      if (state_->cancelled) return absl::CancelledError("cancelled");
      state_->changed.Wait(&state_->mu);
    }
    absl::StatusOr<wire::Result> next = std::move(state_->outcomes.front());
    state_->outcomes.pop_front();
    --in_flight;
    return next;
  };

  const auto text = [&]() -> absl::Status {
    const int64_t start_us = clock.NowUs();
    const size_t chunk = std::max<size_t>(request.chunk_tokens, 1);
    for (size_t begin = 0; begin < request.prompt.size(); begin += chunk) {
      const size_t end = std::min(begin + chunk, request.prompt.size());
      if (auto s = submit(PromptChunk(request, begin, end)); !s.ok()) return s;
    }
    int64_t first_us = 0, last_us = start_us;
    while (result.tokens.size() < tokens_max) {
      auto next = next_outcome();
      if (!next.ok()) return next.status();
      if (next->errors_size() > 0) return FromWire(next->errors(0).status());
      const bool prompt = result.tokens.empty();
      AddTimings(*next, prompt ? &result.prompt_stages : &result.decode_stages);
      if (next->tokens_size() == 0) continue;  // a chunk of the prompt that is not its last
      const wire::SampledToken& token = next->tokens(0);
      last_us = clock.NowUs();
      if (prompt) first_us = last_us;
      result.prompt_us = first_us - start_us;
      result.decode_us = last_us - first_us;
      result.tokens.push_back(token);
      if (token.end_of_generation()) {
        result.finish = FinishReason::kEndOfGeneration;
        return absl::OkStatus();
      }
      if (!on_token(token)) return absl::CancelledError("cancelled");
      if (result.tokens.size() == tokens_max) break;
      if (auto s = submit(DecodeStep(token)); !s.ok()) return s;
    }
    result.finish = FinishReason::kLength;
    return absl::OkStatus();
  };

  absl::Status status = text();
  if (absl::IsCancelled(status)) {
    result.finish = FinishReason::kCancelled;
    status = absl::OkStatus();
  }
  {
    absl::MutexLock lock(state_->mu);
    state_->cancelled = false;  // what is left to do is short
  }
  // Leave the slot empty, and nothing of this text in flight.
  absl::Status left = submit(DropStep());
  while (left.ok() && in_flight > 0) {
    left = next_outcome().status();
    absl::MutexLock lock(state_->mu);
    if (state_->broken.ok()) left = absl::OkStatus();  // a step's own failure: go on to the last
  }
  if (status.ok() && !left.ok()) status = left;
  if (!status.ok()) return status;
  return result;
}

}  // namespace strata
