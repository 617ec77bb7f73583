#include "shard/sampler.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "llama.h"
#include "shard/mirostat.h"
#include "shard/random.h"
#include "shard/sampler_settings.h"

namespace strata {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Tries of the likeliest token against the grammar before the whole vocabulary is matched with it.
constexpr int kGreedyGrammarTries = 8;

struct SamplerDeleter {
  void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
};
using SamplerPtr = std::unique_ptr<llama_sampler, SamplerDeleter>;

SamplerPtr Clone(const SamplerPtr& sampler) {
  return SamplerPtr(sampler == nullptr ? nullptr : llama_sampler_clone(sampler.get()));
}

// libllama sizes a window's ring when it is made; "the whole text" is a ring that is made larger
// when the text reaches its end.
constexpr size_t kWholeTextWindowMin = 4096;

bool IsLikelier(const llama_token_data& a, const llama_token_data& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// Index of the largest logit, the lowest index on ties; -1 where a logit is not a number.
int64_t ArgMax(absl::Span<const float> logits) {
  size_t best = 0;
  bool is_sane = true;
  for (size_t i = 0; i < logits.size(); ++i) {
    is_sane &= logits[i] < std::numeric_limits<float>::infinity();  // false for NaN too
    if (logits[i] > logits[best]) best = i;
  }
  return is_sane && logits[best] > kMinusInfinity ? static_cast<int64_t>(best) : -1;
}

absl::Status BadLogits() {
  return absl::InternalError("the model's logits are not numbers");
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

std::string Piece(const llama_vocab* vocab, int32_t token) {
  std::string piece(32, '\0');
  // Control tokens render as nothing.
  int32_t size = llama_token_to_piece(vocab, token, piece.data(),
                                      static_cast<int32_t>(piece.size()), 0, /*special=*/false);
  if (size < 0) {
    piece.resize(-size);
    size = llama_token_to_piece(vocab, token, piece.data(), static_cast<int32_t>(piece.size()), 0,
                                /*special=*/false);
  }
  piece.resize(std::max(0, size));
  return piece;
}

absl::Status CheckTokens(absl::string_view field, absl::Span<const int32_t> tokens,
                         int32_t n_vocab) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= n_vocab) {
      return absl::InvalidArgumentError(absl::StrCat(field, "[", i, "] is token ", tokens[i],
                                                     "; the vocabulary has ", n_vocab));
    }
  }
  return absl::OkStatus();
}

class LlamaSampler : public SequenceSampler {
 public:
  LlamaSampler(const wire::SequenceOpen& open, const llama_vocab* vocab)
      : settings_(open.sampler()),
        vocab_(vocab),
        n_vocab_(llama_vocab_n_tokens(vocab)),
        n_prompt_(open.prompt_size()),
        mirostat_{.version = settings_.mirostat(),
                  .tau = settings_.mirostat_tau(),
                  .eta = settings_.mirostat_eta()} {}

  // Makes libllama's samplers and takes over the text.
  absl::Status Init(const wire::SequenceOpen& open);

  absl::StatusOr<wire::SampledToken> Sample(int32_t position,
                                            absl::Span<const float> logits) override;
  absl::Status Feed(int32_t position, int32_t token) override;
  absl::Status Rewind(int32_t length) override;
  std::unique_ptr<SequenceSampler> Copy() const override;
  const std::vector<int32_t>& text() const override { return text_; }

 private:
  LlamaSampler(const LlamaSampler& other);

  bool is_greedy() const { return settings_.temperature() <= 0; }
  bool has_penalties() const {
    return settings_.penalty_last_n() != 0 &&
           ((settings_.penalty_repeat() != 0 && settings_.penalty_repeat() != 1) ||
            settings_.penalty_frequency() != 0 || settings_.penalty_presence() != 0);
  }
  bool has_dry() const {
    return settings_.dry_multiplier() > 0 && settings_.dry_penalty_last_n() != 0;
  }
  // What changes logits before the choice; without it the greedy choice is the largest logit.
  bool is_shaped() const {
    return bias_ != nullptr || penalties_ != nullptr || dry_ != nullptr || grammar_ != nullptr;
  }
  bool looks_back() const { return penalties_ != nullptr || dry_ != nullptr; }
  float mu() const { return mu_.empty() ? InitialMu(mirostat_) : mu_.back(); }

