#include "shard/sampling/embedding_pool.h"

#include <cmath>
#include <cstddef>

#include "absl/strings/str_cat.h"

namespace strata {

bool EmbeddingPool::Takes(int32_t position, bool is_last) const {
  switch (pooling_) {
    case wire::POOLING_MEAN:
      return true;
    case wire::POOLING_CLS:
      return position == 0;
    default:
      return is_last;
  }
}

absl::Status EmbeddingPool::Add(int32_t position, absl::Span<const float> state) {
  const bool is_mean = pooling_ == wire::POOLING_MEAN;
  if (rows_ != (is_mean ? position : 0)) {
    return absl::FailedPreconditionError(
        absl::StrCat("an embedding of ", rows_, " rows gets the row ", position));
  }
  ++rows_;
  pooled_.resize(state.size());
  for (size_t i = 0; i < state.size(); ++i) pooled_[i] += state[i];
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> EmbeddingPool::Embedding() const {
  if (rows_ == 0) return absl::FailedPreconditionError("an embedding lacks its rows");
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
