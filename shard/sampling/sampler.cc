#include "shard/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "llama.h"
#include "shard/sampling/logprobs.h"
#include "shard/sampling/mirostat.h"
#include "shard/sampling/random.h"
#include "shard/sampling/sampler_settings.h"
#include "shard/sampling/sampler_text.h"
#include "shard/sampling/token_piece.h"

namespace strata {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Likeliest tokens tried against the grammar before the whole vocabulary is matched with it.
constexpr int kGreedyGrammarTries = 8;

bool IsLikelier(const llama_token_data& a, const llama_token_data& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// Index of the largest logit, the lowest index on ties; -1 where a logit is not a number. In lanes,
// of which compilers make vectors.
int64_t ArgMax(absl::Span<const float> logits) {
  constexpr size_t kLanes = 16, kBlock = 64 * kLanes;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  float best = kMinusInfinity;
  size_t best_begin = 0;
  bool is_sane = true;
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const absl::Span<const float> block = logits.subspan(begin, kBlock);
    float most[kLanes];
    int32_t insane[kLanes] = {};
    std::fill_n(most, kLanes, kMinusInfinity);
    const auto take = [&](float logit, size_t lane) {
      most[lane] = logit > most[lane] ? logit : most[lane];
      insane[lane] |= logit < kInfinity ? 0 : 1;  // a NaN is not less either
    };
    size_t i = 0;
    for (; i + kLanes <= block.size(); i += kLanes) {
      for (size_t lane = 0; lane < kLanes; ++lane) take(block[i + lane], lane);
    }
    for (; i < block.size(); ++i) take(block[i], 0);
    const float largest = *std::max_element(most, most + kLanes);
    if (largest > best) {
      best = largest;
      best_begin = begin;
    }
    is_sane = is_sane && std::all_of(insane, insane + kLanes, [](int32_t bad) { return bad == 0; });
  }
  if (!is_sane || best == kMinusInfinity) return -1;
  const auto* const found = std::find(logits.begin() + best_begin, logits.end(), best);
  return found - logits.begin();
}

// The index whose share of `weights` holds `draw`, in [0, 1).
size_t Choose(absl::Span<const double> weights, double draw) {
  double sum = 0;
  for (double weight : weights) sum += weight;
  double left = draw * sum;
  size_t last = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] <= 0) continue;
    last = i;
    left -= weights[i];
    if (left < 0) break;
  }
  return last;  // rounding may leave a sliver beyond the last weight
}

absl::Status CheckTokens(absl::string_view field, absl::Span<const int32_t> tokens,
                         int32_t n_vocab) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= n_vocab) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, "[", i, "] is token ", tokens[i], "; the vocabulary has ", n_vocab));
    }
  }
  return absl::OkStatus();
}

// Drops forbidden candidates: filters that take logarithms of probabilities would turn them into
// NaN.
void DropForbidden(llama_token_data_array* candidates) {
  llama_token_data* end =
      std::remove_if(candidates->data, candidates->data + candidates->size,
                     [](const llama_token_data& c) { return !(c.logit > kMinusInfinity); });
  candidates->size = end - candidates->data;
}

class LlamaSampler final : public SequenceSampler {
 public:
  LlamaSampler(const wire::SamplerSettings& settings, const llama_vocab* vocab);

  absl::Status Init(const wire::SequenceOpen& open) { return history_.Open(open); }

  absl::StatusOr<wire::SampledToken> Sample(int32_t position,
                                            absl::Span<const float> logits) override;
  absl::Status Feed(int32_t position, int32_t token) override;
  bool Continues(int32_t position, int32_t token) const override {
    const std::vector<int32_t>& tokens = history_.tokens();
    return position >= 0 && static_cast<size_t>(position) + 1 == tokens.size() &&
           tokens.back() == token && !is_end(token);
  }
  absl::Status Rewind(int32_t length) override;
  const std::vector<int32_t>& tokens() const override { return history_.tokens(); }

 private:
  bool is_greedy() const { return settings_.temperature() <= 0; }
  // Whether anything besides leaves_out_ends() changes logits before the choice; if not, the greedy
  // choice is the largest that may be chosen.
  bool is_shaped() const {
    return !settings_.logit_bias().empty() || history_.looks_back() || history_.has_grammar();
  }
  bool is_short() const { return history_.n_generated() < settings_.tokens_min(); }
  bool leaves_out_ends() const { return settings_.ignore_eog() || is_short(); }
  // Whether `token` ends the sequence.
  bool is_end(int32_t token) const { return llama_vocab_is_eog(vocab_, token) || is_stop(token); }
  bool is_stop(int32_t token) const {
    const auto& stops = settings_.stop_tokens();
    return std::find(stops.begin(), stops.end(), token) != stops.end();
  }
  // Whether `token` is forbidden when leaves_out_ends(). The client's stop tokens are allowed where
  // only the model's own are ignored.
  bool is_left_out(int32_t token) const {
    return is_short() ? is_end(token) : llama_vocab_is_eog(vocab_, token) && !is_stop(token);
  }

