// The embedding of one sequence, on the last stage: the states of its rows behind the model's last norm,
// pooled as libllama pools them (llama_pooling_type), but over any number of batches, and of length 1.
// Used by the compute thread only.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/frame.pb.h"

namespace strata {

// Not thread-safe.
class EmbeddingPool {
 public:
  // REQUIRES: `pooling` is a kind of pooling, not off nor the model's.
  explicit EmbeddingPool(wire::Pooling pooling) : pooling_(pooling) {}

  // Whether Add() needs every row; else the last one.
  bool takes_every_row() const { return pooling_ != wire::POOLING_LAST; }
  // The state of the row at `position`, [n_embd]. Where every row is needed they come in order, from 0
  // on. kFailedPrecondition: one was left out.
  absl::Status Add(int32_t position, absl::Span<const float> state);
  // Of the rows so far, [n_embd]. REQUIRES: there are some.
  std::vector<float> Embedding() const;

 private:
  wire::Pooling pooling_;
  std::vector<double> pooled_;  // a sum, or one row
  int32_t rows_ = 0;
};

}  // namespace strata
