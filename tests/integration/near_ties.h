// Whether a sequence is the one that libllama alone would generate, where another order of
// additions may decide between tokens that are as likely.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "llama.h"
#include "proto/frame.pb.h"
#include "shard/sampling/sampler.h"
#include "tests/support/whole_model.h"

namespace strata::testing {

// Rounding may change a token: a sequence that is replayed goes through the kernels in other
// batches. Between libllama's own logits of eight sequences side by side and of 64 tokens at once,
// 33600 tokens of the demo model on an AVX-512 CPU, one logit differs by up to 0.37; two may in
// opposite directions.
inline constexpr float kNearTie = 0.5f;

struct Feeding {
  // Tokens that the previous call left in the model's slot, for sequences that begin alike; null:
  // the slot is empty, and is emptied again at the end.
  std::vector<int32_t>* held = nullptr;
  // Where the first half of the context is forgotten, each time it is full; 0: nowhere.
  size_t shifted_at = 0;
};

// Calls `each` with the logits that libllama alone finds for each of `tokens` behind `prompt`.
inline void ForEachToken(WholeModel* model, const std::vector<int32_t>& prompt,
                         const std::vector<int32_t>& tokens, Feeding how,
                         absl::FunctionRef<void(size_t token, absl::Span<const float>)> each) {
  const llama_vocab* const vocab = llama_model_get_vocab(model->model());
  const auto n_vocab = static_cast<size_t>(llama_vocab_n_tokens(vocab));
  std::vector<int32_t> sequence = prompt;
  sequence.insert(sequence.end(), tokens.begin(), tokens.end());
  size_t known = 0;
  if (how.held != nullptr) {
    const auto same =
        std::mismatch(how.held->begin(), how.held->end(), sequence.begin(), sequence.end());
    known = std::min<size_t>(same.first - how.held->begin(), prompt.size() - 1);
    model->Trim(0, static_cast<int32_t>(known));
    how.held->clear();
  }
  size_t forgotten = 0, end = 0;
  for (size_t begin = known; begin + 1 < sequence.size(); begin = end) {
    if (how.shifted_at != 0 && begin - forgotten == how.shifted_at) {
      const size_t half = how.shifted_at / 2;
      model->Shift(0, static_cast<int32_t>(half), -static_cast<int32_t>(half));
      forgotten += half;
    }
    end = std::min(begin + 64, sequence.size() - 1);
    if (how.shifted_at != 0) end = std::min(end, forgotten + how.shifted_at);
    std::vector<BatchRow> rows;
    for (size_t i = begin; i < end; ++i) {
      rows.push_back({.token = sequence[i],
                      .position = static_cast<int32_t>(i - forgotten),
                      .wants_logits = i + 1 >= prompt.size()});
    }
    const auto logits = model->Decode(rows);
    EXPECT_TRUE(logits.ok()) << logits.status();
    if (!logits.ok()) {
      model->Drop(0);
      return;
    }
    const float* row = logits->data();
    for (size_t i = std::max(begin, prompt.size() - 1); i < begin + rows.size(); ++i) {
      each(i + 1 - prompt.size(), {row, n_vocab});
      row += n_vocab;
    }
  }
  if (how.held == nullptr) {
    model->Drop(0);
  } else {
    how.held->assign(sequence.begin(), sequence.end() - 1);
  }
}

// How many of `tokens` behind `prompt` are not the likeliest that libllama alone finds there,
// though as likely within `near`, in logits. A token that is missing, twice or wrong shows as one
// that is not.
inline size_t NearTies(WholeModel* model, const std::vector<int32_t>& prompt,
                       const std::vector<int32_t>& tokens, float near, Feeding how = {}) {
  const llama_vocab* const vocab = llama_model_get_vocab(model->model());
  size_t ties = 0;
  ForEachToken(model, prompt, tokens, how, [&](size_t i, absl::Span<const float> logits) {
    const float its = logits[static_cast<size_t>(tokens[i])];
    float most = its;
    for (size_t token = 0; token < logits.size(); ++token) {
      if (!llama_vocab_is_eog(vocab, static_cast<int32_t>(token))) {
        most = std::max(most, logits[token]);
      }
    }
    EXPECT_LT(most - its, near) << "token " << i;
    ties += most > its;
  });
  return ties;
}

// Calls `is_it` with logits within `near` / 2 of `logits`, one set after the other, until it
// returns true, to find the tokens that a draw may give for them. A token is drawn by where a
// number falls among the sums of the probabilities, the likeliest first: so `token`, those before
// it and those behind it are moved apart or together; then all at random, but alike in each call.
inline void ForEachRounding(absl::Span<const float> logits, int32_t token, float near,
                            absl::FunctionRef<bool(absl::Span<const float>)> is_it) {
  constexpr int kSteps = 16;
  constexpr int kRandom = 400;
  const float its = logits[static_cast<size_t>(token)];
  std::vector<float> rounded(logits.size());
  for (int step = 1; step <= kSteps; ++step) {
    const float by = near / 2 * static_cast<float>(step) / kSteps;
    for (int signs = 0; signs < 27; ++signs) {
      const int sign_at = signs / 3 % 3, sign_behind = signs / 9;
      const float before = by * static_cast<float>(signs % 3 - 1);
      const float at = by * static_cast<float>(sign_at - 1);
      const float behind = by * static_cast<float>(sign_behind - 1);
      for (size_t i = 0; i < logits.size(); ++i) {
        rounded[i] = logits[i] + (logits[i] > its ? before : behind);
      }
      rounded[static_cast<size_t>(token)] = its + at;
      if (is_it(rounded)) return;
    }
  }
  std::mt19937 random(static_cast<uint32_t>(token));
  for (int i = 0; i < kRandom; ++i) {
    const float by = near / 2 / static_cast<float>(1 << i % 4);
    std::uniform_real_distribution<float> rounding(-by, by);
    std::ranges::transform(logits, rounded.begin(), [&](float l) { return l + rounding(random); });
    if (is_it(rounded)) return;
  }
}

// The same for a sampled sequence: how many of `tokens` behind the prompt of `open` its sampler
// does not choose from the logits that libllama alone finds, though it does from others that are
// the same within `near` / 2.
inline size_t NearDraws(WholeModel* model, const wire::SequenceOpen& open,
                        const std::vector<int32_t>& tokens, float near) {
  const std::vector<int32_t> prompt(open.prompt().begin(), open.prompt().end());
  auto sampler = SequenceSampler::Open(open, llama_model_get_vocab(model->model()));
  EXPECT_TRUE(sampler.ok()) << sampler.status();
  if (!sampler.ok()) return 0;
  const auto choose = [&](int32_t position, absl::Span<const float> logits) {
    const auto chosen = (*sampler)->Sample(position, logits);
    EXPECT_TRUE(chosen.ok()) << chosen.status();
    return chosen.ok() ? chosen->token() : -1;
  };
  size_t draws = 0;
  ForEachToken(model, prompt, tokens, {}, [&](size_t i, absl::Span<const float> logits) {
    const auto position = static_cast<int32_t>(prompt.size() + i);
    int32_t chosen = choose(position, logits);
    if (chosen == tokens[i]) return;
    ForEachRounding(logits, tokens[i], near, [&](absl::Span<const float> rounded) {
      EXPECT_TRUE((*sampler)->Rewind(position).ok());
      chosen = choose(position, rounded);
      return chosen == tokens[i];
    });
    EXPECT_EQ(chosen, tokens[i]) << "token " << i;
    ++draws;
    EXPECT_TRUE((*sampler)->Feed(position, tokens[i]).ok());
  });
  return draws;
}

}  // namespace strata::testing
