#include "shard/sampling/sampler_text.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <exception>
#include <string>

#include "absl/strings/str_cat.h"

namespace strata {
namespace {

// libllama allocates a window's ring at its full size, so none is larger than the sequence needs.
// They are doubled whenever the sequence fills them.
constexpr size_t kWholeSequenceWindowMin = 4096;

// Processor time, so that load on a shared machine cannot make a request fail.
double ThreadMs() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

// The readings of an output grow slowly where shard/sampling/gbnf.h has accepted the grammar.
absl::Status CheckGrammarTime(double before_ms) {
  if (ThreadMs() - before_ms <= kGrammarTimeMaxMs) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "the grammar takes too long: it is too ambiguous for this output");
}

bool HasPenalties(const wire::SamplerSettings& settings) {
  return settings.penalty_last_n() != 0 &&
         ((settings.penalty_repeat() != 0 && settings.penalty_repeat() != 1) ||
          settings.penalty_frequency() != 0 || settings.penalty_presence() != 0);
}

bool HasDry(const wire::SamplerSettings& settings) {
  return settings.dry_multiplier() > 0 && settings.dry_penalty_last_n() != 0;
}

}  // namespace

SamplerText::SamplerText(const wire::SamplerSettings& settings, const llama_vocab* vocab)
    : settings_(settings),
      vocab_(vocab),
      mirostat_{.version = settings.mirostat(),
                .tau = settings.mirostat_tau(),
                .eta = settings.mirostat_eta()} {}

absl::Status SamplerText::Open(const wire::SequenceOpen& open) {
  if (absl::Status status = MakeGrammar(); !status.ok()) return status;
  tokens_.assign(open.prompt().begin(), open.prompt().end());
  n_prompt_ = tokens_.size();
  MakeWindows();

  const int n_mu = open.mirostat_mu_size();
  const bool wants_mu = settings_.mirostat() != 0;
  if (n_mu != 0 && n_mu != open.generated_size()) {
    return absl::InvalidArgumentError(absl::StrCat("mirostat_mu has ", n_mu, " values for ",
                                                   open.generated_size(), " generated tokens"));
  }
  if (wants_mu && n_mu == 0 && open.generated_size() > 0) {
    return absl::InvalidArgumentError("mirostat_mu is missing: one value for each generated token");
  }
  for (int i = 0; i < open.generated_size(); ++i) {
    if (n_mu != 0 && !std::isfinite(open.mirostat_mu(i))) {
      return absl::InvalidArgumentError(absl::StrCat("mirostat_mu[", i, "] is not a number"));
    }
    absl::Status status = Append(open.generated(i), n_mu != 0 ? open.mirostat_mu(i) : 0);
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("generated[", i, "]: ", status.message()));
    }
  }
  return absl::OkStatus();
}

absl::Status SamplerText::MakeGrammar() {
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

void SamplerText::MakeWindows() {
  if (!HasPenalties(settings_) && !HasDry(settings_)) return;
  window_size_ = std::max(window_size_, kWholeSequenceWindowMin);
  while (window_size_ <= tokens_.size()) window_size_ *= 2;
  auto window = [this](int32_t last_n) {
    const auto whole = static_cast<int32_t>(window_size_);
    return last_n < 0 ? whole : std::min(last_n, whole);
  };
  if (HasPenalties(settings_)) {
    const float repeat = settings_.penalty_repeat();
    penalties_.reset(llama_sampler_init_penalties(
        llama_vocab_n_tokens(vocab_), window(settings_.penalty_last_n()), repeat == 0 ? 1 : repeat,
        settings_.penalty_frequency(), settings_.penalty_presence()));
  }
  if (HasDry(settings_)) {
    std::vector<const char*> breakers;
    for (const std::string& breaker : settings_.dry_sequence_breakers()) {
      breakers.push_back(breaker.c_str());
    }
    dry_.reset(llama_sampler_init_dry(
        vocab_, settings_.dry_multiplier(), settings_.dry_base(), settings_.dry_allowed_length(),
        window(settings_.dry_penalty_last_n()), breakers.data(), breakers.size()));
  }
  for (int32_t token : tokens_) AddToWindows(token);
}

void SamplerText::AddToWindows(int32_t token) {
  if (penalties_ != nullptr) llama_sampler_accept(penalties_.get(), token);
  if (dry_ != nullptr) llama_sampler_accept(dry_.get(), token);
}

absl::Status SamplerText::Append(int32_t token, float mu) {
  if (grammar_ != nullptr) {
    // libllama aborts on a token that the grammar does not allow, so check first.
    if (!GrammarAllows(token)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the grammar does not allow token ", token, " here"));
    }
    try {
      const double before_ms = ThreadMs();
      llama_sampler_accept(grammar_.get(), token);
      if (absl::Status status = CheckGrammarTime(before_ms); !status.ok()) return status;
    } catch (const std::exception& e) {
      return absl::InvalidArgumentError(
          absl::StrCat("the grammar does not allow token ", token, " here: ", e.what()));
    }
  }
  tokens_.push_back(token);
  if (settings_.mirostat() != 0) mu_.push_back(mu);
  if (looks_back() && tokens_.size() >= window_size_) {
    MakeWindows();
  } else {
    AddToWindows(token);
  }
  return absl::OkStatus();
}

void SamplerText::AppendPrompt(int32_t token) {
  tokens_.push_back(token);
  AddToWindows(token);
}

void SamplerText::Rewind(size_t length) {
  if (length >= tokens_.size()) return;
  tokens_.resize(length);
  const size_t n_generated = length > n_prompt_ ? length - n_prompt_ : 0;
  if (mu_.size() > n_generated) mu_.resize(n_generated);
  if (penalties_ != nullptr) llama_sampler_reset(penalties_.get());
  if (dry_ != nullptr) llama_sampler_reset(dry_.get());
  for (int32_t token : tokens_) AddToWindows(token);
  if (grammar_ == nullptr) return;
  llama_sampler_reset(grammar_.get());
  // The grammar has accepted these tokens before, so it neither throws nor aborts.
  for (size_t i = length - n_generated; i < length; ++i) {
    llama_sampler_accept(grammar_.get(), tokens_[i]);
  }
}

bool SamplerText::GrammarAllows(int32_t token) const {
  if (grammar_ == nullptr) return true;
  llama_token_data candidate = {.id = token, .logit = 0, .p = 0};
  llama_token_data_array candidates = {
      .data = &candidate, .size = 1, .selected = -1, .sorted = false};
  llama_sampler_apply(grammar_.get(), &candidates);
  return candidates.data[0].logit == 0;
}

void SamplerText::Penalize(llama_token_data_array* candidates) const {
  if (penalties_ != nullptr) llama_sampler_apply(penalties_.get(), candidates);
  if (dry_ != nullptr) llama_sampler_apply(dry_.get(), candidates);
}

absl::Status SamplerText::RestrictToGrammar(llama_token_data_array* candidates) const {
  if (grammar_ == nullptr) return absl::OkStatus();
  const double before_ms = ThreadMs();
  llama_sampler_apply(grammar_.get(), candidates);
  return CheckGrammarTime(before_ms);
}

}  // namespace strata
