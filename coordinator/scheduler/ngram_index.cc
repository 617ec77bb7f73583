#include "coordinator/scheduler/ngram_index.h"

#include <algorithm>

namespace strata {
namespace {

uint64_t PairOf(int32_t first, int32_t second) {
  return uint64_t{static_cast<uint32_t>(first)} << 32 | static_cast<uint32_t>(second);
}

}  // namespace

void NgramIndex::Append(int32_t token) {
  // The pair before gets its place only now that a token stands behind it.
  const size_t n = tokens_.size();
  uint32_t before = 0;
  if (n >= 2 && token != kSeparator && tokens_[n - 1] != kSeparator &&
      tokens_[n - 2] != kSeparator) {
    uint32_t& last = last_[PairOf(tokens_[n - 2], tokens_[n - 1])];
    before = last;
    last = static_cast<uint32_t>(n);
  }
  tokens_.push_back(token);
  before_.push_back(before);
}

std::optional<NgramIndex::Match> NgramIndex::Find(absl::Span<const int32_t> sequence) const {
  if (sequence.size() < 2) return std::nullopt;
  const auto found =
      last_.find(PairOf(sequence[sequence.size() - 2], sequence[sequence.size() - 1]));
  if (found == last_.end()) return std::nullopt;
  Match best;
  int left = kCandidatesMax;
  for (uint32_t at = found->second; at != 0 && left > 0; at = before_[at], --left) {
    const size_t most = std::min({size_t{at}, sequence.size(), kLengthMax});
    size_t length = 2;
    while (length < most && tokens_[at - 1 - length] == sequence[sequence.size() - 1 - length])
      ++length;
    if (length > best.length) best = {.next = at, .length = length};
    if (length == kLengthMax) break;
  }
  return best;
}

}  // namespace strata
