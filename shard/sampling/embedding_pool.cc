#include "shard/sampling/embedding_pool.h"

#include <cmath>
#include <cstddef>

#include "absl/strings/str_cat.h"

namespace strata {

absl::Status EmbeddingPool::Add(int32_t position, absl::Span<const float> state) {
  if (takes_every_row() && position != rows_) {
    return absl::FailedPreconditionError(
        absl::StrCat("an embedding lacks the rows from ", rows_, " to ", position));
  }
  ++rows_;
  if (pooling_ == wire::POOLING_CLS && rows_ > 1) return absl::OkStatus();
  pooled_.resize(state.size());
  for (size_t i = 0; i < state.size(); ++i) {
    pooled_[i] = pooling_ == wire::POOLING_MEAN ? pooled_[i] + state[i] : state[i];
  }
  return absl::OkStatus();
}

std::vector<float> EmbeddingPool::Embedding() const {
  // The length makes a mean of a sum.
  double squares = 0;
  for (const double value : pooled_) squares += value * value;
  const double scale = squares > 0 ? 1 / std::sqrt(squares) : 0;
  std::vector<float> embedding;
  embedding.reserve(pooled_.size());
  for (const double value : pooled_) embedding.push_back(static_cast<float>(value * scale));
  return embedding;
}

}  // namespace strata