  // The token's text in the output.
  std::string PieceOf(int32_t token) const;
  void MakeBias();
  void LeaveOutEnds(llama_token_data_array* candidates);
  void MakeFilters();

  absl::StatusOr<int32_t> ChooseToken(int32_t position, absl::Span<const float> logits,
                                      float* next_mu);
  // The steps of a choice, in order. Each may drop candidates, never all.
  absl::Status Shape(llama_token_data_array* candidates);
  absl::Status RestrictToGrammar(llama_token_data_array* candidates) const;
  absl::StatusOr<int32_t> ChooseGreedy(llama_token_data_array* candidates) const;
  int32_t Draw(int32_t position, llama_token_data_array* candidates) const;
  int32_t DrawMirostat(int32_t position, llama_token_data_array* candidates, float* next_mu) const;
  // Softmax at the temperature, not normalised. [candidates] f64
  void Weigh(const llama_token_data_array& candidates, std::vector<double>* weights) const;
  double DrawAt(int32_t position, DrawPurpose purpose) const {
    return strata::Draw({.seed = settings_.seed(),
                         .position = static_cast<uint64_t>(position),
                         .purpose = purpose});
  }

  void ReportLogprobs(absl::Span<const float> logits, wire::SampledToken* sampled) const;

  // Constant after construction.
  const wire::SamplerSettings settings_;
  const llama_vocab* const vocab_;
  const int32_t n_vocab_;
  std::vector<LlamaSamplerPtr> filters_;  // top-k, typical, top-p, min-p
  LlamaSamplerPtr xtc_;  // cuts on each call; our draw decides whether it is called

  LlamaSamplerPtr bias_;  // null: off, or not made yet
  bool bias_made_ = false;
  // Built when first needed: finding the end-of-generation tokens takes a walk through the
  // vocabulary, which a greedy choice seldom needs.
  std::vector<int32_t> ends_;
  bool ends_made_ = false;
  SamplerText history_;
};

LlamaSampler::LlamaSampler(const wire::SamplerSettings& settings, const llama_vocab* vocab)
    : settings_(settings),
      vocab_(vocab),
      n_vocab_(llama_vocab_n_tokens(vocab)),
      history_(settings, vocab) {
  MakeFilters();
}

std::string LlamaSampler::PieceOf(int32_t token) const {
  const bool is_control = (llama_vocab_get_attr(vocab_, token) & LLAMA_TOKEN_ATTR_CONTROL) != 0;
  if (!is_control || settings_.shown_marks().empty() || llama_vocab_is_eog(vocab_, token)) {
    return TokenPiece(vocab_, token, /*special=*/false);
  }
  std::string piece = TokenPiece(vocab_, token, /*special=*/true);
  const auto& marks = settings_.shown_marks();
  const bool is_shown = std::any_of(marks.begin(), marks.end(), [&piece](const std::string& mark) {
    return mark.find(piece) != std::string::npos;
  });
  return is_shown ? piece : std::string();
}

void LlamaSampler::MakeBias() {
  if (std::exchange(bias_made_, true)) return;
  std::vector<llama_logit_bias> biases;
  for (const wire::LogitBias& bias : settings_.logit_bias()) {
    biases.push_back({bias.token(), bias.bias()});
  }
  if (biases.empty()) return;
  bias_.reset(
      llama_sampler_init_logit_bias(n_vocab_, static_cast<int32_t>(biases.size()), biases.data()));
}

// `candidates` has the whole vocabulary, in its order.
void LlamaSampler::LeaveOutEnds(llama_token_data_array* candidates) {
  if (!std::exchange(ends_made_, true)) {
    for (int32_t token = 0; token < n_vocab_; ++token) {
      if (is_end(token)) ends_.push_back(token);
    }
  }
  for (int32_t token : ends_) {
    if (is_left_out(token)) candidates->data[token].logit = kMinusInfinity;
  }
}

// In libllama's usual order.
void LlamaSampler::MakeFilters() {
  if (is_greedy() || settings_.mirostat() != 0) return;  // neither uses filters
  constexpr size_t kMinKeep = 1;
  auto is_cut = [](float p) { return p > 0 && p < 1; };
  if (settings_.top_k() > 0) filters_.emplace_back(llama_sampler_init_top_k(settings_.top_k()));
  if (is_cut(settings_.typical_p())) {
    filters_.emplace_back(llama_sampler_init_typical(settings_.typical_p(), kMinKeep));
  }
  if (is_cut(settings_.top_p())) {
    filters_.emplace_back(llama_sampler_init_top_p(settings_.top_p(), kMinKeep));
  }
  if (settings_.min_p() > 0) {
    filters_.emplace_back(llama_sampler_init_min_p(settings_.min_p(), kMinKeep));
  }
  if (settings_.xtc_probability() > 0) {
    xtc_.reset(llama_sampler_init_xtc(1.0f, settings_.xtc_threshold(), kMinKeep, /*seed=*/0));
  }
}

