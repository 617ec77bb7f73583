// Drafts of the next tokens of sequences. The scheduler has stages compute them while they would
// be idle; wrong ones never show (Chen et al., 2023, arXiv:2302.01318, and Leviathan et al., 2023,
// arXiv:2211.17192, for the idea; the last stage samples as ever and compares). Part of the
// scheduler: no I/O, one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/frame.pb.h"

namespace strata {

class Drafter {
 public:
  virtual ~Drafter() = default;

  // Whether it is for sequences of this kind; Draft() is called for no others.
  virtual bool Serves(wire::Speculation speculation) const = 0;

  // A sequence, by its request: what is known of it, and tokens that it is expected to repeat.
  // `adapts`: drafts that seldom prove right are kept back.
  struct Sequence {
    uint64_t request = 0;
    absl::Span<const int32_t> tokens;
    size_t prompt_tokens = 0;  // of them; the others are generated
    const wire::SamplerSettings* sampler = nullptr;
    absl::Span<const int32_t> prediction;
    bool adapts = true;
    // GenerationRequest::cache_scope: sequences of others get no drafts of it. With `is_kept` those
    // of the same do, also once it has ended.
    absl::string_view scope;
    bool is_kept = true;
  };
  virtual void Begin(const Sequence& sequence) = 0;
  // The sequence goes on with `token`. REQUIRES, as all below: it has begun, and not ended.
  virtual void Append(uint64_t request, int32_t token) = 0;
  // The token behind the sequence and `drafts`, which are those that were given for it; nullopt:
  // no draft.
  virtual std::optional<int32_t> Draft(uint64_t request, absl::Span<const int32_t> drafts) = 0;
  virtual void End(uint64_t request) = 0;
  // Sequences that have ended are not remembered.
  virtual void ForgetEnded() {}
};

}  // namespace strata
