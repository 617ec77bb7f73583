#include "shard/engine/slot_streams.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace strata {

SlotStreams::SlotStreams(uint32_t n_slots) : stream_(n_slots) {
  std::iota(stream_.begin(), stream_.end(), 0);
}

uint32_t SlotStreams::RunsOf(absl::Span<const int32_t> slots) const {
  std::vector<bool> used(stream_.size() + 1, false);  // one more, which stays unused
  for (const int32_t slot : slots) used[Of(slot)] = true;
  uint32_t runs = 0;
  for (size_t stream = 0; stream + 1 < used.size(); ++stream) {
    runs += used[stream] && !used[stream + 1] ? 1 : 0;
  }
  return runs;
}

SlotStreams::Plan SlotStreams::Gather(absl::Span<const int32_t> slots,
                                      absl::Span<const uint64_t> bytes) const {
  const size_t n = stream_.size(), k = slots.size();
  std::vector<int32_t> slot_of(n);
  for (size_t slot = 0; slot < n; ++slot) slot_of[stream_[slot]] = static_cast<int32_t>(slot);
  std::vector<bool> gathers(n, false);  // by slot
  uint64_t outside = 0;                 // bytes of `slots` outside the window
  for (const int32_t slot : slots) {
    gathers[slot] = true;
    outside += bytes[slot];
  }
  // Streams [begin, begin + k) are to be those of `slots`.
  uint64_t inside = 0, least = 0;  // bytes of other slots in the window; the least of both together
  size_t best = 0;
  for (size_t end = 0; end < n; ++end) {
    const auto move = [&](size_t stream, bool enters) {
      const int32_t slot = slot_of[stream];
      uint64_t& sum = gathers[slot] ? outside : inside;
      // A gathered slot that enters has to move no more; another one has to.
      if (gathers[slot] == enters) {
        sum -= bytes[slot];
      } else {
        sum += bytes[slot];
      }
    };
    move(end, true);
    if (end >= k) move(end - k, false);
    if (end + 1 < k) continue;
    const size_t begin = end + 1 - k;
    if (begin == 0 || outside + inside < least) {
      least = outside + inside;
      best = begin;
    }
  }
  Plan plan;
  if (RunsOf(slots) <= 1) return plan;
  plan.bytes = least;
  size_t stream = best;
  for (const int32_t slot : slots) {
    const auto at = static_cast<size_t>(Of(slot));
    if (at >= best && at < best + k) continue;
    while (gathers[slot_of[stream]]) ++stream;
    plan.exchanges.push_back({.slot = slot, .other = slot_of[stream++]});
  }
  return plan;
}

void SlotStreams::Apply(Exchange exchange) {
  std::swap(stream_[exchange.slot], stream_[exchange.other]);
}

}  // namespace strata
