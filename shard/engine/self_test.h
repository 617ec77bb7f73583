// A short test of a stage that has just been loaded, before its first step: it computes a fixed
// input of a few rows, and the output is reported in the response to the load. Weights that differ
// from those of another device with the same layers give other numbers
// (coordinator/generation/self_tests.h compares them), even where every hash was right: memory that
// flips bits, a file that changed under its mapping, a wrong kernel.
//
// Every layer gets the same input instead of the previous layer's output, so that its result is the
// same in every stage that has it; only the model's first layer gets tokens. Results are small: a
// hash, and a sketch of every row, which estimates the distance of two results without keeping
// either.
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

// The sketch of `rows` [n_rows, n]; public for tests of the comparison. `input` is the layers'
// input, of the same shape, and is subtracted, so that a large input does not hide a small
// difference; empty: nothing is. Numbers beyond 1e30, with which models mask logits, count as 0.
wire::SelfTestPoint SketchOf(absl::Span<const float> rows, absl::Span<const float> input,
                             size_t n_rows);

}  // namespace strata
