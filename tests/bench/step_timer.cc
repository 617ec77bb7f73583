#include "tests/bench/step_timer.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "transport/rpc/grpc_status.h"

namespace strata {

void StepTimer::OnResult(wire::Result result) {
  absl::MutexLock lock(mu_);
  outcomes_.emplace_back(std::move(result));
}

void StepTimer::OnStepError(wire::StepError error) {
  absl::MutexLock lock(mu_);
  outcomes_.emplace_back(FromWire(error.status()));
}

void StepTimer::OnBroken(absl::Status status) {
  absl::MutexLock lock(mu_);
  outcomes_.emplace_back(std::move(status));
}

absl::StatusOr<wire::Result> StepTimer::Do(Pipeline* pipeline, const wire::Step& step) {
  if (auto sent = pipeline->Submit(step); !sent.ok()) return sent.status();
  absl::MutexLock lock(mu_);
  const auto come = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !outcomes_.empty(); };
  if (!mu_.AwaitWithTimeout(absl::Condition(&come), absl::Seconds(60))) {
    return absl::DeadlineExceededError("a step does not come back");
  }
  absl::StatusOr<wire::Result> outcome = std::move(outcomes_.front());
  outcomes_.pop_front();
  return outcome;
}

absl::StatusOr<StepTimes> StepTimer::Run(Pipeline* pipeline, const Options& options) {
  std::minstd_rand random(1);
  const auto draw = [&] { return static_cast<int32_t>(random() % std::max(1u, options.n_vocab)); };
  std::vector<int32_t> next(options.n_seqs);
  for (uint32_t slot = 0; slot < options.n_seqs; ++slot) {
    std::vector<int32_t> prompt(options.prompt_tokens);
    for (int32_t& token : prompt) token = draw();
    for (uint32_t begin = 0; begin < options.prompt_tokens; begin += options.chunk_tokens) {
      const uint32_t end = std::min(begin + options.chunk_tokens, options.prompt_tokens);
      wire::Step step;
      if (begin == 0) {
        wire::SequenceOpen* open = step.add_opens();
        open->set_slot(static_cast<int32_t>(slot));
        open->mutable_prompt()->Add(prompt.begin(), prompt.end());
        open->mutable_sampler()->set_ignore_eog(true);
      }
      for (uint32_t i = begin; i < end; ++i) {
        step.add_tokens(prompt[i]);
        step.add_positions(static_cast<int32_t>(i));
        step.add_slots(static_cast<int32_t>(slot));
      }
      if (end == options.prompt_tokens) step.add_sample_rows(end - begin - 1);
      auto result = Do(pipeline, step);
      if (!result.ok()) return result.status();
      if (result->tokens_size() > 0) next[slot] = result->tokens(0).token();
    }
  }

  StepTimes times;
  absl::Time begin = absl::Now();
  for (uint32_t i = 0; i < options.warm_steps + options.steps; ++i) {
    wire::Step step;
    for (uint32_t slot = 0; slot < options.n_seqs; ++slot) {
      step.add_tokens(next[slot]);
      step.add_positions(static_cast<int32_t>(options.prompt_tokens + i));
      step.add_slots(static_cast<int32_t>(slot));
      step.add_sample_rows(slot);
    }
    auto result = Do(pipeline, step);
    if (!result.ok()) return result.status();
    for (const wire::SampledToken& token : result->tokens()) {
      next[static_cast<size_t>(token.slot())] = token.token();
    }
    const absl::Time end = absl::Now();
    if (i >= options.warm_steps) {
      times.step_s.push_back(absl::ToDoubleSeconds(end - begin));
      std::vector<double>& compute = times.compute_s.emplace_back(pipeline->stages().size());
      std::vector<double>& queue = times.queue_s.emplace_back(pipeline->stages().size());
      for (const wire::StageTiming& timing : result->timings()) {
        if (timing.stage() >= compute.size()) continue;
        compute[timing.stage()] = (timing.compute_us() + timing.sample_us()) * 1e-6;
        queue[timing.stage()] = timing.queue_us() * 1e-6;
      }
    }
    begin = end;
  }
  return times;
}

}  // namespace strata
