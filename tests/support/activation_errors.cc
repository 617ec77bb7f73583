#include "tests/support/activation_errors.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "shard/device/engine.h"
#include "shard/engine/activation_codec.h"
#include "shard/engine/stage.h"
#include "shard/engine/tokenize.h"
#include "shard/model/architecture.h"
#include "shard/model/model_file.h"
#include "shard/model/slice.h"

namespace strata::testing {
namespace {

constexpr uint32_t kPromptTokens = 48;  // of a random prompt; one made of text has at most so many
constexpr uint32_t kCtx = 256;
constexpr uint32_t kPromptSeed = 5;

size_t Likeliest(absl::Span<const float> logits) {
  return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

std::vector<double> LogSoftmax(absl::Span<const float> logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - top);
  std::vector<double> out;
  for (const float logit : logits) out.push_back(double{logit} - top - std::log(sum));
  return out;
}

class ActivationProbeImpl final : public ActivationProbe {
 public:
  absl::Status Load(const std::string& path);

  std::string Cuts() const override {
    std::string out;
    for (const auto& stage : stages_) {
      const LayerRange& layers = stage->facts().layers;
      absl::StrAppend(&out, out.empty() ? "" : ", ", layers.begin, "-", layers.end - 1);
    }
    return out;
  }
  uint32_t n_embd() const override { return stages_.front()->facts().n_embd; }
  absl::Status Prepare(absl::string_view text, uint32_t decodes) override;
  absl::StatusOr<ActivationErrors> Measure(wire::ActivationType type) override;

 private:
  using Rows = std::vector<std::vector<float>>;  // [rows][n_vocab]

  absl::Status Forget();
  // Runs tokens [begin, end) of the sequence; appends the logits of each.
  absl::Status Run(wire::ActivationType type, size_t begin, size_t end, Rows* logits);

