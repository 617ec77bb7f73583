#include "tests/sim/sim_stage.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "shard/serving/step_check.h"
#include "tests/sim/sim_text.h"
#include "transport/base/epoch.h"
#include "transport/rpc/grpc_status.h"

namespace strata {
namespace {

// An activation is a hash, as two floats whose bits say nothing to anybody else.
constexpr uint32_t kValuesPerRow = 2;

}  // namespace

void SetSimCache(bool trims, wire::CacheAbility* ability) {
  ability->set_trim(trims);
  ability->set_copy(true);
  ability->set_rewind(trims);
}

SimStage::SimStage(wire::StageSpec spec, bool fails,
                   std::function<void(const std::string&)> violation)
    : spec_(std::move(spec)),
      fails_(fails),
      violation_(std::move(violation)),
      n_layer_(spec_.layers().end() - spec_.layers().begin()),
      slots_(spec_.n_seq_max(), Cache(n_layer_)),
      sequences_(spec_.n_seq_max()) {}

wire::StageInfo SimStage::Info() const {
  wire::StageInfo info;
  info.set_stage(spec_.stage());
  *info.mutable_layers() = spec_.layers();
  info.set_link_address("sim");
  info.set_n_embd(kValuesPerRow);
  info.set_n_ctx(spec_.n_ctx());
  info.set_n_seq_max(spec_.n_seq_max());
  info.set_n_batch(spec_.n_batch());
  info.set_n_vocab(is_first() || is_last() ? kSimVocabulary : 0);
  info.set_kv_cells(spec_.cache().kv_cells());
  SetSimCache(spec_.cache().checkpoints() == 0, info.mutable_cache());
  return info;
}

absl::StatusOr<Frame> SimStage::Take(const Frame& frame, uint32_t compute_us, bool fails) {
  if (frame.type == FrameType::kError) return frame;
  std::optional<wire::StageSpec> other;
  wire::Step any;
  if (takes_any_epoch_ && any.ParseFromString(frame.header)) {
    *other.emplace(spec_).mutable_epoch() = any.epoch();
  }
  absl::StatusOr<wire::Step> step = ReadStep(frame, other ? *other : spec_,
                                             {.n_embd = is_first() ? 0 : kValuesPerRow,
                                              .n_seq_max = spec_.n_seq_max(),
                                              .n_batch = spec_.n_batch()},
                                             last_step_id_);
  if (!step.ok()) {
    if (absl::IsAborted(step.status())) ++refused_;
    return step.status();
  }
  if (CompareEpochs(step->epoch(), spec_.epoch()) != 0) {
    violation_(absl::StrCat("a stage of epoch ", EpochString(spec_.epoch()),
                            " runs a step of epoch ", EpochString(step->epoch())));
  }
  last_step_id_ = step->step_id();
  Payload out;
  if (auto s = Run(*step, frame.payload, fails, &out); !s.ok()) {
    wire::StepError error;
    *error.mutable_epoch() = spec_.epoch();
    error.set_step_id(step->step_id());
    error.set_stage(spec_.stage());
    ToWire(s, absl::StrCat("stage ", spec_.stage()), error.mutable_status());
    return MakeFrame(FrameType::kError, error);
  }
  wire::StageTiming* const timing = step->add_timings();
  timing->set_stage(spec_.stage());
  timing->set_compute_us(compute_us);
  if (!is_last()) {
    step->set_activation_type(wire::F32);
    return MakeFrame(FrameType::kStep, *step, std::move(out));
  }
  wire::Result result;
  *result.mutable_epoch() = spec_.epoch();
  result.set_step_id(step->step_id());
  Sample(*step, &result);
  result.mutable_timings()->Swap(step->mutable_timings());
  return MakeFrame(FrameType::kResult, result);
}

absl::Status SimStage::Edit(const wire::KvEdit& edit) {
  Cache& cache = slots_[static_cast<size_t>(edit.slot())];
  Sequence& sequence = sequences_[static_cast<size_t>(edit.slot())];
  const auto begin = static_cast<size_t>(edit.begin());
  switch (edit.kind()) {
    case wire::KvEdit::DROP:
      for (std::vector<uint64_t>& layer : cache) layer.clear();
      sequence = Sequence();
      break;
    case wire::KvEdit::TRIM:
      if (spec_.cache().checkpoints() != 0 && begin > 0 && begin < cache[0].size()) {
        violation_("a trim that the cache cannot do");
      }
      for (std::vector<uint64_t>& layer : cache) layer.resize(std::min(layer.size(), begin));
      sequence = Sequence();
      break;
    case wire::KvEdit::REWIND:
      if (spec_.cache().checkpoints() != 0) violation_("a rewind that the cache cannot do");
      for (std::vector<uint64_t>& layer : cache) layer.resize(std::min(layer.size(), begin));
      break;
    case wire::KvEdit::COPY:
      cache = slots_[static_cast<size_t>(edit.from_slot())];
      sequence = Sequence();
      break;
    default:
      violation_(
          absl::StrCat("an edit that no simulated cache can do: ", static_cast<int>(edit.kind())));
  }
  return absl::OkStatus();
}

absl::Status SimStage::Run(const wire::Step& step, const Payload& payload, bool fails,
                           Payload* out) {
  for (const wire::KvEdit& edit : step.edits()) {
    if (auto s = Edit(edit); !s.ok()) return s;
  }
  for (const wire::SequenceOpen& open : step.opens()) {
    Sequence& sequence = sequences_[static_cast<size_t>(open.slot())];
    sequence = {.open = true,
                .tokens = {open.prompt().begin(), open.prompt().end()},
                .seed = open.sampler().seed()};
    sequence.tokens.insert(sequence.tokens.end(), open.generated().begin(), open.generated().end());
  }
  if (fails) return absl::InternalError("the batch failed");
  const auto continues = [&](uint32_t row) { return Continues(step, row); };
  if (is_last() && IsVoidStep(step, continues)) return absl::OkStatus();
  size_t cells = static_cast<size_t>(step.tokens_size());
  std::vector<size_t> next(slots_.size());
  for (size_t i = 0; i < slots_.size(); ++i) cells += next[i] = slots_[i][0].size();
  for (int i = 0; i < step.tokens_size(); ++i) {
    if (static_cast<size_t>(step.positions(i)) != next[static_cast<size_t>(step.slots(i))]++) {
      if (!fails_) violation_("a row that does not follow, though no step has failed");
      return absl::InvalidArgumentError(absl::StrCat("slot ", step.slots(i), ": position ",
                                                     step.positions(i), " does not follow"));
    }
    if (step.positions(i) >= static_cast<int32_t>(spec_.n_ctx())) {
      violation_("a row beyond the context");
    }
  }
  if (cells > spec_.cache().kv_cells()) {
    if (!fails_) {
      violation_(absl::StrCat("a step needs ", cells, " cells of ", spec_.cache().kv_cells()));
    }
    return absl::ResourceExhaustedError("the cells");
  }
  rows_.resize(static_cast<size_t>(step.tokens_size()));
  if (is_first()) {
    std::copy(step.tokens().begin(), step.tokens().end(), rows_.begin());
  } else if (!rows_.empty()) {
    std::memcpy(rows_.data(), payload.data(), rows_.size() * sizeof(uint64_t));
  }
  for (size_t i = 0; i < rows_.size(); ++i) {
    Cache& cache = slots_[static_cast<size_t>(step.slots(static_cast<int>(i)))];
    for (uint32_t k = 0; k < n_layer_; ++k) {
      const uint64_t before = cache[k].empty() ? kSimEmpty : cache[k].back();
      rows_[i] = SimLayer(spec_.layers().begin() + k, before, rows_[i]);
      cache[k].push_back(rows_[i]);
    }
  }
  if (!is_last()) {
    *out = Payload::Own(
        std::string(reinterpret_cast<const char*>(rows_.data()), rows_.size() * sizeof(uint64_t)));
  }
  return absl::OkStatus();
}

bool SimStage::Continues(const wire::Step& step, uint32_t row) const {
  const auto i = static_cast<int>(row);
  const Sequence& sequence = sequences_[static_cast<size_t>(step.slots(i))];
  return sequence.open && !sequence.ended &&
         static_cast<size_t>(step.positions(i)) + 1 == sequence.tokens.size() &&
         sequence.tokens.back() == step.tokens(i);
}

void SimStage::Sample(const wire::Step& step, wire::Result* result) {
  for (const uint32_t row : step.sample_rows()) {
    if (std::ranges::binary_search(step.draft_rows(), row) && !Continues(step, row)) {
      result->add_void_rows(row);
      continue;
    }
    const int32_t slot = step.slots(static_cast<int>(row));
    Sequence& sequence = sequences_[static_cast<size_t>(slot)];
    const size_t position = static_cast<size_t>(step.positions(static_cast<int>(row))) + 1;
    if (!sequence.open || position != sequence.tokens.size()) {
      if (!fails_) violation_("a sequence is sampled elsewhere than at its end");
      wire::SlotError* const error = result->add_errors();
      error->set_slot(slot);
      ToWire(absl::FailedPreconditionError("sampled elsewhere than at its end"), "the last stage",
             error->mutable_status());
      continue;
    }
    const SimChoice choice = SimChoose(rows_[row], sequence.seed, position);
    sequence.tokens.push_back(choice.token);
    sequence.ended = choice.is_end;
    wire::SampledToken* const token = result->add_tokens();
    token->set_slot(slot);
    token->set_position(static_cast<int32_t>(position));
    token->set_token(choice.token);
    token->set_end_of_generation(choice.is_end);
  }
}

}  // namespace strata
