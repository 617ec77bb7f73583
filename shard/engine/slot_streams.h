// Which stream of libllama's KV cache each slot has. With a stream for each sequence, libllama
// computes a step in one graph only where the streams of its rows are adjacent; each further run of
// adjacent streams is another graph, which reads all weights again. So slots that are computed
// together exchange streams with others until they are adjacent.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace strata {

// Not thread-safe.
class SlotStreams {
 public:
  // At first slot i has stream i.
  explicit SlotStreams(uint32_t n_slots);

  int32_t Of(int32_t slot) const { return stream_[slot]; }

  // How many runs of adjacent streams `slots` have. No slot twice.
  uint32_t RunsOf(absl::Span<const int32_t> slots) const;

  // Two slots that exchange their streams.
  struct Exchange {
    int32_t slot = 0;
    int32_t other = 0;
  };
  struct Plan {
    std::vector<Exchange> exchanges;
    uint64_t bytes = 0;  // that change their stream
  };
  // The exchanges after which the streams of `slots` are adjacent, with the fewest bytes.
  // `bytes`: [n_slots] what each slot has in its stream; 0: it is empty. No slot twice.
  Plan Gather(absl::Span<const int32_t> slots, absl::Span<const uint64_t> bytes) const;

  void Apply(Exchange exchange);

 private:
  std::vector<int32_t> stream_;  // by slot
};

}  // namespace strata
