// A peer's step: the header as protobuf, after a byte with the number of bytes of activations
// behind it. A step that passes has the shapes that the stage relies on.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/string_view.h"
#include "shard/engine/activation_codec.h"
#include "shard/serving/step_check.h"

namespace strata {
namespace {

void Check(bool right) {
  if (!right) std::abort();
}

wire::StageSpec Spec() {
  wire::StageSpec spec;
  spec.set_model_id("model");
  spec.mutable_epoch()->set_counter(5);
  spec.mutable_epoch()->set_coordinator_id("b");
  return spec;
}

void CheckStep(const wire::Step& step, const StepLimits& limits, size_t payload_bytes) {
  const auto n = static_cast<size_t>(step.tokens_size());
  const auto has_slot = [&](int32_t slot) {
    return slot >= 0 && static_cast<uint32_t>(slot) < limits.n_seq_max;
  };
  Check(n <= limits.n_batch && step.step_id() > 6);
  Check(static_cast<size_t>(step.positions_size()) == n);
  Check(static_cast<size_t>(step.slots_size()) == n);
  for (int32_t position : step.positions()) Check(position >= 0);
  for (int32_t slot : step.slots()) Check(has_slot(slot));
  for (uint32_t row : step.sample_rows()) Check(row < n);
  Check(static_cast<size_t>(step.sample_rows_size()) <= n);
  for (uint32_t row : step.draft_rows()) Check(row < n);
  for (const wire::SequenceOpen& open : step.opens()) Check(has_slot(open.slot()));
  for (const wire::KvEdit& edit : step.edits()) {
    Check(has_slot(edit.slot()));
    if (edit.kind() == wire::KvEdit::COPY) Check(has_slot(edit.from_slot()));
  }
  const size_t row =
      limits.n_embd == 0 ? 0 : ActivationRowBytes(step.activation_type(), limits.n_embd);
  Check(payload_bytes == n * row);
}

void Read(absl::string_view header, size_t payload_bytes, const StepLimits& limits) {
  const Frame frame = {.type = FrameType::kStep,
                       .header = std::string(header),
                       .payload = Payload::Own(std::string(payload_bytes, 'x'))};
  const absl::StatusOr<wire::Step> step = ReadStep(frame, Spec(), limits, /*last_step_id=*/6);
  if (step.ok()) {
    CheckStep(*step, limits, payload_bytes);
  } else {
    Check(absl::IsInvalidArgument(step.status()) || absl::IsAborted(step.status()));
  }
}

}  // namespace
}  // namespace strata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view header(reinterpret_cast<const char*>(data + 1), size - 1);
  strata::Read(header, 0, {.n_embd = 0, .n_seq_max = 2, .n_batch = 3});
  strata::Read(header, data[0], {.n_embd = 4, .n_seq_max = 2, .n_batch = 3});
  return 0;
}