  void MakeBias();
  absl::Status MakeGrammar();
  void MakeFilters();
  void MakeWindows();

  bool GrammarAllows(int32_t token) const;
  // Appends a token that the grammar allows; `mu` is the running value after it.
  absl::Status Append(int32_t token, float mu);
  absl::Status Rebuild();

  // The steps of a choice, in order. Each may drop candidates.
  absl::Status Shape(llama_token_data_array* candidates) const;
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

  // Constant after Init().
  const wire::SamplerSettings settings_;
  const llama_vocab* const vocab_;
  const int32_t n_vocab_;
  const int32_t n_prompt_;
  const MirostatSettings mirostat_;
  SamplerPtr bias_;                  // any of these may be null: off
  std::vector<SamplerPtr> filters_;  // top-k, typical, top-p, min-p
  SamplerPtr xtc_;                   // cuts always; whether it is asked is our draw

  // Functions of the text.
  std::vector<int32_t> text_;  // prompt + generated
  std::vector<float> mu_;      // [generated], mirostat only
  size_t window_size_ = 0;     // of the windows that span the whole text
  SamplerPtr penalties_;
  SamplerPtr dry_;
  SamplerPtr grammar_;  // has seen what was generated, not the prompt
};

LlamaSampler::LlamaSampler(const LlamaSampler& other)
    : settings_(other.settings_),
      vocab_(other.vocab_),
      n_vocab_(other.n_vocab_),
      n_prompt_(other.n_prompt_),
      mirostat_(other.mirostat_),
      bias_(Clone(other.bias_)),
      xtc_(Clone(other.xtc_)),
      text_(other.text_),
      mu_(other.mu_),
      window_size_(other.window_size_),
      penalties_(Clone(other.penalties_)),
      dry_(Clone(other.dry_)),
      grammar_(Clone(other.grammar_)) {
  for (const SamplerPtr& filter : other.filters_) filters_.push_back(Clone(filter));
}

std::unique_ptr<SequenceSampler> LlamaSampler::Copy() const {
  return std::unique_ptr<SequenceSampler>(new LlamaSampler(*this));
}

absl::Status LlamaSampler::Init(const wire::SequenceOpen& open) {
  MakeBias();
  MakeFilters();
  if (absl::Status status = MakeGrammar(); !status.ok()) return status;

  text_.assign(open.prompt().begin(), open.prompt().end());
  MakeWindows();
  const bool has_mu = open.mirostat_mu_size() > 0;
  if (has_mu && open.mirostat_mu_size() != open.generated_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("mirostat_mu has ", open.mirostat_mu_size(), " values for ",
                     open.generated_size(), " generated tokens"));
  }
  if (settings_.mirostat() != 0 && !has_mu && open.generated_size() > 0) {
    return absl::InvalidArgumentError("mirostat_mu is missing: one value for each generated token");
  }
  for (int i = 0; i < open.generated_size(); ++i) {
    if (has_mu && !std::isfinite(open.mirostat_mu(i))) {
      return absl::InvalidArgumentError(absl::StrCat("mirostat_mu[", i, "] is not a number"));
    }
    if (!GrammarAllows(open.generated(i))) {
      return absl::InvalidArgumentError(
          absl::StrCat("generated[", i, "] is a token that grammar does not allow there"));
    }
    absl::Status status = Append(open.generated(i), has_mu ? open.mirostat_mu(i) : 0);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void LlamaSampler::MakeBias() {
  std::vector<llama_logit_bias> biases;
  for (const wire::LogitBias& bias : settings_.logit_bias()) {
    biases.push_back({bias.token(), bias.bias()});
  }
  if (settings_.ignore_eog()) {
    for (int32_t token = 0; token < n_vocab_; ++token) {
      if (llama_vocab_is_eog(vocab_, token)) biases.push_back({token, kMinusInfinity});
    }
  }
  if (biases.empty()) return;
  bias_.reset(llama_sampler_init_logit_bias(n_vocab_, static_cast<int32_t>(biases.size()),
                                            biases.data()));
}

void LlamaSampler::MakeFilters() {
  if (is_greedy() || settings_.mirostat() != 0) return;  // neither looks at them
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

absl::Status LlamaSampler::MakeGrammar() {
  if (settings_.grammar().empty()) return absl::OkStatus();
  const std::string root = settings_.grammar_root().empty() ? "root" : settings_.grammar_root();
  try {
    grammar_.reset(llama_sampler_init_grammar(vocab_, settings_.grammar().c_str(), root.c_str()));
  } catch (const std::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat("grammar does not parse: ", e.what()));
  }
  if (grammar_ == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("grammar does not parse, or has no rule \"", root, "\""));
  }
  return absl::OkStatus();
}

