// The type in which activations are sent over each link of a plan: one type everywhere, as the user
// sets it, or for each link a type by the speeds of link and sender. Pure; any thread.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/frame.pb.h"

namespace strata {

// `--activations`.
struct ActivationChoice {
  bool is_auto = false;
  wire::ActivationType type = wire::F32;  // unless is_auto
};
// "f32", "f16", "bf16", "q8_0", "auto"; empty: f32. kInvalidArgument: anything else.
absl::StatusOr<ActivationChoice> ParseActivations(absl::string_view text);

// f32 is exact. It is given up where its bytes take longer than this share of the sending stage's
// compute time; so the time that does not overlap is less than this share of the whole.
inline constexpr double kF32TimeShareMax = 0.05;
// The error of f16 is far below that of usual quantised weights, that of q8_0 is not
// (tests/bench/README.md): it takes more to give up f16.
inline constexpr double kF16TimeShareMax = 0.2;

struct LinkLoad {
  double bytes_per_s = 0;  // of the link; 0: not measured
  uint32_t n_embd = 0;
  uint32_t rows_max = 1;  // of a step
};
// `stage_s(rows)` is the time of the sending stage for a step of `rows` rows. A step of one row is
// mostly reading weights, one of many mostly arithmetic, so with more rows the link takes a larger
// share of the stage's time: steps up to some number of rows, a power of two, are sent as f32.
// Those above are sent as f16, or as q8_0 where f16 still takes too long at rows_max, and rows have
// its blocks.
wire::ActivationRule ChooseActivations(const LinkLoad& link,
                                       absl::FunctionRef<double(uint32_t rows)> stage_s);

}  // namespace strata
