#include "node/api/sampler_fields.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/random/random.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/request/generation_request.h"
#include "nlohmann/json.hpp"
#include "shard/sampling/sampler_settings.h"

namespace strata {
namespace {

using Json = nlohmann::json;

// Wider than OpenAI's, whose bounds are 2: local clients go beyond these.
constexpr double kTemperatureMax = 100, kPenaltyMax = 100;

void ReadSeed(FieldReader* fields, wire::SamplerSettings* sampler) {
  const Json* seed = fields->Find("seed");
  if (seed == nullptr) {
    thread_local absl::BitGen random;
    sampler->set_seed(absl::Uniform<uint64_t>(random));
  } else if (seed->is_number_unsigned()) {
    sampler->set_seed(seed->get<uint64_t>());
  } else if (seed->is_number_integer()) {
    sampler->set_seed(static_cast<uint64_t>(seed->get<int64_t>()));
  } else {
    fields->Wrong("seed", "must be a whole number");
  }
}

// llama.cpp's form: [[15043, 1.0], [42, false]].
void ReadLogitBiasPairs(const Json& pairs, FieldReader* fields, wire::SamplerSettings* sampler) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  if (pairs.size() > kApiLogitBiasMax) {
    fields->Wrong("logit_bias", absl::StrCat("may have at most ", kApiLogitBiasMax, " entries"));
    return;
  }
  for (const Json& pair : pairs) {
    const bool is_pair = pair.is_array() && pair.size() == 2 && pair[0].is_number_integer() &&
                         pair[0].get<int64_t>() >= 0 &&
                         pair[0].get<int64_t>() <= std::numeric_limits<int32_t>::max();
    const double bias = is_pair && pair[1].is_number() ? pair[1].get<double>()
                        : is_pair && pair[1] == false  ? kNever
                                                       : std::nan("");
    if (!(bias >= -100 && bias <= 100) && bias != kNever) {
      fields->Wrong("logit_bias",
                    "must be pairs of a token id and a number from -100 to 100, or false");
      return;
    }
    wire::LogitBias* entry = sampler->add_logit_bias();
    entry->set_token(pair[0].get<int32_t>());
    entry->set_bias(static_cast<float>(bias));
  }
}

void ReadLogitBias(FieldReader* fields, wire::SamplerSettings* sampler) {
  const Json* biases = fields->Find("logit_bias");
  if (biases == nullptr) return;
  if (biases->is_array()) return ReadLogitBiasPairs(*biases, fields, sampler);
  if (!biases->is_object()) {
    fields->Wrong("logit_bias", "must be an object of token ids and numbers");
    return;
  }
  if (biases->size() > kApiLogitBiasMax) {
    fields->Wrong("logit_bias", absl::StrCat("may have at most ", kApiLogitBiasMax, " entries"));
    return;
  }
  for (const auto& [key, value] : biases->items()) {
    int32_t token = 0;
    const double bias = value.is_number() ? value.get<double>() : std::nan("");
    if (!absl::SimpleAtoi(key, &token) || token < 0 || !(bias >= -100 && bias <= 100)) {
      fields->Wrong("logit_bias", "must be token ids, each with a number from -100 to 100");
      return;
    }
    wire::LogitBias* entry = sampler->add_logit_bias();
    entry->set_token(token);
    entry->set_bias(static_cast<float>(bias));
  }
}

// llama.cpp's.
void ReadRareSettings(FieldReader* fields, wire::SamplerSettings* sampler) {
  constexpr double kMany = std::numeric_limits<int32_t>::max();
  const auto number = [&](const char* name, FieldReader::Range range, double otherwise) {
    return static_cast<float>(fields->Number(name, range).value_or(otherwise));
  };
  const auto whole = [&](const char* name, FieldReader::Range range, int64_t otherwise) {
    return static_cast<int32_t>(fields->Integer(name, range).value_or(otherwise));
  };
  sampler->set_typical_p(number("typical_p", {0, 1}, 1));
  sampler->set_xtc_probability(number("xtc_probability", {0, 1}, 0));
  sampler->set_xtc_threshold(number("xtc_threshold", {0, 1}, 0.1));
  sampler->set_mirostat(whole("mirostat", {0, 2}, 0));
  sampler->set_mirostat_tau(number("mirostat_tau", {0, 1000}, 5));
  sampler->set_mirostat_eta(number("mirostat_eta", {0, 1000}, 0.1));
  sampler->set_dry_multiplier(number("dry_multiplier", {0, 1000}, 0));
  const float base = number("dry_base", {0, 1000}, 1.75);
  sampler->set_dry_base(base < 1 ? 1.75f : base);  // as llama.cpp's server
  sampler->set_dry_allowed_length(whole("dry_allowed_length", {0, kMany}, 2));
  sampler->set_dry_penalty_last_n(whole("dry_penalty_last_n", {-1, kMany}, -1));
  const Json* breakers = fields->Find("dry_sequence_breakers");
  const Json otherwise = Json::array({"\n", ":", "\"", "*"});
  for (const Json& each : breakers == nullptr ? otherwise : *breakers) {
    const auto* text = each.get_ptr<const std::string*>();
    if (text == nullptr || text->empty() || text->size() > kApiStopBytesMax ||
        text->find('\0') != std::string::npos ||
        sampler->dry_sequence_breakers_size() == kDryBreakersMax) {
      fields->Wrong("dry_sequence_breakers",
                    absl::StrCat("must be an array of at most ", kDryBreakersMax, " strings"));
      return;
    }
    sampler->add_dry_sequence_breakers(*text);
  }
  if (sampler->dry_multiplier() == 0) sampler->clear_dry_sequence_breakers();
}

}  // namespace

