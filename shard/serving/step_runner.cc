#include "shard/serving/step_runner.h"

#include <algorithm>
#include <utility>

#include "shard/engine/activation_codec.h"
#include "shard/model/stage_spec.h"
#include "transport/rpc/grpc_status.h"

namespace strata {

StepRunner::StepRunner(const wire::StageSpec& spec, std::string where, Clock* clock,
                       std::unique_ptr<Stage> stage)
    : spec_(spec), where_(std::move(where)), clock_(clock), stage_(std::move(stage)) {
  if (IsLastStage(spec_)) samplers_.emplace(stage_->facts().n_seq_max, stage_->vocab());
}

std::unique_ptr<Stage> StepRunner::TakeStage() {
  samplers_.reset();
  return std::move(stage_);
}

StepRunner::Outcome StepRunner::Run(const wire::Step& step, const Payload& payload,
                                    int64_t start_us) {
  lookahead_.Observe(step);
  Outcome outcome;
  outcome.status = RunEdits(step, &outcome.result);
  if (outcome.status.ok() && step.tokens_size() > 0) outcome.status = RunBatch(step, payload);
  const int64_t computed_us = clock_->NowUs();
  const bool used_lookahead =
      outcome.status.ok() && step.tokens_size() > 0 && stage_->UsedLookahead();
  outcome.compute_us = lookahead_.RecordStep(step, used_lookahead, start_us, computed_us);
  if (outcome.status.ok() && samplers_) SampleRows(step, &outcome.result);
  outcome.sample_us = clock_->NowUs() - computed_us;
  return outcome;
}

Frame StepRunner::NextStep(const wire::ActivationRule& rule, wire::Step step) {
  EncodedActivations out;
  if (step.tokens_size() > 0) {
    const auto rows = static_cast<size_t>(step.tokens_size());
    out = EncodeActivations(ActivationTypeFor(rule, rows), stage_->TakeActivations());
  }
  step.set_activation_type(out.type);
  return MakeFrame(FrameType::kStep, step, std::move(out.payload));
}

bool StepRunner::Guess(const wire::Step& step, const wire::Result& result) {
  return IsFirstStage(spec_) && lookahead_.Guess(step, result);
}

bool StepRunner::BeginLookahead() {
  const int64_t since_us = clock_->NowUs();
  if (!stage_->BeginLookahead(lookahead_.batch())) {
    lookahead_.OnRefused();
    return false;
  }
  lookahead_.OnBegun(since_us);
  return true;
}

absl::Status StepRunner::RunEdits(const wire::Step& step, wire::Result* result) {
  for (const wire::KvEdit& edit : step.edits()) {
    if (auto s = stage_->Apply(edit); !s.ok()) return s;
    if (!samplers_) continue;
    if (auto s = samplers_->Apply(edit); !s.ok()) return s;
  }
  if (!samplers_) return absl::OkStatus();
  for (const wire::SequenceOpen& open : step.opens()) {
    if (auto s = samplers_->Open(open); !s.ok()) AddSlotError(open.slot(), s, result);
  }
  return absl::OkStatus();
}

absl::Status StepRunner::RunBatch(const wire::Step& step, const Payload& payload) {
  Stage::Batch batch;
  batch.positions = step.positions();
  batch.slots = step.slots();
  if (IsFirstStage(spec_)) {
    batch.tokens = step.tokens();
  } else {
    batch.activations = DecodeActivations(step.activation_type(), payload, &decoded_);
  }
  if (samplers_) batch.output_rows = step.sample_rows();
  return stage_->Decode(batch);
}

void StepRunner::SampleRows(const wire::Step& step, wire::Result* result) {
  for (int i = 0; i < step.tokens_size(); ++i) {
    auto s = samplers_->Feed(
        {.slot = step.slots(i), .position = step.positions(i), .token = step.tokens(i)});
    if (!s.ok()) AddSlotError(step.slots(i), s, result);
  }
  for (int i = 0; i < step.sample_rows_size(); ++i) {
    const int row = static_cast<int>(step.sample_rows(i));
    const int32_t slot = step.slots(row);
    const auto failed = [slot](const wire::SlotError& error) { return error.slot() == slot; };
    if (std::any_of(result->errors().begin(), result->errors().end(), failed)) continue;
    auto token = samplers_->Sample(
        {.slot = slot, .position = step.positions(row), .token = step.tokens(row)},
        stage_->Logits(i));
    if (token.ok()) {
      *result->add_tokens() = *std::move(token);
    } else {
      AddSlotError(slot, token.status(), result);
    }
  }
}

void StepRunner::AddSlotError(int32_t slot, const absl::Status& status,
                              wire::Result* result) const {
  for (const wire::SlotError& error : result->errors()) {
    if (error.slot() == slot) return;  // the first error is the cause
  }
  wire::SlotError* error = result->add_errors();
  error->set_slot(slot);
  ToWire(status, where_, error->mutable_status());
}

}  // namespace strata
