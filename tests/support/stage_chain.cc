#include "tests/support/stage_chain.h"

namespace strata::testing {

absl::StatusOr<std::vector<float>> DecodeThrough(absl::Span<Stage* const> stages,
                                                 const std::vector<BatchRow>& rows) {
  std::vector<int32_t> tokens, positions, slots;
  std::vector<uint32_t> outputs;
  for (uint32_t i = 0; i < rows.size(); ++i) {
    tokens.push_back(rows[i].token);
    positions.push_back(rows[i].position);
    slots.push_back(rows[i].slot);
    if (rows[i].wants_logits) outputs.push_back(i);
  }
  Payload activations;
  for (Stage* stage : stages) {
    Stage::Batch batch = {.positions = positions, .slots = slots};
    if (stage->facts().is_first) batch.tokens = tokens;
    if (!stage->facts().is_first) batch.activations = activations.floats();
    if (stage->facts().is_last) batch.output_rows = outputs;
    if (absl::Status status = stage->Decode(batch); !status.ok()) return status;
    if (!stage->facts().is_last) activations = stage->TakeActivations();
  }
  std::vector<float> logits;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const absl::Span<const float> row = stages.back()->Logits(i);
    logits.insert(logits.end(), row.begin(), row.end());
  }
  return logits;
}

}  // namespace strata::testing
