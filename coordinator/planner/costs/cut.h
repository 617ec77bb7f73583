// Where to cut a model's layers into stages: by hand, or so that the largest stage has the fewest
// bytes. Pure functions of the model's header and its architecture's rule.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "shard/model/architecture.h"
#include "shard/model/gguf.h"

namespace strata {

// Bytes of weights by place in the model.
struct LayerBytes {
  std::vector<uint64_t> layers;  // [n_layer]
  uint64_t first = 0;            // token embedding: with the first stage
  uint64_t last = 0;  // output norm and head: with the last stage (tied: the embedding again)
};

LayerBytes CountLayerBytes(const GgufHeader& header);

// `n_stages` ranges that cover all layers, cut where `rule` allows, with the smallest possible
// largest stage; among those, the earliest cuts. kFailedPrecondition: the rule allows no cut or too
// few; kInvalidArgument: n_stages is 0 or more than there are layers.
absl::StatusOr<std::vector<LayerRange>> CutByBytes(const LayerBytes& bytes, const CutRule& rule,
                                                   uint32_t n_stages);

// Ranges that begin at 0 and at each of `cuts`. kInvalidArgument: the cuts do not rise or lie
// outside the model; kFailedPrecondition: the rule does not allow one; the message lists those it
// allows.
absl::StatusOr<std::vector<LayerRange>> CutAt(uint32_t n_layer, const CutRule& rule,
                                              absl::Span<const uint32_t> cuts);

}  // namespace strata
