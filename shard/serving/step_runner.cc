#include "shard/serving/step_runner.h"

#include <algorithm>
#include <utility>

#include "shard/engine/activation_codec.h"
#include "shard/kv_store/kv_block.h"
#include "shard/model/stage_spec.h"
#include "shard/serving/step_check.h"
#include "transport/rpc/grpc_status.h"

namespace strata {

namespace {

// Of the tokens of one result, which is the header of a frame.
constexpr size_t kResultBytesMax = kFrameHeaderBytesMax / 2;

SlotSamplers::Row RowOf(const wire::Step& step, uint32_t row) {
  const auto i = static_cast<int>(row);
  return {.slot = step.slots(i), .position = step.positions(i), .token = step.tokens(i)};
}

}  // namespace

StepRunner::StepRunner(const wire::StageSpec& spec, std::string where, Clock* clock,
                       std::unique_ptr<Stage> stage)
    : spec_(spec), where_(std::move(where)), clock_(clock), stage_(std::move(stage)) {
  if (IsLastStage(spec_)) {
    samplers_.emplace(stage_->facts().n_seq_max, stage_->vocab(), stage_->facts().pooling);
  }
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
  const auto continues = [&](uint32_t row) { return samplers_->Continues(RowOf(step, row)); };
  const bool computes = step.tokens_size() > 0 && !(samplers_ && IsVoidStep(step, continues));
  if (outcome.status.ok() && computes) {
    outcome.status = RunBatch(step, payload, &outcome.result);
  }
  const int64_t computed_us = clock_->NowUs();
  const bool used_lookahead = outcome.status.ok() && computes && stage_->UsedLookahead();
  outcome.compute_us = lookahead_.RecordStep(step, used_lookahead, start_us, computed_us);
  if (outcome.status.ok() && samplers_) {
    SampleRows(step, &outcome.result);
    outcome.result.set_lost_blocks(step.lost_blocks());
    AddLostBlocks(outcome.result.mutable_lost_blocks());
  }
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
  AddLostBlocks(step.mutable_lost_blocks());
  return MakeFrame(FrameType::kStep, step, std::move(out.payload));
}

void StepRunner::AddLostBlocks(std::string* names) {
  names->append(JoinKvNames(stage_->TakeLostBlocks()));
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

absl::Status StepRunner::RunBatch(const wire::Step& step, const Payload& payload,
                                  wire::Result* result) {
  Stage::Batch batch;
  batch.positions = step.positions();
  batch.slots = step.slots();
  if (IsFirstStage(spec_)) {
    batch.tokens = step.tokens();
  } else {
    batch.activations = DecodeActivations(step.activation_type(), payload, &decoded_);
  }
  if (samplers_) {
    DivideRows(step);
    batch.output_rows = sampled_rows_;
    batch.scored_rows = scored_rows_;
    batch.embedded_rows = embedded_rows_;
    batch.observe = [this, &step, result](uint32_t row, absl::Span<const float> output) {
      const absl::Status status = samplers_->Observe(RowOf(step, row), output);
      if (!status.ok()) AddSlotError(step.slots(static_cast<int>(row)), status, result);
    };
  }
  return stage_->Decode(batch);
}

void StepRunner::DivideRows(const wire::Step& step) {
  sampled_rows_.clear();
  scored_rows_.clear();
  embedded_rows_.clear();
  int next = 0;  // of sample_rows
  for (uint32_t i = 0; i < static_cast<uint32_t>(step.tokens_size()); ++i) {
    const bool samples = next < step.sample_rows_size() && step.sample_rows(next) == i;
    if (samples) ++next;
    const SlotSamplers::Row row = RowOf(step, i);
    const bool embeds = samplers_->Embeds(row.slot);
    if (samples && !embeds) sampled_rows_.push_back(i);
    if (samplers_->Observes(row, samples)) (embeds ? embedded_rows_ : scored_rows_).push_back(i);
  }
}

void StepRunner::SampleRows(const wire::Step& step, wire::Result* result) {
  size_t bytes = 0;
  for (uint32_t i = 0; i < static_cast<uint32_t>(step.tokens_size()); ++i) {
    const SlotSamplers::Row row = RowOf(step, i);
    if (std::ranges::binary_search(step.draft_rows(), i) && !samplers_->Continues(row)) {
      result->add_void_rows(i);
      continue;
    }
    if (auto s = samplers_->Feed(row); !s.ok()) AddSlotError(row.slot, s, result);
    if (!std::ranges::binary_search(step.sample_rows(), i)) continue;
    const auto failed = [&row](const wire::SlotError& error) { return error.slot() == row.slot; };
    if (std::any_of(result->errors().begin(), result->errors().end(), failed)) continue;
    const auto sampled = std::lower_bound(sampled_rows_.begin(), sampled_rows_.end(), i);
    auto token =
        samplers_->Embeds(row.slot)
            ? samplers_->TakeEmbedding(row)
            : samplers_->Sample(
                  row, stage_->Logits(static_cast<size_t>(sampled - sampled_rows_.begin())));
    if (token.ok()) bytes += token->ByteSizeLong();
    if (token.ok() && bytes > kResultBytesMax) {
      bytes -= token->ByteSizeLong();
      token = absl::ResourceExhaustedError(
          "too many prompts with log-probabilities end at once; ask for fewer at a time");
    }
    if (token.ok()) {
      *result->add_tokens() = *std::move(token);
    } else {
      AddSlotError(row.slot, token.status(), result);
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
