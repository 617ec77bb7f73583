// Chooses the next token of one sequence from its logits, on the last stage. libllama's samplers do
// the filtering, penalties and grammars; the draw is ours (random.h), and so is mirostat, whose
// running value libllama does not show. Used by the compute thread only.
//
// The state is a function of the tokens so far, so a sequence can be reopened anywhere with its
// prompt and generated tokens, rewound, or copied.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/frame.pb.h"

struct llama_vocab;

namespace strata {

// Not thread-safe.
class SequenceSampler {
 public:
  // kInvalidArgument: a setting out of range, a grammar that does not parse, a token id outside the
  // vocabulary; the message names the field and what it may be. `vocab` outlives the sampler.
  static absl::StatusOr<std::unique_ptr<SequenceSampler>> Open(const wire::SequenceOpen& open,
                                                               const llama_vocab* vocab);
  virtual ~SequenceSampler() = default;

  // REQUIRES: the sequence so far is tokens [0, position). Chooses the token at `position`, appends
  // it and returns it with its piece and log-probabilities. `logits` is [n_vocab] and is not
  // changed. kInvalidArgument: `position` is not the sequence's length. kFailedPrecondition: no
  // token is allowed (a grammar that cannot go on and no end-of-generation token).
  virtual absl::StatusOr<wire::SampledToken> Sample(int32_t position,
                                                    absl::Span<const float> logits) = 0;

  // The batch feeds `token` at `position`: the token that this sampler has there already (then
  // nothing changes), or a correction from the coordinator: the sequence is cut there and continues
  // with `token`.
  virtual absl::Status Feed(int32_t position, int32_t token) = 0;

  // Whether `token` at `position` is the last token of the sequence, which it did not end.
  virtual bool Continues(int32_t position, int32_t token) const = 0;

  // Cuts the sequence to its first `length` tokens. Does nothing when it is shorter.
  virtual absl::Status Rewind(int32_t length) = 0;

  virtual const std::vector<int32_t>& tokens() const = 0;  // prompt + generated
};

}  // namespace strata
