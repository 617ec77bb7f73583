#include "shard/sampling/sampler_settings.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "llama.h"
#include "shard/sampling/gbnf.h"

namespace strata {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Accepts finite values in [low, high].
absl::Status CheckRange(absl::string_view field, float value, float low, float high) {
  if (std::isfinite(value) && value >= low && value <= high) return absl::OkStatus();
  if (high == kInfinity && low == -kInfinity) {
    return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, "; it must be a number"));
  }
  if (high == kInfinity) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " is ", value, "; it must be ", low, " or more"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, "; it must be from ", low, " to ", high));
}

absl::Status CheckAtLeast(absl::string_view field, int32_t value, int32_t low) {
  if (value >= low) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, "; it must be ", low, " or more"));
}

absl::Status CheckGrammar(const wire::SamplerSettings& settings) {
  if (settings.grammar().empty()) return absl::OkStatus();
  const auto grammar = ParseGbnf(settings.grammar(), settings.grammar_root());
  return grammar.ok() ? CheckGbnf(*grammar) : grammar.status();
}

absl::Status CheckTokens(absl::string_view field, absl::Span<const int32_t> tokens, int most,
                         int32_t n_vocab) {
  if (tokens.size() > static_cast<size_t>(most)) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " has ", tokens.size(), " entries; it may have ", most));
  }
  for (const int32_t token : tokens) {
    if (token >= 0 && token < n_vocab) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(field, " names token ", token, "; the vocabulary has ", n_vocab));
  }
  return absl::OkStatus();
}

absl::Status CheckLogitBias(const wire::SamplerSettings& settings, int32_t n_vocab) {
  for (const wire::LogitBias& bias : settings.logit_bias()) {
    if (bias.token() < 0 || bias.token() >= n_vocab) {
      return absl::InvalidArgumentError(
          absl::StrCat("logit_bias names token ", bias.token(), "; the vocabulary has ", n_vocab));
    }
    // Minus infinity forbids a token; NaN and plus infinity mean nothing.
    if (std::isnan(bias.bias()) || bias.bias() == kInfinity) {
      return absl::InvalidArgumentError(absl::StrCat("logit_bias of token ", bias.token(), " is ",
                                                     bias.bias(),
                                                     "; it must be a number or minus infinity"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSamplerSettings(const wire::SamplerSettings& settings, const llama_vocab* vocab) {
  const int32_t n_vocab = llama_vocab_n_tokens(vocab);
  const absl::Status checks[] = {
      CheckRange("temperature", settings.temperature(), -kInfinity, kInfinity),
      CheckAtLeast("top_k", settings.top_k(), 0),
      CheckRange("top_p", settings.top_p(), 0, 1),
      CheckRange("min_p", settings.min_p(), 0, 1),
      CheckRange("typical_p", settings.typical_p(), 0, 1),
      CheckRange("xtc_probability", settings.xtc_probability(), 0, 1),
      CheckRange("xtc_threshold", settings.xtc_threshold(), 0, 1),
      CheckAtLeast("penalty_last_n", settings.penalty_last_n(), -1),
      CheckRange("penalty_repeat", settings.penalty_repeat(), 0, kInfinity),
      CheckRange("penalty_frequency", settings.penalty_frequency(), -kInfinity, kInfinity),
      CheckRange("penalty_presence", settings.penalty_presence(), -kInfinity, kInfinity),
      CheckRange("dry_multiplier", settings.dry_multiplier(), 0, kInfinity),
      CheckAtLeast("dry_allowed_length", settings.dry_allowed_length(), 0),
      CheckAtLeast("dry_penalty_last_n", settings.dry_penalty_last_n(), -1),
      CheckGrammar(settings),
      CheckLogitBias(settings, n_vocab),
      CheckTokens("stop_tokens", settings.stop_tokens(), kStopTokensMax, n_vocab),
      CheckTokens("logprob_tokens", settings.logprob_tokens(), kLogprobTokensMax, n_vocab),
  };
  for (const absl::Status& status : checks) {
    if (!status.ok()) return status;
  }
  if (settings.dry_multiplier() > 0) {
    if (absl::Status status = CheckRange("dry_base", settings.dry_base(), 1, kInfinity);
        !status.ok()) {
      return status;
    }
    if (settings.dry_sequence_breakers_size() > kDryBreakersMax) {
      return absl::InvalidArgumentError(absl::StrCat("dry_sequence_breakers has ",
                                                     settings.dry_sequence_breakers_size(),
                                                     " entries; it may have ", kDryBreakersMax));
    }
    for (const std::string& breaker : settings.dry_sequence_breakers()) {
      if (breaker.empty() || breaker.find('\0') != std::string::npos) {
        return absl::InvalidArgumentError(
            "dry_sequence_breakers has an entry that is empty or contains a zero byte");
      }
    }
  }
  if (settings.mirostat() < 0 || settings.mirostat() > 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("mirostat is ", settings.mirostat(), "; it must be 0, 1 or 2"));
  }
  if (settings.mirostat() != 0) {
    if (absl::Status status = CheckRange("mirostat_tau", settings.mirostat_tau(), 0, kInfinity);
        !status.ok()) {
      return status;
    }
    if (absl::Status status = CheckRange("mirostat_eta", settings.mirostat_eta(), 0, kInfinity);
        !status.ok()) {
      return status;
    }
  }
  const std::string& root = settings.grammar_root();
  if (!root.empty() && !std::all_of(root.begin(), root.end(), [](unsigned char c) {
        return std::isalnum(c) || c == '-' || c == '_';
      })) {
    return absl::InvalidArgumentError(
        "grammar_root may have letters, digits, minus signs and underscores");
  }
  if (settings.logprobs() > kLogprobsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("logprobs is ", settings.logprobs(), "; it must be from 0 to ", kLogprobsMax));
  }
  return absl::OkStatus();
}

}  // namespace strata