absl::Status LlamaSampler::Rewind(int32_t length) {
  if (length < 0) return absl::InvalidArgumentError("a sequence has no position before its start");
  history_.Rewind(static_cast<size_t>(length));
  return absl::OkStatus();
}

absl::Status LlamaSampler::Feed(int32_t position, int32_t token) {
  const std::vector<int32_t>& tokens = history_.tokens();
  if (position < 0 || static_cast<size_t>(position) > tokens.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a token is fed at position ", position,
                                                   " of a sequence of ", tokens.size(), " tokens"));
  }
  if (absl::Status status = CheckTokens("tokens", {token}, n_vocab_); !status.ok()) return status;
  if (static_cast<size_t>(position) < tokens.size()) {
    if (tokens[position] == token) return absl::OkStatus();
    history_.Rewind(static_cast<size_t>(position));
  }
  if (history_.is_in_prompt()) {
    history_.AppendPrompt(token);
    return absl::OkStatus();
  }
  return history_.Append(token, history_.mu());
}

absl::Status LlamaSampler::Shape(llama_token_data_array* candidates) {
  MakeBias();
  if (bias_ != nullptr) llama_sampler_apply(bias_.get(), candidates);
  if (leaves_out_ends()) LeaveOutEnds(candidates);
  history_.Penalize(candidates);
  DropForbidden(candidates);
  if (candidates->size > 0) return absl::OkStatus();
  return absl::FailedPreconditionError("no token is allowed: logit_bias forbids them all");
}

absl::Status LlamaSampler::RestrictToGrammar(llama_token_data_array* candidates) const {
  if (absl::Status status = history_.RestrictToGrammar(candidates); !status.ok()) return status;
  DropForbidden(candidates);
  if (candidates->size > 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "no token is allowed: the grammar cannot continue with any token of the vocabulary");
}

absl::StatusOr<int32_t> LlamaSampler::ChooseGreedy(llama_token_data_array* candidates) const {
  auto best = [candidates] {
    // The likelier one compares as less, so the minimum is the likeliest.
    return std::min_element(candidates->data, candidates->data + candidates->size, IsLikelier);
  };
  if (!history_.has_grammar()) return best()->id;
  for (int i = 0; i < kGreedyGrammarTries && candidates->size > 0; ++i) {
    llama_token_data* candidate = best();
    if (history_.GrammarAllows(candidate->id)) return candidate->id;
    *candidate = candidates->data[--candidates->size];
  }
  if (absl::Status status = RestrictToGrammar(candidates); !status.ok()) return status;
  return best()->id;
}

void LlamaSampler::Weigh(const llama_token_data_array& candidates,
                         std::vector<double>* weights) const {
  const double temperature = settings_.temperature();
  float largest = kMinusInfinity;
  for (size_t i = 0; i < candidates.size; ++i) {
    largest = std::max(largest, candidates.data[i].logit);
  }
  weights->resize(candidates.size);
  for (size_t i = 0; i < candidates.size; ++i) {
    const double below = static_cast<double>(candidates.data[i].logit) - largest;
    (*weights)[i] = std::exp(below / temperature);
  }
}

int32_t LlamaSampler::Draw(int32_t position, llama_token_data_array* candidates) const {
  for (const LlamaSamplerPtr& filter : filters_) llama_sampler_apply(filter.get(), candidates);
  if (xtc_ != nullptr && DrawAt(position, DrawPurpose::kXtc) < settings_.xtc_probability()) {
    llama_sampler_apply(xtc_.get(), candidates);
  }
  // The filters leave an order of their own; the draw walks the candidates by id, which costs no
  // sort where nothing was filtered.
  auto by_id = [](const llama_token_data& a, const llama_token_data& b) { return a.id < b.id; };
  llama_token_data* end = candidates->data + candidates->size;
  if (!std::is_sorted(candidates->data, end, by_id)) std::sort(candidates->data, end, by_id);
  static thread_local std::vector<double> weights;
  Weigh(*candidates, &weights);
  return candidates->data[Choose(weights, DrawAt(position, DrawPurpose::kToken))].id;
}

