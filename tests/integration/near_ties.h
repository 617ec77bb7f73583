// Whether a text is the one that libllama alone would write, where another order of additions may
// decide between tokens that are as likely.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "llama.h"
#include "tests/support/whole_model.h"

namespace strata::testing {

// What rounding can do: a text that is fed again goes through the kernels in other batches.
inline constexpr float kNearTie = 0.3f;

// How many of `tokens` behind `prompt` are not the likeliest that libllama alone finds there,
// though as likely within `near`, in logits. A token that is missing, twice or wrong shows as one
// that is not. `held`: what the call before has left in the model's slot, for texts that begin
// alike; null: it is empty, and again in the end.
inline size_t NearTies(WholeModel* model, const std::vector<int32_t>& prompt,
                       const std::vector<int32_t>& tokens, float near,
                       std::vector<int32_t>* held = nullptr) {
  const llama_vocab* const vocab = llama_model_get_vocab(model->model());
  const auto n_vocab = static_cast<size_t>(llama_vocab_n_tokens(vocab));
  std::vector<int32_t> text = prompt;
  text.insert(text.end(), tokens.begin(), tokens.end());
  size_t ties = 0, known = 0;
  if (held != nullptr) {
    const auto same = std::mismatch(held->begin(), held->end(), text.begin(), text.end());
    known = std::min<size_t>(same.first - held->begin(), prompt.size() - 1);
    model->Trim(0, static_cast<int32_t>(known));
    held->clear();
  }
  for (size_t begin = known; begin + 1 < text.size(); begin += 64) {
    std::vector<BatchRow> rows;
    for (size_t i = begin; i < std::min(begin + 64, text.size() - 1); ++i) {
      rows.push_back({.token = text[i],
                      .position = static_cast<int32_t>(i),
                      .wants_logits = i + 1 >= prompt.size()});
    }
    const auto logits = model->Decode(rows);
    EXPECT_TRUE(logits.ok()) << logits.status();
    if (!logits.ok()) {
      model->Drop(0);
      return ties;
    }
    const float* row = logits->data();
    for (size_t i = std::max(begin, prompt.size() - 1); i < begin + rows.size(); ++i) {
      float most = row[text[i + 1]];
      for (size_t token = 0; token < n_vocab; ++token) {
        if (!llama_vocab_is_eog(vocab, static_cast<int32_t>(token))) {
          most = std::max(most, row[token]);
        }
      }
      EXPECT_LT(most - row[text[i + 1]], near) << "token " << i + 1 - prompt.size();
      ties += most > row[text[i + 1]];
      row += n_vocab;
    }
  }
  if (held == nullptr) {
    model->Drop(0);
  } else {
    held->assign(text.begin(), text.end() - 1);
  }
  return ties;
}

}  // namespace strata::testing
