// Drafts of a draft model: a smaller one with the same vocabulary, which has a pipeline of its own.
// For each sequence one request at a time generates a few tokens ahead there, with the sequence's
// own sampler (Chen et al., 2023, arXiv:2302.01318).
//
//   Draft() ─▶ post ─▶ draft model's GenerationEngine::Add() … OnToken() ─▶ on_drafted ─▶ Draft()
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "coordinator/generation/generation_engine.h"
#include "coordinator/scheduler/drafter.h"

namespace strata {

// Not thread-safe; what it starts elsewhere may outlive it.
class ModelDrafter final : public Drafter {
 public:
  struct Options {
    // The draft model's engine; null: it is not served, or has another vocabulary. By `post`.
    std::function<std::shared_ptr<GenerationEngine>()> find;
    // Calls `fn` soon, on a thread that holds no lock of the caller, or never.
    std::function<void(absl::AnyInvocable<void() &&> fn)> post;
    // Draft() may return something else than before. Any thread, without a lock held.
    std::function<void()> on_drafted;
  };
  explicit ModelDrafter(Options options);
  ~ModelDrafter() override;

  bool Serves(wire::Speculation speculation) const override {
    return speculation == wire::SPECULATION_AUTO || speculation == wire::SPECULATION_DRAFT;
  }
  void Begin(const Sequence& sequence) override;
  void Append(uint64_t request, int32_t token) override;
  std::optional<int32_t> Draft(uint64_t request, absl::Span<const int32_t> drafts) override;
  void End(uint64_t request) override;

 private:
  class Continuation;
  struct State {
    std::vector<int32_t> tokens;
    size_t prompt_tokens = 0;
    wire::SamplerSettings sampler;
    std::string scope;
    bool is_kept = true;
    std::shared_ptr<Continuation> continuation;  // shared with the draft model's engine; null: none
    uint32_t useless = 0;                        // continuations in a row that came too late
    size_t pause_until = 0;                      // length of the sequence
  };
  // Asks the draft model for the tokens that follow the `drafted` ones of the continuation.
  void Ask(const State& state, absl::Span<const int32_t> drafted);
  void GiveUp(State* state);

  const std::shared_ptr<const Options> options_;  // shared with continuations
  std::map<uint64_t, State> states_;              // by request
};

}  // namespace strata