// Makes the samplers that look back at the text and shows them the end of it that they see.
void LlamaSampler::MakeWindows() {
  if (!has_penalties() && !has_dry()) return;
  if (window_size_ < kWholeTextWindowMin) window_size_ = kWholeTextWindowMin;
  while (window_size_ <= text_.size()) window_size_ *= 2;
  auto window = [this](int32_t last_n) {
    return last_n < 0 ? static_cast<int32_t>(window_size_) : last_n;
  };
  if (has_penalties()) {
    const float repeat = settings_.penalty_repeat();
    penalties_.reset(llama_sampler_init_penalties(
        n_vocab_, window(settings_.penalty_last_n()), repeat == 0 ? 1 : repeat,
        settings_.penalty_frequency(), settings_.penalty_presence()));
  }
  if (has_dry()) {
    std::vector<const char*> breakers;
    for (const std::string& breaker : settings_.dry_sequence_breakers()) {
      breakers.push_back(breaker.c_str());
    }
    dry_.reset(llama_sampler_init_dry(vocab_, settings_.dry_multiplier(), settings_.dry_base(),
                                      settings_.dry_allowed_length(),
                                      window(settings_.dry_penalty_last_n()), breakers.data(),
                                      breakers.size()));
  }
  for (int32_t token : text_) {
    if (penalties_ != nullptr) llama_sampler_accept(penalties_.get(), token);
    if (dry_ != nullptr) llama_sampler_accept(dry_.get(), token);
  }
}

// libllama aborts when a grammar accepts what it does not allow, so it is asked first.
bool LlamaSampler::GrammarAllows(int32_t token) const {
  if (grammar_ == nullptr) return true;
  llama_token_data candidate = {.id = token, .logit = 0, .p = 0};
  llama_token_data_array candidates = {
      .data = &candidate, .size = 1, .selected = -1, .sorted = false};
  llama_sampler_apply(grammar_.get(), &candidates);
  return candidates.data[0].logit == 0;
}

absl::Status LlamaSampler::Append(int32_t token, float mu) {
  if (grammar_ != nullptr) {
    try {
      llama_sampler_accept(grammar_.get(), token);
    } catch (const std::exception& e) {
      return absl::InvalidArgumentError(absl::StrCat("grammar: ", e.what()));
    }
  }
  text_.push_back(token);
  if (settings_.mirostat() != 0) mu_.push_back(mu);
  if (looks_back() && text_.size() >= window_size_) {
    MakeWindows();
    return absl::OkStatus();
  }
  if (penalties_ != nullptr) llama_sampler_accept(penalties_.get(), token);
  if (dry_ != nullptr) llama_sampler_accept(dry_.get(), token);
  return absl::OkStatus();
}

// After the text was cut.
absl::Status LlamaSampler::Rebuild() {
  const size_t generated =
      text_.size() > static_cast<size_t>(n_prompt_) ? text_.size() - n_prompt_ : 0;
  if (mu_.size() > generated) mu_.resize(generated);
  if (penalties_ != nullptr) llama_sampler_reset(penalties_.get());
  if (dry_ != nullptr) llama_sampler_reset(dry_.get());
  for (int32_t token : text_) {
    if (penalties_ != nullptr) llama_sampler_accept(penalties_.get(), token);
    if (dry_ != nullptr) llama_sampler_accept(dry_.get(), token);
  }
  if (grammar_ == nullptr) return absl::OkStatus();
  llama_sampler_reset(grammar_.get());
  for (size_t i = text_.size() - generated; i < text_.size(); ++i) {
    try {
      llama_sampler_accept(grammar_.get(), text_[i]);
    } catch (const std::exception& e) {
      return absl::InternalError(absl::StrCat("grammar: ", e.what()));
    }
  }
  return absl::OkStatus();
}

