// Stages one after the other in one process, without links: one batch through all of them.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "shard/engine/stage.h"
#include "tests/support/whole_model.h"

namespace strata::testing {

// As WholeModel::Decode(): logits of the rows that want them, [outputs, n_vocab]. The first stage
// of `stages` is the model's first, the last its last. Errors: a stage's own.
absl::StatusOr<std::vector<float>> DecodeThrough(absl::Span<Stage* const> stages,
                                                 const std::vector<BatchRow>& rows);

}  // namespace strata::testing