  std::vector<std::unique_ptr<Stage>> stages_;
  std::vector<int32_t> tokens_;
  size_t prompt_ = 0;  // of tokens_
  Rows exact_;
};

absl::Status ActivationProbeImpl::Load(const std::string& path) {
  StartEngine();
  auto model = ModelFile::Open(path);
  if (!model.ok()) return model.status();
  auto rule = CutRuleFor((*model)->header(), /*unverified=*/false);
  if (!rule.ok()) return rule.status();
  const uint32_t n_layer = (*model)->n_layer();
  std::vector<uint32_t> cuts = {0};
  for (const uint32_t third : {1u, 2u}) {
    const auto from_third = [&](uint32_t cut) {
      return std::abs(int64_t{3} * cut - int64_t{third} * n_layer);
    };
    uint32_t best = 0;
    for (const uint32_t cut : rule->cut_points) {
      if (cut > cuts.back() && (best == 0 || from_third(cut) < from_third(best))) best = cut;
    }
    if (best == 0) return absl::FailedPreconditionError(absl::StrCat(path, " has no such cuts"));
    cuts.push_back(best);
  }
  cuts.push_back(n_layer);
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    auto slice = Slice::Make(*model, {cuts[i], cuts[i + 1]}, {});
    if (!slice.ok()) return slice.status();
    StageOptions options;
    options.n_ctx = kCtx;
    options.n_batch = kCtx;
    options.use_mmap = false;
    auto stage = Stage::Load(*slice, options, nullptr);
    if (!stage.ok()) return stage.status();
    stages_.push_back(*std::move(stage));
  }
  return absl::OkStatus();
}

absl::Status ActivationProbeImpl::Forget() {
  wire::KvEdit drop;
  drop.set_kind(wire::KvEdit::DROP);
  absl::Status status;
  for (const auto& stage : stages_) status.Update(stage->Apply(drop));
  return status;
}

absl::Status ActivationProbeImpl::Run(wire::ActivationType type, size_t begin, size_t end,
                                      Rows* logits) {
  std::vector<int32_t> positions;
  std::vector<uint32_t> outputs;
  for (size_t i = begin; i < end; ++i) {
    positions.push_back(static_cast<int32_t>(i));
    outputs.push_back(static_cast<uint32_t>(i - begin));
  }
  const std::vector<int32_t> slots(positions.size(), 0);
  EncodedActivations sent;
  std::vector<float> scratch;
  for (const auto& stage : stages_) {
    Stage::Batch batch = {.positions = positions, .slots = slots};
    if (stage->facts().is_first) {
      batch.tokens = absl::MakeConstSpan(tokens_).subspan(begin, end - begin);
    } else {
      batch.activations = DecodeActivations(sent.type, sent.payload, &scratch);
    }
    if (stage->facts().is_last) batch.output_rows = outputs;
    if (auto s = stage->Decode(batch); !s.ok()) return s;
    if (stage->facts().is_last) break;
    sent = EncodeActivations(type, stage->TakeActivations());
    if (sent.type != type) return absl::OutOfRangeError("a value does not fit the type");
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    const absl::Span<const float> row = stages_.back()->Logits(i);
    logits->emplace_back(row.begin(), row.end());
  }
  return absl::OkStatus();
}

absl::Status ActivationProbeImpl::Prepare(absl::string_view text, uint32_t decodes) {
  tokens_.clear();
  exact_.clear();
  if (text.empty()) {
    std::mt19937 random(kPromptSeed);
    const uint32_t n_vocab = stages_.back()->facts().n_vocab;
    while (tokens_.size() < kPromptTokens) {
      tokens_.push_back(static_cast<int32_t>(random() % n_vocab));
    }
  } else {
    wire::TokenizeRequest request;
    request.set_text(std::string(text));
    request.set_add_special(true);
    const auto made = TokenizeText(stages_.front()->vocab(), request, kCtx);
    if (!made.ok()) return made.status();
    tokens_.assign(made->tokens().begin(), made->tokens().end());
    tokens_.resize(std::min<size_t>(tokens_.size(), kPromptTokens));
  }
  prompt_ = tokens_.size();
  if (auto s = Forget(); !s.ok()) return s;
  if (auto s = Run(wire::F32, 0, prompt_, &exact_); !s.ok()) return s;
  for (uint32_t i = 0; i < decodes; ++i) {
    tokens_.push_back(static_cast<int32_t>(Likeliest(exact_.back())));
    if (auto s = Run(wire::F32, tokens_.size() - 1, tokens_.size(), &exact_); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::StatusOr<ActivationErrors> ActivationProbeImpl::Measure(wire::ActivationType type) {
  if (auto s = Forget(); !s.ok()) return s;
  Rows rows;
  if (auto s = Run(type, 0, prompt_, &rows); !s.ok()) return s;
  for (size_t i = prompt_; i < tokens_.size(); ++i) {
    if (auto s = Run(type, i, i + 1, &rows); !s.ok()) return s;
  }
  ActivationErrors errors;
  errors.rows = rows.size();
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::vector<double> exact = LogSoftmax(exact_[i]), changed = LogSoftmax(rows[i]);
    double divergence = 0;
    for (size_t token = 0; token < exact.size(); ++token) {
      const double difference = double{rows[i][token]} - double{exact_[i][token]};
      errors.logit_max = std::max(errors.logit_max, std::abs(difference));
      errors.logit_largest = std::max(errors.logit_largest, std::abs(double{exact_[i][token]}));
      divergence += std::exp(exact[token]) * (exact[token] - changed[token]);
    }
    errors.kl_mean += divergence / static_cast<double>(rows.size());
    errors.kl_max = std::max(errors.kl_max, divergence);
    if (Likeliest(rows[i]) == Likeliest(exact_[i])) errors.top1 += 1;
  }
  errors.top1 /= static_cast<double>(rows.size());
  return errors;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ActivationProbe>> ActivationProbe::Open(const std::string& path) {
  auto probe = std::make_unique<ActivationProbeImpl>();
  if (auto s = probe->Load(path); !s.ok()) return s;
  return probe;
}

}  // namespace strata::testing