void ReadSampler(FieldReader* fields, wire::SamplerSettings* sampler) {
  constexpr double kMany = std::numeric_limits<int32_t>::max();
  const auto number = [&](const char* name, FieldReader::Range range, double otherwise) {
    return static_cast<float>(fields->Number(name, range).value_or(otherwise));
  };
  sampler->set_temperature(number("temperature", {0, kTemperatureMax}, 1));
  // 0 means the likeliest token only; to the sampler it would mean off.
  sampler->set_top_p(std::max(number("top_p", {0, 1}, 1), std::numeric_limits<float>::min()));
  sampler->set_min_p(number("min_p", {0, 1}, 0));
  // -1 means all tokens to some clients.
  const int64_t top_k = fields->Integer("top_k", {-1, kMany}).value_or(0);
  sampler->set_top_k(static_cast<int32_t>(std::max<int64_t>(top_k, 0)));
  sampler->set_penalty_presence(number("presence_penalty", {-kPenaltyMax, kPenaltyMax}, 0));
  sampler->set_penalty_frequency(number("frequency_penalty", {-kPenaltyMax, kPenaltyMax}, 0));
  const float repeat = number("repeat_penalty", {0, 10}, 0);
  sampler->set_penalty_repeat(number("repetition_penalty", {0, 10}, repeat));
  const bool penalties = sampler->penalty_presence() != 0 || sampler->penalty_frequency() != 0 ||
                         (sampler->penalty_repeat() != 0 && sampler->penalty_repeat() != 1);
  const int64_t last_n = fields->Integer("repeat_last_n", {-1, kMany}).value_or(penalties ? -1 : 0);
  sampler->set_penalty_last_n(static_cast<int32_t>(last_n));
  sampler->set_ignore_eog(fields->Bool("ignore_eos").value_or(false));
  ReadRareSettings(fields, sampler);
  ReadSeed(fields, sampler);
  ReadLogitBias(fields, sampler);
}

void ReadStops(FieldReader* fields, std::vector<std::string>* stops, const char* name) {
  const Json* stop = fields->Find(name);
  if (stop == nullptr) return;
  const std::vector<const Json*> list = ListOf(*stop, stop->is_array());
  if (list.size() > kApiStopsMax) {
    fields->Wrong(name, absl::StrCat("may have at most ", kApiStopsMax, " strings"));
    return;
  }
  for (const Json* each : list) {
    const auto* text = each->get_ptr<const std::string*>();
    if (text == nullptr || text->size() > kApiStopBytesMax) {
      fields->Wrong(name, absl::StrCat("must be a string or several, of at most ", kApiStopBytesMax,
                                       " bytes each"));
      return;
    }
    if (text->empty()) continue;  // some clients send an empty setting
    stops->push_back(*text);
  }
}

void ReadTokensMax(FieldReader* fields, std::initializer_list<const char*> names,
                   ApiRequest* request) {
  for (const char* name : names) {
    const auto tokens = fields->Integer(name, {-2, kApiOutputTokensMax});
    if (!tokens) continue;
    request->tokens_max.reset();
    if (*tokens >= 0) request->tokens_max = static_cast<uint32_t>(*tokens);
  }
}

void ReadContextShift(FieldReader* fields, ApiRequest* request) {
  constexpr double kKeepMax = std::numeric_limits<int32_t>::max();
  request->shift_context = fields->Bool("context_shift").value_or(false);
  request->keep_tokens =
      static_cast<uint32_t>(fields->Integer("n_keep", {-1, kKeepMax}).value_or(0));  // -1: all
}

void ReadCacheUse(FieldReader* fields, ApiRequest* request) {
  request->no_cache = !fields->Bool("cache_prompt").value_or(true);
  request->cache_salt = fields->Text("cache_salt").value_or("");
}

std::optional<wire::Speculation> ReadSpeculation(FieldReader* fields) {
  const auto text = fields->Text("speculate");
  if (!text) return std::nullopt;
  const auto speculation = SpeculationNamed(*text);
  if (!speculation) fields->Wrong("speculate", "must be auto, off, ngram or draft");
  return speculation;
}

void EnableLogprobs(ApiRequest* request, uint32_t top) {
  request->logprobs = true;
  request->top_logprobs = top;
  request->sampler.set_report_logprob(true);
  request->sampler.set_logprobs(std::max(top, request->sampler.logprobs()));
}

void ReadSuffix(FieldReader* fields, ApiRequest* request) {
  auto suffix = fields->Text("suffix");
  if (suffix && !suffix->empty()) request->infill = ApiInfill{.suffix = *std::move(suffix)};
}

}  // namespace strata