absl::Status LlamaSampler::Rewind(int32_t length) {
  if (length < 0) return absl::InvalidArgumentError("a text cannot be rewound below its start");
  if (static_cast<size_t>(length) >= text_.size()) return absl::OkStatus();
  text_.resize(length);
  return Rebuild();
}

absl::Status LlamaSampler::Feed(int32_t position, int32_t token) {
  if (position < 0 || static_cast<size_t>(position) > text_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a token is fed at position ", position,
                                                   " of a text of ", text_.size(), " tokens"));
  }
  if (absl::Status status = CheckTokens("tokens", {token}, n_vocab_); !status.ok()) return status;
  if (static_cast<size_t>(position) < text_.size()) {
    if (text_[position] == token) return absl::OkStatus();
    if (absl::Status status = Rewind(position); !status.ok()) return status;
  }
  if (position < n_prompt_) {  // a corrected prompt: the grammar does not see it
    text_.push_back(token);
    if (penalties_ != nullptr) llama_sampler_accept(penalties_.get(), token);
    if (dry_ != nullptr) llama_sampler_accept(dry_.get(), token);
    return absl::OkStatus();
  }
  if (!GrammarAllows(token)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the token fed at position ", position, " is not allowed by the grammar"));
  }
  return Append(token, mu());
}

absl::Status LlamaSampler::Shape(llama_token_data_array* candidates) const {
  for (const SamplerPtr* sampler : {&bias_, &penalties_, &dry_}) {
    if (*sampler != nullptr) llama_sampler_apply(sampler->get(), candidates);
  }
  // Forbidden tokens would become NaN in filters that take logarithms of probabilities.
  llama_token_data* end =
      std::remove_if(candidates->data, candidates->data + candidates->size,
                     [](const llama_token_data& c) { return !(c.logit > kMinusInfinity); });
  candidates->size = end - candidates->data;
  if (candidates->size == 0) {
    return absl::FailedPreconditionError("no token is allowed: logit_bias forbids them all");
  }
  return absl::OkStatus();
}

absl::Status LlamaSampler::RestrictToGrammar(llama_token_data_array* candidates) const {
  llama_sampler_apply(grammar_.get(), candidates);
  llama_token_data* end =
      std::remove_if(candidates->data, candidates->data + candidates->size,
                     [](const llama_token_data& c) { return !(c.logit > kMinusInfinity); });
  candidates->size = end - candidates->data;
  if (candidates->size == 0) {
    return absl::FailedPreconditionError(
        "no token is allowed: the grammar cannot go on with any token of the vocabulary");
  }
  return absl::OkStatus();
}

