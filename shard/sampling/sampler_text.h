// The tokens of one sequence and the sampler state that follows from them: the windows that
// penalties and DRY look back on, the state of the grammar, mirostat's running value. All of it is
// a function of the tokens and the settings, so it can be rebuilt from them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "llama.h"
#include "proto/frame.pb.h"
#include "shard/sampling/mirostat.h"

namespace strata {

struct LlamaSamplerDeleter {
  void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
};
using LlamaSamplerPtr = std::unique_ptr<llama_sampler, LlamaSamplerDeleter>;

// Limit on a grammar's processor time for one token: the steps of all sequences wait for it.
inline constexpr int kGrammarTimeMaxMs = 500;

// Not thread-safe.
class SamplerText {
 public:
  // `vocab` outlives this. REQUIRES: CheckSamplerSettings() accepted `settings`.
  SamplerText(const wire::SamplerSettings& settings, const llama_vocab* vocab);
  SamplerText(const SamplerText&) = delete;
  SamplerText& operator=(const SamplerText&) = delete;

  // Loads the sequence so far. kInvalidArgument: the grammar does not parse, or does not allow the
  // generated tokens; mirostat's values are missing.
  absl::Status Open(const wire::SequenceOpen& open);

  // Appends a generated token; `mu` is mirostat's value after it. kInvalidArgument, and nothing
  // changes: the grammar does not allow it.
  absl::Status Append(int32_t token, float mu);

  // Cuts the sequence to at most `length` tokens. Tokens appended after a cut inside the prompt
  // still belong to the prompt, up to its old length, unless a token is generated there.
  void Rewind(size_t length);

  // Puts a token of the prompt where a rewind has cut it.
  void AppendPrompt(int32_t token);
  bool is_in_prompt() const { return tokens_.size() < n_prompt_; }
  // Ends the prompt at the sequence's current end.
  void EndPrompt() { n_prompt_ = std::min(n_prompt_, tokens_.size()); }

  bool GrammarAllows(int32_t token) const;
  bool has_grammar() const { return grammar_ != nullptr; }
  bool looks_back() const { return penalties_ != nullptr || dry_ != nullptr; }

  // Lowers the logits of repeated tokens.
  void Penalize(llama_token_data_array* candidates) const;
  // Gives tokens that the grammar does not allow a logit of minus infinity. kInvalidArgument: the
  // grammar takes too long here.
  absl::Status RestrictToGrammar(llama_token_data_array* candidates) const;

  size_t n_generated() const { return tokens_.size() - std::min(n_prompt_, tokens_.size()); }
  float mu() const { return mu_.empty() ? InitialMu(mirostat_) : mu_.back(); }
  const MirostatSettings& mirostat() const { return mirostat_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }

 private:
  absl::Status MakeGrammar();
  void MakeWindows();
  void AddToWindows(int32_t token);

  const wire::SamplerSettings settings_;
  const llama_vocab* const vocab_;
  const MirostatSettings mirostat_;

  std::vector<int32_t> tokens_;  // prompt + generated
  size_t n_prompt_ = 0;
  std::vector<float> mu_;      // [generated], with mirostat only
  size_t window_size_ = 0;     // of the largest windows, over the whole sequence
  LlamaSamplerPtr penalties_;  // any of these may be null: off
  LlamaSamplerPtr dry_;
  LlamaSamplerPtr grammar_;  // has accepted the generated tokens, not the prompt
};

}  // namespace strata
