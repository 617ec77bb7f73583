// The embedding of one sequence, on the last stage: the states of its rows behind the model's last
// norm, pooled as libllama pools them (llama_pooling_type), but over any number of batches, and of
// length 1. Used by the compute thread only.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/frame.pb.h"

namespace strata {

// Not thread-safe.
class EmbeddingPool {
 public:
  // REQUIRES: `pooling` is a kind of pooling, not off nor the model's.
  explicit EmbeddingPool(wire::Pooling pooling) : pooling_(pooling) {}

  // Whether Add() needs the row at `position`, the sequence's last one or not.
  bool Takes(int32_t position, bool is_last) const;
  // The state of a row that Takes() wants, [n_embd]. kFailedPrecondition: it is out of order.
  absl::Status Add(int32_t position, absl::Span<const float> state);
  // Of the rows so far, [n_embd]. kFailedPrecondition: there are none.
  absl::StatusOr<std::vector<float>> Embedding() const;

 private:
  wire::Pooling pooling_;
  std::vector<double> pooled_;  // a sum, or one row
  int32_t rows_ = 0;            // that were added
};

}  // namespace strata