int32_t LlamaSampler::DrawMirostat(int32_t position, llama_token_data_array* candidates,
                                   float* next_mu) const {
  std::sort(candidates->data, candidates->data + candidates->size, IsLikelier);
  static thread_local std::vector<double> weights;
  Weigh(*candidates, &weights);
  double sum = 0;
  for (double weight : weights) sum += weight;
  for (double& weight : weights) weight /= sum;
  weights.resize(MirostatKeep(history_.mirostat(), history_.mu(), weights, n_vocab_));

  const size_t chosen = Choose(weights, DrawAt(position, DrawPurpose::kToken));
  sum = 0;
  for (double weight : weights) sum += weight;
  *next_mu = NextMu(history_.mirostat(), history_.mu(), weights[chosen] / sum);
  return candidates->data[chosen].id;
}

void LlamaSampler::ReportLogprobs(absl::Span<const float> logits,
                                  wire::SampledToken* sampled) const {
  const Logprobs logprobs(logits);
  const auto report = [&](int32_t token) {
    wire::TokenLogprob* top = sampled->add_top();
    top->set_token(token);
    top->set_logprob(logprobs.Of(token));
    top->set_piece(PieceOf(token));
  };
  sampled->set_logprob(logprobs.Of(sampled->token()));
  for (const int32_t token : settings_.logprob_tokens()) report(token);
  for (const int32_t token : logprobs.Likeliest(settings_.logprobs())) report(token);
}

absl::StatusOr<int32_t> LlamaSampler::ChooseToken(int32_t position, absl::Span<const float> logits,
                                                  float* next_mu) {
  const int64_t likeliest = ArgMax(logits);
  if (likeliest < 0) return absl::InternalError("the model's logits are not numbers");
  const auto token = static_cast<int32_t>(likeliest);
  if (is_greedy() && !is_shaped() && !(leaves_out_ends() && is_left_out(token))) return token;

  // One buffer for all sequences of the thread: a megabyte and a half at a vocabulary of 128k.
  static thread_local std::vector<llama_token_data> buffer;
  buffer.resize(n_vocab_);
  for (int32_t i = 0; i < n_vocab_; ++i) buffer[i] = {.id = i, .logit = logits[i], .p = 0};
  llama_token_data_array candidates = {
      .data = buffer.data(), .size = buffer.size(), .selected = -1, .sorted = false};
  if (absl::Status status = Shape(&candidates); !status.ok()) return status;
  if (is_greedy()) return ChooseGreedy(&candidates);
  if (history_.has_grammar()) {
    if (absl::Status status = RestrictToGrammar(&candidates); !status.ok()) return status;
  }
  return settings_.mirostat() != 0 ? DrawMirostat(position, &candidates, next_mu)
                                   : Draw(position, &candidates);
}

absl::StatusOr<wire::SampledToken> LlamaSampler::Sample(int32_t position,
                                                        absl::Span<const float> logits) {
  const size_t length = history_.tokens().size();
  if (position < 0 || static_cast<size_t>(position) != length) {
    return absl::InvalidArgumentError(absl::StrCat("a token is sampled at position ", position,
                                                   " of a sequence of ", length, " tokens"));
  }
  if (logits.size() != static_cast<size_t>(n_vocab_)) {
    return absl::InvalidArgumentError(
        absl::StrCat(logits.size(), " logits for a vocabulary of ", n_vocab_));
  }
  history_.EndPrompt();
  float next_mu = history_.mu();
  const absl::StatusOr<int32_t> token = ChooseToken(position, logits, &next_mu);
  if (!token.ok()) return token.status();

  wire::SampledToken sampled;
  sampled.set_position(position);
  sampled.set_token(*token);
  sampled.set_piece(PieceOf(*token));
  sampled.set_end_of_generation(is_end(*token));
  if (settings_.report_logprob() || settings_.logprobs() > 0 ||
      !settings_.logprob_tokens().empty()) {
    ReportLogprobs(logits, &sampled);
  }
  if (settings_.mirostat() != 0) sampled.set_mirostat_mu(next_mu);
  if (absl::Status status = history_.Append(*token, next_mu); !status.ok()) return status;
  return sampled;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SequenceSampler>> SequenceSampler::Open(
    const wire::SequenceOpen& open, const llama_vocab* vocab) {
  const int32_t n_vocab = llama_vocab_n_tokens(vocab);
  if (absl::Status status = CheckSamplerSettings(open.sampler(), vocab); !status.ok()) {
    return status;
  }
  if (absl::Status status = CheckTokens("prompt", open.prompt(), n_vocab); !status.ok()) {
    return status;
  }
  if (absl::Status status = CheckTokens("generated", open.generated(), n_vocab); !status.ok()) {
    return status;
  }
  auto sampler = std::make_unique<LlamaSampler>(open.sampler(), vocab);
  if (absl::Status status = sampler->Init(open); !status.ok()) return status;
  return sampler;
}

}  // namespace strata
