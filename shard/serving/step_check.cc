#include "shard/serving/step_check.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "shard/engine/activation_codec.h"
#include "shard/kv_store/kv_block.h"
#include "transport/base/epoch.h"

namespace strata {
namespace {

absl::Status Wrong(uint64_t step_id, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("step ", step_id, ": ", what));
}

absl::Status CheckSlot(uint64_t step_id, int32_t slot, absl::string_view what,
                       const StepLimits& limits) {
  if (slot >= 0 && static_cast<uint32_t>(slot) < limits.n_seq_max) return absl::OkStatus();
  return Wrong(step_id, absl::StrCat(what, " ", slot, " is outside [0, ", limits.n_seq_max, ")"));
}

absl::Status CheckBatch(const wire::Step& step, size_t payload_bytes, const StepLimits& limits) {
  const uint64_t id = step.step_id();
  const auto n_tokens = static_cast<size_t>(step.tokens_size());
  if (n_tokens > limits.n_batch) {
    return Wrong(id, absl::StrCat(n_tokens, " rows, the stage takes ", limits.n_batch));
  }
  if (static_cast<size_t>(step.positions_size()) != n_tokens ||
      static_cast<size_t>(step.slots_size()) != n_tokens) {
    return Wrong(
        id, absl::StrCat("columns differ in length: ", n_tokens, " tokens, ", step.positions_size(),
                         " positions, ", step.slots_size(), " slots"));
  }
  const size_t row_bytes =
      limits.n_embd == 0 ? 0 : ActivationRowBytes(step.activation_type(), limits.n_embd);
  if (row_bytes == 0 && (limits.n_embd != 0 || step.activation_type() != wire::F32)) {
    return Wrong(id, absl::StrCat("rows of ", limits.n_embd, " values as ",
                                  ActivationTypeName(step.activation_type()), " (type ",
                                  static_cast<int>(step.activation_type()), ")"));
  }
  if (payload_bytes != n_tokens * row_bytes) {
    return Wrong(
        id, absl::StrCat("payload of ", payload_bytes, " bytes, ", n_tokens, " rows of ",
                         limits.n_embd, " values as ", ActivationTypeName(step.activation_type()),
                         " are ", n_tokens * row_bytes));
  }
  for (size_t i = 0; i < n_tokens; ++i) {
    if (auto s = CheckSlot(id, step.slots(i), "slot", limits); !s.ok()) return s;
    if (step.positions(i) < 0) {
      return Wrong(id, absl::StrCat("row ", i, " has position ", step.positions(i)));
    }
  }
  for (int i = 0; i < step.sample_rows_size(); ++i) {
    if (step.sample_rows(i) >= n_tokens) {
      return Wrong(id, absl::StrCat("samples row ", step.sample_rows(i), " of ", n_tokens));
    }
    if (i > 0 && step.sample_rows(i) <= step.sample_rows(i - 1)) {
      return Wrong(id, "sample_rows do not rise");
    }
  }
  for (int i = 0; i < step.draft_rows_size(); ++i) {
    if (!std::ranges::binary_search(step.sample_rows(), step.draft_rows(i))) {
      return Wrong(id, absl::StrCat("draft row ", step.draft_rows(i), ", which is not sampled"));
    }
    if (i > 0 && step.draft_rows(i) <= step.draft_rows(i - 1)) {
      return Wrong(id, "draft_rows do not rise");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSequences(const wire::Step& step, const StepLimits& limits) {
  const uint64_t id = step.step_id();
  for (const wire::SequenceOpen& open : step.opens()) {
    if (auto s = CheckSlot(id, open.slot(), "opened slot", limits); !s.ok()) return s;
  }
  for (const wire::KvEdit& edit : step.edits()) {
    if (!wire::KvEdit::Kind_IsValid(edit.kind()) || edit.kind() == wire::KvEdit::KIND_UNSPECIFIED) {
      return Wrong(id, absl::StrCat("unknown KV edit ", static_cast<int>(edit.kind())));
    }
    if (auto s = CheckSlot(id, edit.slot(), "edited slot", limits); !s.ok()) return s;
    if (edit.kind() == wire::KvEdit::COPY) {
      if (auto s = CheckSlot(id, edit.from_slot(), "copied slot", limits); !s.ok()) return s;
    }
    if (edit.blocks().size() % kKvNameBytes != 0) {
      return Wrong(id, absl::StrCat("names of KV blocks in ", edit.blocks().size(), " bytes"));
    }
    if (edit.scope().size() > kKvScopeBytesMax) {
      return Wrong(id, absl::StrCat("a scope of ", edit.scope().size(), " bytes"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<wire::Step> ReadStep(const Frame& frame, const wire::StageSpec& spec,
                                    StepLimits limits, uint64_t last_step_id) {
  wire::Step step;
  if (auto s = ParseHeader(frame, &step); !s.ok()) return s;
  if (CompareEpochs(step.epoch(), spec.epoch()) != 0) {
    return absl::AbortedError(absl::StrCat("step ", step.step_id(), " of epoch ",
                                           EpochString(step.epoch()), " reached a stage of epoch ",
                                           EpochString(spec.epoch())));
  }
  if (step.model_id() != spec.model_id()) return Wrong(step.step_id(), "is for another model");
  if (step.step_id() <= last_step_id) {
    return Wrong(step.step_id(), absl::StrCat("comes after step ", last_step_id));
  }
  if (auto s = CheckBatch(step, frame.payload.size(), limits); !s.ok()) return s;
  if (auto s = CheckSequences(step, limits); !s.ok()) return s;
  return step;
}

bool IsVoidStep(const wire::Step& step, absl::FunctionRef<bool(uint32_t row)> continues) {
  return step.tokens_size() > 0 && step.draft_rows_size() == step.tokens_size() &&
         std::ranges::none_of(step.draft_rows(), continues);
}

}  // namespace strata
