// The tokens of sequences, and where the last tokens of another one stand in them: chains of places
// with the same two tokens, as LZ77 has of bytes. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "absl/types/span.h"

namespace strata {

class NgramIndex {
 public:
  // Belongs to no n-gram.
  static constexpr int32_t kSeparator = -1;

  void Append(int32_t token);

  // The place behind the longest end of `sequence`, of 2 to kLengthMax tokens, that stands here
  // with a token behind it; of equally long ones the last.
  struct Match {
    size_t next = 0;
    size_t length = 0;
  };
  std::optional<Match> Find(absl::Span<const int32_t> sequence) const;

  // Valid until the next Append().
  absl::Span<const int32_t> tokens() const { return tokens_; }

  static constexpr size_t kLengthMax = 32;

 private:
  static constexpr int kCandidatesMax = 64;

  std::vector<int32_t> tokens_;
  // By two tokens, the place behind their last occurrence; by place, the occurrence before. 0:
  // none.
  std::unordered_map<uint64_t, uint32_t> last_;
  std::vector<uint32_t> before_;
};

}  // namespace strata