absl::StatusOr<int32_t> LlamaSampler::ChooseGreedy(llama_token_data_array* candidates) const {
  auto best = [candidates] {
    // The likelier one compares as less, so the minimum is the likeliest.
    return std::min_element(candidates->data, candidates->data + candidates->size, IsLikelier);
  };
  if (grammar_ == nullptr) return best()->id;
  for (int i = 0; i < kGreedyGrammarTries; ++i) {
    llama_token_data* candidate = best();
    if (GrammarAllows(candidate->id)) return candidate->id;
    *candidate = candidates->data[--candidates->size];
    if (candidates->size == 0) break;
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
  for (const SamplerPtr& filter : filters_) llama_sampler_apply(filter.get(), candidates);
  if (xtc_ != nullptr && DrawAt(position, DrawPurpose::kXtc) < settings_.xtc_probability()) {
    llama_sampler_apply(xtc_.get(), candidates);
  }
  // The filters leave an order of their own; the draw walks the candidates by id, which costs no sort
  // where nothing was filtered.
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
  weights.resize(MirostatKeep(mirostat_, mu(), weights, n_vocab_));

  const size_t chosen = Choose(weights, DrawAt(position, DrawPurpose::kToken));
  sum = 0;
  for (double weight : weights) sum += weight;
  *next_mu = NextMu(mirostat_, mu(), weights[chosen] / sum);
  return candidates->data[chosen].id;
}

// Of the model's own distribution, before any setting changed it, as OpenAI's API reports them.
void LlamaSampler::ReportLogprobs(absl::Span<const float> logits,
                                  wire::SampledToken* sampled) const {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  const double log_sum = largest + std::log(sum);
  auto logprob = [&](int32_t token) {
    // Forbidden by the model itself: no probability, said with a number that every peer can read.
    return std::max(static_cast<float>(logits[token] - log_sum),
                    std::numeric_limits<float>::lowest());
  };
  sampled->set_logprob(logprob(sampled->token()));
  const size_t n_top = std::min<size_t>(settings_.logprobs(), n_vocab_);
  if (n_top == 0) return;

  std::vector<int32_t> tokens(n_vocab_);
  for (int32_t i = 0; i < n_vocab_; ++i) tokens[i] = i;
  std::partial_sort(tokens.begin(), tokens.begin() + n_top, tokens.end(),
                    [&](int32_t a, int32_t b) {
                      return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
                    });
  for (size_t i = 0; i < n_top; ++i) {
    wire::TokenLogprob* top = sampled->add_top();
    top->set_token(tokens[i]);
    top->set_logprob(logprob(tokens[i]));
    top->set_piece(Piece(vocab_, tokens[i]));
  }
}

absl::StatusOr<wire::SampledToken> LlamaSampler::Sample(int32_t position,
                                                        absl::Span<const float> logits) {
  if (position < 0 || static_cast<size_t>(position) != text_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a token is wanted at position ", position,
                                                   " of a text of ", text_.size(), " tokens"));
  }
  if (logits.size() != static_cast<size_t>(n_vocab_)) {
    return absl::InvalidArgumentError(
        absl::StrCat(logits.size(), " logits for a vocabulary of ", n_vocab_));
  }
  const int64_t likeliest = ArgMax(logits);
  if (likeliest < 0) return BadLogits();

  int32_t token = static_cast<int32_t>(likeliest);
  float next_mu = mu();
  if (!is_greedy() || is_shaped()) {
    // One buffer for all sequences of the thread: a megabyte and a half at a vocabulary of 128k.
    static thread_local std::vector<llama_token_data> buffer;
    buffer.resize(n_vocab_);
    for (int32_t i = 0; i < n_vocab_; ++i) buffer[i] = {.id = i, .logit = logits[i], .p = 0};
    llama_token_data_array candidates = {
        .data = buffer.data(), .size = buffer.size(), .selected = -1, .sorted = false};
    if (absl::Status status = Shape(&candidates); !status.ok()) return status;
    if (is_greedy()) {
      absl::StatusOr<int32_t> chosen = ChooseGreedy(&candidates);
      if (!chosen.ok()) return chosen.status();
      token = *chosen;
    } else {
      if (grammar_ != nullptr) {
        if (absl::Status status = RestrictToGrammar(&candidates); !status.ok()) return status;
      }
      token = settings_.mirostat() != 0 ? DrawMirostat(position, &candidates, &next_mu)
                                        : Draw(position, &candidates);
    }
  }

  wire::SampledToken sampled;
  sampled.set_position(position);
  sampled.set_token(token);
  sampled.set_piece(Piece(vocab_, token));
  sampled.set_end_of_generation(llama_vocab_is_eog(vocab_, token));
  if (settings_.report_logprob() || settings_.logprobs() > 0) ReportLogprobs(logits, &sampled);
  if (settings_.mirostat() != 0) sampled.set_mirostat_mu(next_mu);
  if (absl::Status status = Append(token, next_mu); !status.ok()) return status;
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
  auto sampler = std::make_unique<LlamaSampler>(open, vocab);
  if (absl::Status status = sampler->Init(open); !status.ok()) return status;
  return sampler;
}

}  // namespace strata
