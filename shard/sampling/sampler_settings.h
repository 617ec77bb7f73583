// Checks sampler settings that came from a client before anything is built from them: libllama's
// samplers assert on some values and silently ignore others.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "proto/frame.pb.h"

struct llama_vocab;

namespace strata {

// Alternatives that may be reported for one token.
inline constexpr uint32_t kLogprobsMax = 1000;
inline constexpr int kDryBreakersMax = 128;
inline constexpr int kStopTokensMax = 256;
inline constexpr int kLogprobTokensMax = 256;

// kInvalidArgument: a setting is out of range; the message names the field and what it may be.
absl::Status CheckSamplerSettings(const wire::SamplerSettings& settings, const llama_vocab* vocab);

}  // namespace strata
