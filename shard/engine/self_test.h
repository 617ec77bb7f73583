// A short test of a stage that has just been loaded, before it takes its first step: it computes a
// fixed input of a few rows, and what comes out is told with the answer to the load. Weights that
// differ from those of another device with the same layers give other numbers there
// (coordinator/generation/self_tests.h compares them), also where every hash was right: memory that
// flips bits, a file that changed under its mapping, a kernel that is wrong.
//
// Every layer gets the same input, whatever the layer before it gave, so that its result is the
// same in every stage that has it; only the model's first layer gets tokens. Results are small: a
// hash, and a sketch of every row that estimates how far two results are apart without either being
// kept.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "proto/node.pb.h"
#include "shard/engine/stage.h"

namespace strata {

// Raised by any change of the input or of the sketch.
inline constexpr uint32_t kSelfTestVersion = 1;
inline constexpr uint32_t kSelfTestRowsMax = 8;
inline constexpr size_t kSelfTestProjections = 4;

// Runs the test beside the stage's caches. Takes as long as a step of kSelfTestRowsMax rows. On the
// compute thread; blocks. A stage that cannot compute the input says so in `why_not_run`; one whose
// output is not numbers, in `fault`. `spec` is the stage's.
wire::SelfTest RunSelfTest(const wire::StageSpec& spec, Stage* stage);

// The sketch of `rows` [n_rows, n], for tests of what compares them. `input` is what entered the
// layers, of the same shape, and is subtracted, so that a large input does not hide a small
// difference; empty: nothing is. Numbers beyond 1e30, with which models mask logits, count as 0.
wire::SelfTestPoint SketchOf(absl::Span<const float> rows, absl::Span<const float> input,
                             size_t n_rows);

}  // namespace strata
