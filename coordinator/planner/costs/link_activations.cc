#include "coordinator/planner/costs/link_activations.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "shard/engine/activation_codec.h"

namespace strata {

absl::StatusOr<ActivationChoice> ParseActivations(absl::string_view text) {
  if (text.empty()) return ActivationChoice();
  if (text == "auto") return ActivationChoice{.is_auto = true};
  const auto type = ActivationTypeOf(text);
  if (type.has_value()) return ActivationChoice{.type = *type};
  return absl::InvalidArgumentError(absl::StrCat(
      "--activations: \"", text, "\" is not understood; it is f32, f16, bf16, q8_0 or auto"));
}

wire::ActivationRule ChooseActivations(const LinkLoad& link,
                                       absl::FunctionRef<double(uint32_t rows)> stage_s) {
  wire::ActivationRule rule;
  if (!(link.bytes_per_s > 0)) return rule;
  const auto keeps_to = [&](double share, wire::ActivationType type, uint32_t rows) {
    const double bytes =
        static_cast<double>(rows) * static_cast<double>(ActivationRowBytes(type, link.n_embd));
    return bytes / link.bytes_per_s <= share * stage_s(rows);
  };
  const uint32_t rows_max = std::max(1u, link.rows_max);
  uint32_t rows = 1;  // to try next
  uint32_t kept = 0;
  while (keeps_to(kF32TimeShareMax, wire::F32, rows)) {
    if (rows == rows_max) return rule;
    kept = rows;
    rows = std::min(2 * uint64_t{rows}, uint64_t{rows_max});
  }
  rule.set_f32_rows_max(kept);
  const bool has_blocks = ActivationRowBytes(wire::Q8_0, link.n_embd) != 0;
  const bool f16_will_do = keeps_to(kF16TimeShareMax, wire::F16, rows_max);
  rule.set_type(f16_will_do || !has_blocks ? wire::F16 : wire::Q8_0);
  return rule;
}

}  // namespace strata
