// Encodes activations for a link: f32 unchanged, or fewer bytes by ggml's own conversions. A stage
// encodes by its link's rule, the next one decodes by the step's activation_type. Pure functions,
// any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/frame.pb.h"
#include "transport/link/payload.h"

namespace strata {

// "f32", "f16", "bf16", "q8_0"; "unknown" for any other value of a peer.
std::string ActivationTypeName(wire::ActivationType type);
std::optional<wire::ActivationType> ActivationTypeOf(absl::string_view name);

// Bytes of a row of n_embd values; 0: the type is unknown, or its blocks do not fit such a row.
size_t ActivationRowBytes(wire::ActivationType type, uint32_t n_embd);

// kInvalidArgument: rows of n_embd values cannot be sent by this rule, and why.
absl::Status CheckActivationRule(const wire::ActivationRule& rule, uint32_t n_embd);

// The type for a step of `rows` rows.
wire::ActivationType ActivationTypeFor(const wire::ActivationRule& rule, size_t rows);

// For people: "f16", "f32 to 4 rows, then q8_0".
std::string ActivationRuleText(const wire::ActivationRule& rule);

struct EncodedActivations {
  wire::ActivationType type = wire::F32;
  Payload payload;
};
// `f32` is [rows, n_embd] of floats. f32 is passed on uncopied, and so are rows with values that
// `type` would make infinite or lose (infinities and NaNs): a step carries its type, so the next
// stage gets the exact values. REQUIRES: ActivationRowBytes() of such rows is not 0.
EncodedActivations EncodeActivations(wire::ActivationType type, Payload f32);

// `payload` is [rows, n_embd] of `type`, by a peer: whole rows (ReadStep() has checked), any bytes.
// The floats are the payload's own where it is f32, else in `scratch`, which must not change while
// they are used.
absl::Span<const float> DecodeActivations(wire::ActivationType type, const Payload& payload,
                                          std::vector<float>* scratch);

}  // namespace strata
