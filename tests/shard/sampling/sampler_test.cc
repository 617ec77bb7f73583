#include "shard/sampling/sampler.h"

#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "llama.h"
#include "shard/device/engine.h"
#include "shard/device/memory.h"
#include "shard/model/gguf.h"
#include "shard/sampling/random.h"
#include "shard/sampling/sampler_settings.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Code = absl::StatusCode;
using Tokens = std::vector<int32_t>;

constexpr int32_t kEnd = 2;      // </s>
constexpr int32_t kLetterA = 3;  // "a", then the other letters, digits and a few marks
constexpr absl::string_view kCharacters = "abcdefghijklmnopqrstuvwxyz0123456789,.:\n\"";
constexpr int32_t kVocab = kLetterA + static_cast<int32_t>(kCharacters.size());

int32_t TokenOf(char c) { return kLetterA + static_cast<int32_t>(kCharacters.find(c)); }

template <typename T>
GgufValue ArrayOf(GgufType type, const std::vector<T>& values) {
  GgufValue value;
  value.type = GgufType::kArray;
  value.element_type = type;
  value.count = values.size();
  value.bytes.assign(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  return value;
}

// A vocabulary of single characters, in a model file that has nothing else.
const llama_vocab* Vocabulary() {
  static llama_model* const model = [] {
    std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
    std::vector<int32_t> types = {2, 3, 3};
    for (char c : kCharacters) {
      tokens.push_back(std::string(1, c));
      types.push_back(1);
    }
    GgufHeader header;
    header.Set("general.architecture", GgufValue::String("llama"));
    header.Set("tokenizer.ggml.model", GgufValue::String("llama"));
    header.Set("tokenizer.ggml.tokens", GgufValue::StringArray(tokens));
    header.Set("tokenizer.ggml.scores",
               ArrayOf(GgufType::kF32, std::vector<float>(tokens.size(), -1.0f)));
    header.Set("tokenizer.ggml.token_type", ArrayOf(GgufType::kI32, types));
    header.Set("tokenizer.ggml.unknown_token_id", GgufValue::U32(0));
    header.Set("tokenizer.ggml.bos_token_id", GgufValue::U32(1));
    header.Set("tokenizer.ggml.eos_token_id", GgufValue::U32(kEnd));
    const std::string path = absl::StrCat(testing::ProcessTempFolder(), "/vocabulary.gguf");
    std::ofstream(path, std::ios::binary) << SerializeGgufHeader(header);
    StartEngine();
    llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    return llama_model_load_from_file(path.c_str(), params);
  }();
  EXPECT_NE(model, nullptr);
  return llama_model_get_vocab(model);
}

// Logits that a model might give after `tokens`: a function of the position and the last token.
std::vector<float> LogitsAt(const Tokens& tokens) {
  std::vector<float> logits(kVocab);
  const uint64_t seed = tokens.empty() ? 0 : static_cast<uint64_t>(tokens.back());
  for (int32_t i = 0; i < kVocab; ++i) {
    const uint64_t position = tokens.size() * 1000 + static_cast<uint64_t>(i);
    logits[i] = static_cast<float>(8 * Draw({.seed = seed, .position = position}) - 4);
  }
  return logits;
}

wire::SequenceOpen OpenWith(wire::SamplerSettings settings, const Tokens& prompt = {5, 6, 7},
                            const Tokens& generated = {}) {
  wire::SequenceOpen open;
  *open.mutable_sampler() = std::move(settings);
  open.mutable_prompt()->Assign(prompt.begin(), prompt.end());
  open.mutable_generated()->Assign(generated.begin(), generated.end());
  return open;
}

std::unique_ptr<SequenceSampler> Open(const wire::SequenceOpen& open) {
  absl::StatusOr<std::unique_ptr<SequenceSampler>> sampler =
      SequenceSampler::Open(open, Vocabulary());
  EXPECT_TRUE(sampler.ok()) << sampler.status();
  return *std::move(sampler);
}

wire::SampledToken SampleNext(SequenceSampler& sampler) {
  const absl::StatusOr<wire::SampledToken> token =
      sampler.Sample(static_cast<int32_t>(sampler.tokens().size()), LogitsAt(sampler.tokens()));
  EXPECT_TRUE(token.ok()) << token.status();
  return token.ok() ? *token : wire::SampledToken();
}

std::vector<wire::SampledToken> SampleNext(SequenceSampler& sampler, int n) {
  std::vector<wire::SampledToken> tokens;
  for (int i = 0; i < n; ++i) tokens.push_back(SampleNext(sampler));
  return tokens;
}

Tokens IdsOf(const std::vector<wire::SampledToken>& sampled) {
  Tokens ids;
  for (const wire::SampledToken& token : sampled) ids.push_back(token.token());
  return ids;
}

struct SettingCase {
  const char* name;
  std::function<void(wire::SamplerSettings&)> set;
};

wire::SamplerSettings Settings(const std::function<void(wire::SamplerSettings&)>& set) {
  wire::SamplerSettings settings;
  settings.set_seed(42);
  settings.set_temperature(1);
  set(settings);
  return settings;
}

void SetMirostat(wire::SamplerSettings& s, int version) {
  s.set_mirostat(version);
  s.set_mirostat_tau(3);
  s.set_mirostat_eta(0.3f);
}

void SetPenalties(wire::SamplerSettings& s, int last_n) {
  s.set_penalty_last_n(last_n);
  s.set_penalty_repeat(1.4f);
  s.set_penalty_frequency(0.5f);
  s.set_penalty_presence(0.7f);
}

void SetDry(wire::SamplerSettings& s, int last_n) {
  s.set_dry_multiplier(2);
  s.set_dry_base(1.75f);
  s.set_dry_allowed_length(1);
  s.set_dry_penalty_last_n(last_n);
  s.add_dry_sequence_breakers("\n");
}

const std::vector<SettingCase>& AllSettings() {
  static const std::vector<SettingCase> settings = {
      {"Greedy", [](auto& s) { s.set_temperature(0); }},
      {"Temperature", [](auto& s) { s.set_temperature(0.7f); }},
      {"TopK", [](auto& s) { s.set_top_k(5); }},
      {"TopP", [](auto& s) { s.set_top_p(0.8f); }},
      {"MinP", [](auto& s) { s.set_min_p(0.1f); }},
      {"TypicalP", [](auto& s) { s.set_typical_p(0.6f); }},
      {"Xtc", [](auto& s) { s.set_xtc_probability(0.5f), s.set_xtc_threshold(0.05f); }},
      {"Penalties", [](auto& s) { SetPenalties(s, 16); }},
      {"PenaltiesOfTheWholeSequence", [](auto& s) { SetPenalties(s, -1); }},
      {"GreedyPenalties", [](auto& s) { SetPenalties(s, 16), s.set_temperature(0); }},
      {"Dry", [](auto& s) { SetDry(s, -1); }},
      {"DryOfAWindow", [](auto& s) { SetDry(s, 8); }},
      {"Mirostat1", [](auto& s) { SetMirostat(s, 1); }},
      {"Mirostat2", [](auto& s) { SetMirostat(s, 2); }},
      {"Grammar", [](auto& s) { s.set_grammar("root ::= ([a-f] [0-9]+ \",\")+"); }},
      {"GreedyGrammar",
       [](auto& s) { s.set_grammar("root ::= ([a-f] [0-9]+ \",\")+"), s.set_temperature(0); }},
      {"LogitBias",
       [](auto& s) {
         auto* bias = s.add_logit_bias();
         bias->set_token(9);
         bias->set_bias(4);
       }},
      {"IgnoreEog", [](auto& s) { s.set_ignore_eog(true); }},
      {"Everything",
       [](auto& s) {
         SetPenalties(s, 16);
         SetDry(s, -1);
         s.set_top_k(30), s.set_top_p(0.95f), s.set_min_p(0.01f), s.set_typical_p(0.95f);
         s.set_xtc_probability(0.5f), s.set_xtc_threshold(0.1f), s.set_ignore_eog(true);
         s.set_grammar("root ::= [a-z0-9,]+");
       }},
  };
  return settings;
}

class EverySetting : public ::testing::TestWithParam<SettingCase> {};

TEST_P(EverySetting, ReopenedSequenceContinuesTheSame) {
  const wire::SamplerSettings settings = Settings(GetParam().set);
  auto sampler = Open(OpenWith(settings));
  const std::vector<wire::SampledToken> sampled = SampleNext(*sampler, 40);
  for (size_t k : {0u, 1u, 7u, 39u}) {
    wire::SequenceOpen open = OpenWith(settings);
    for (size_t i = 0; i < k; ++i) {
      open.add_generated(sampled[i].token());
      if (settings.mirostat() != 0) open.add_mirostat_mu(sampled[i].mirostat_mu());
    }
    auto replayed = Open(open);
    const std::vector<wire::SampledToken> rest =
        SampleNext(*replayed, static_cast<int>(sampled.size() - k));
    for (size_t i = k; i < sampled.size(); ++i) {
      ASSERT_EQ(rest[i - k].token(), sampled[i].token()) << "opened at " << k << ", token " << i;
      ASSERT_EQ(rest[i - k].mirostat_mu(), sampled[i].mirostat_mu());
    }
  }
}

TEST_P(EverySetting, RewoundSequenceContinuesTheSame) {
  auto sampler = Open(OpenWith(Settings(GetParam().set)));
  const Tokens sampled = IdsOf(SampleNext(*sampler, 30));
  ASSERT_TRUE(sampler->Rewind(3 + 10).ok());
  EXPECT_THAT(sampler->tokens(), SizeIs(13));
  EXPECT_EQ(IdsOf(SampleNext(*sampler, 20)), Tokens(sampled.begin() + 10, sampled.end()));
}

INSTANTIATE_TEST_SUITE_P(Sampler, EverySetting, ::testing::ValuesIn(AllSettings()),
                         [](const auto& info) { return std::string(info.param.name); });

// How often each token is drawn first, over many seeds.
std::map<int32_t, int> Counts(wire::SamplerSettings settings, const std::vector<float>& logits,
                              int draws, const Tokens& prompt = {5, 6, 7}) {
  std::map<int32_t, int> counts;
  for (int i = 0; i < draws; ++i) {
    settings.set_seed(static_cast<uint64_t>(i));
    auto sampler = Open(OpenWith(settings, prompt));
    absl::StatusOr<wire::SampledToken> token =
        sampler->Sample(static_cast<int32_t>(prompt.size()), logits);
    EXPECT_TRUE(token.ok()) << token.status();
    if (token.ok()) ++counts[token->token()];
  }
  return counts;
}

// Logits whose softmax are these probabilities; the other tokens have none.
std::vector<float> LogitsOf(const std::map<int32_t, double>& probabilities) {
  std::vector<float> logits(kVocab, -1e9f);
  for (const auto& [token, p] : probabilities) logits[token] = static_cast<float>(std::log(p));
  return logits;
}

void ExpectDistribution(const std::map<int32_t, int>& counts,
                        const std::map<int32_t, double>& expected, int draws) {
  double chi_square = 0;
  int seen = 0;
  for (const auto& [token, p] : expected) {
    const auto it = counts.find(token);
    const int count = it == counts.end() ? 0 : it->second;
    seen += count;
    chi_square += std::pow(count - p * draws, 2) / (p * draws);
  }
  EXPECT_EQ(seen, draws);
  EXPECT_LT(chi_square, 20) << "of " << expected.size() << " tokens";  // at most 4 degrees
}

const std::map<int32_t, double> kProbabilities = {
    {4, 0.5}, {10, 0.25}, {20, 0.15}, {30, 0.08}, {40, 0.02}};

TEST(Sampler, DrawsFollowTheSoftmax) {
  const auto counts = Counts(Settings([](auto&) {}), LogitsOf(kProbabilities), 4000);
  ExpectDistribution(counts, kProbabilities, 4000);
}

TEST(Sampler, DrawsFollowTheSoftmaxOverPositionsOfOneSequence) {
  auto sampler = Open(OpenWith(Settings([](auto&) {})));
  std::map<int32_t, int> counts;
  for (int i = 0; i < 4000; ++i) {
    ++counts[sampler->Sample(3 + i, LogitsOf(kProbabilities))->token()];
  }
  ExpectDistribution(counts, kProbabilities, 4000);
}

TEST(Sampler, TemperatureSharpens) {
  std::map<int32_t, double> squared;
  double sum = 0;
  for (const auto& [token, p] : kProbabilities) sum += p * p;
  for (const auto& [token, p] : kProbabilities) squared[token] = p * p / sum;
  const auto counts =
      Counts(Settings([](auto& s) { s.set_temperature(0.5f); }), LogitsOf(kProbabilities), 4000);
  ExpectDistribution(counts, squared, 4000);
}

Tokens DrawnWith(const std::function<void(wire::SamplerSettings&)>& set) {
  Tokens drawn;
  for (const auto& [token, count] : Counts(Settings(set), LogitsOf(kProbabilities), 1000)) {
    drawn.push_back(token);
  }
  return drawn;
}

TEST(Sampler, FiltersKeepTheRightTokens) {
  EXPECT_THAT(DrawnWith([](auto&) {}), ElementsAre(4, 10, 20, 30, 40));
  EXPECT_THAT(DrawnWith([](auto& s) { s.set_top_k(2); }), ElementsAre(4, 10));
  EXPECT_THAT(DrawnWith([](auto& s) { s.set_top_p(0.85f); }), ElementsAre(4, 10, 20));
  EXPECT_THAT(DrawnWith([](auto& s) { s.set_min_p(0.2f); }), ElementsAre(4, 10, 20));
  // The entropy is 1.21 nats: 0.25 is nearest to it, then 0.5 and 0.15.
  EXPECT_THAT(DrawnWith([](auto& s) { s.set_typical_p(0.2f); }), ElementsAre(10));
  EXPECT_THAT(DrawnWith([](auto& s) { s.set_top_p(0), s.set_typical_p(1); }), SizeIs(5));
  EXPECT_THAT(DrawnWith([](auto& s) { s.set_temperature(1e-30f); }), ElementsAre(4));
}

TEST(Sampler, XtcDropsTheTopChoicesAsOftenAsSet) {
  // Of those at or above the threshold only the least likely stays.
  EXPECT_THAT(DrawnWith([](auto& s) { s.set_xtc_probability(1), s.set_xtc_threshold(0.1f); }),
              ElementsAre(20, 30, 40));
  const auto settings =
      Settings([](auto& s) { s.set_xtc_probability(0.5f), s.set_xtc_threshold(0.1f); });
  const auto counts = Counts(settings, LogitsOf(kProbabilities), 4000);
  EXPECT_NEAR(counts.at(4) / 4000.0, 0.5 * 0.5, 0.03);
  EXPECT_NEAR(counts.at(20) / 4000.0, 0.5 * 0.15 + 0.5 * 0.15 / 0.25, 0.03);
}

TEST(Sampler, GreedyTakesTheLargestAndTheLowestIdOfEquals) {
  std::vector<float> logits(kVocab, 0.0f);
  logits[17] = logits[30] = 2;
  for (const auto& set : std::vector<std::function<void(wire::SamplerSettings&)>>{
           [](auto& s) { s.set_temperature(0); },
           [](auto& s) { s.set_temperature(-1); },
           [](auto& s) { s.set_temperature(0), s.set_ignore_eog(true); },
           [](auto& s) { s.set_temperature(0), s.set_top_k(3), s.set_xtc_probability(1); },
       }) {
    auto sampler = Open(OpenWith(Settings(set)));
    EXPECT_EQ(sampler->Sample(3, logits)->token(), 17);
  }
}

TEST(Sampler, PenaltiesLookAtTheWindowOnly) {
  std::vector<float> logits(kVocab, 0.0f);
  logits[6] = 2;  // in the prompt, 4 tokens back
  logits[20] = 1.5;
  auto token = [&](int last_n) {
    auto settings = Settings([last_n](auto& s) {
      s.set_temperature(0);
      s.set_penalty_last_n(last_n);
      s.set_penalty_presence(1);
    });
    return Open(OpenWith(settings, {6, 7, 8, 9}))->Sample(4, logits)->token();
  };
  EXPECT_EQ(token(0), 6);
  EXPECT_EQ(token(3), 6);
  EXPECT_EQ(token(4), 20);
  EXPECT_EQ(token(-1), 20);
}

// A window of a billion tokens takes the memory of the sequence, not 4 GiB.
TEST(Sampler, AWindowTakesNoMoreMemoryThanItsSequence) {
  constexpr int32_t kHuge = 250'000'000;
  const auto settings =
      Settings([](auto& s) { s.set_temperature(0), SetPenalties(s, kHuge), SetDry(s, kHuge); });
  const uint64_t before = ResidentBytes();
  const auto sampler = Open(OpenWith(settings, {6, 7, 8, 9}));
  EXPECT_LT(ResidentBytes(), before + (64u << 20));
  std::vector<float> logits(kVocab, 0.0f);
  logits[6] = 1;
  logits[20] = 0.9f;
  EXPECT_EQ(sampler->Sample(4, logits)->token(), 20);
}

TEST(Sampler, WholeSequenceWindowGrowsWithTheSequence) {
  const auto settings = Settings([](auto& s) { s.set_temperature(0), SetPenalties(s, -1); });
  Tokens prompt(5000, 7);
  prompt[0] = 9;  // must still count when the sequence is long
  std::vector<float> logits(kVocab, 0.0f);
  logits[9] = 1;
  logits[11] = 0.9f;
  auto sampler = Open(OpenWith(settings, prompt));
  EXPECT_EQ(sampler->Sample(5000, logits)->token(), 11);
  for (int32_t i = 5001; i < 9000; ++i) ASSERT_TRUE(sampler->Feed(i, 7).ok());
  logits[11] = -5;
  logits[12] = 0.9f;
  EXPECT_EQ(sampler->Sample(9000, logits)->token(), 12);
}

TEST(Sampler, DryForbidsTheRepetitionOfASequence) {
  std::vector<float> logits(kVocab, 0.0f);
  logits[13] = 2;
  logits[20] = 1;
  auto token = [&](float multiplier) {
    auto settings = Settings([multiplier](auto& s) {
      SetDry(s, -1);
      s.set_temperature(0), s.set_dry_multiplier(multiplier);
    });
    return Open(OpenWith(settings, {10, 11, 12, 13, 14, 10, 11, 12}))->Sample(8, logits)->token();
  };
  EXPECT_EQ(token(0), 13);
  EXPECT_EQ(token(2), 20);
}

TEST(Sampler, LogitBiasAddsAndForbids) {
  std::vector<float> logits(kVocab, 0.0f);
  logits[20] = 2;
  auto token = [&](float bias_of_20, float bias_of_30) {
    auto settings = Settings([&](auto& s) {
      s.set_temperature(0);
      s.add_logit_bias()->set_token(20);
      s.mutable_logit_bias(0)->set_bias(bias_of_20);
      s.add_logit_bias()->set_token(30);
      s.mutable_logit_bias(1)->set_bias(bias_of_30);
    });
    return Open(OpenWith(settings))->Sample(3, logits)->token();
  };
  constexpr float kForbid = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(token(0, 1), 20);
  EXPECT_EQ(token(0, 3), 30);
  EXPECT_EQ(token(kForbid, 1), 30);
  EXPECT_EQ(token(kForbid, kForbid), 0);
}

TEST(Sampler, EndOfGenerationIsReportedOrIgnored) {
  std::vector<float> logits(kVocab, 0.0f);
  logits[kEnd] = 3;
  auto sample = [&](bool ignore) {
    auto settings = Settings([ignore](auto& s) { s.set_temperature(0), s.set_ignore_eog(ignore); });
    return *Open(OpenWith(settings))->Sample(3, logits);
  };
  EXPECT_EQ(sample(false).token(), kEnd);
  EXPECT_TRUE(sample(false).end_of_generation());
  EXPECT_EQ(sample(false).piece(), "");  // control tokens show nothing
  EXPECT_NE(sample(true).token(), kEnd);
  EXPECT_FALSE(sample(true).end_of_generation());
}

TEST(Sampler, AControlTokenShowsItsTextOnlyInAMarkThatIsAskedFor) {
  constexpr int32_t kBegin = 1;  // "<s>"
  const auto piece = [](int32_t token, const std::vector<std::string>& marks) {
    std::vector<float> logits(kVocab, 0.0f);
    logits[token] = 3;
    auto settings = Settings([&marks](auto& s) {
      s.set_temperature(0);
      for (const std::string& mark : marks) s.add_shown_marks(mark);
    });
    const auto sampled = *Open(OpenWith(settings))->Sample(3, logits);
    EXPECT_EQ(sampled.token(), token);
    return sampled.piece();
  };
  EXPECT_EQ(piece(kBegin, {}), "");
  EXPECT_EQ(piece(kBegin, {"<b>", "s"}), "");
  EXPECT_EQ(piece(kBegin, {"\n<s>function="}), "<s>");
  EXPECT_EQ(piece(kEnd, {"</s>"}), "");  // the end is no text
  EXPECT_EQ(piece(TokenOf('x'), {"<s>"}), "x");
}

TEST(Sampler, ASequenceDoesNotEndBeforeItsMinimumLength) {
  std::vector<float> logits(kVocab, 0.0f);
  logits[kEnd] = 3;
  logits[TokenOf('x')] = 2;
  for (float temperature : {0.0f, 0.1f}) {
    auto sampler = Open(OpenWith(Settings([temperature](auto& s) {
      s.set_temperature(temperature), s.set_tokens_min(2), s.add_stop_tokens(TokenOf('x'));
      wire::LogitBias* bias = s.add_logit_bias();
      bias->set_token(kEnd);
      bias->set_bias(50);
    })));
    for (int32_t position : {3, 4}) {
      const wire::SampledToken token = *sampler->Sample(position, logits);
      EXPECT_NE(token.token(), kEnd);
      EXPECT_NE(token.token(), TokenOf('x'));
      EXPECT_FALSE(token.end_of_generation());
    }
    EXPECT_EQ(sampler->Sample(5, logits)->token(), kEnd);
  }
}

TEST(Sampler, TokensGeneratedElsewhereCountForTheMinimumLength) {
  std::vector<float> logits(kVocab, 0.0f);
  logits[kEnd] = 3;
  const auto settings = Settings([](auto& s) { s.set_temperature(0), s.set_tokens_min(2); });
  EXPECT_NE(Open(OpenWith(settings, {5, 6, 7}, {8}))->Sample(4, logits)->token(), kEnd);
  EXPECT_EQ(Open(OpenWith(settings, {5, 6, 7}, {8, 9}))->Sample(5, logits)->token(), kEnd);
}

TEST(Sampler, AStopTokenEndsTheSequenceEvenIfTheModelMayNot) {
  std::vector<float> logits(kVocab, 0.0f);
  for (const bool ignore : {false, true}) {
    for (const int32_t stop : {TokenOf('x'), kEnd}) {
      logits.assign(kVocab, 0.0f);
      logits[stop] = 3;
      const wire::SampledToken token = *Open(OpenWith(Settings([&](auto& s) {
                                          s.set_temperature(0), s.set_ignore_eog(ignore),
                                              s.add_stop_tokens(stop);
                                        })))->Sample(3, logits);
      EXPECT_EQ(token.token(), stop);
      EXPECT_TRUE(token.end_of_generation());
    }
  }
}

TEST(Sampler, PiecesAreTheBytesOfTokens) {
  std::vector<float> logits(kVocab, 0.0f);
  logits[TokenOf('q')] = 3;
  auto settings = Settings([](auto& s) { s.set_temperature(0); });
  EXPECT_EQ(Open(OpenWith(settings))->Sample(3, logits)->piece(), "q");
}

TEST(Sampler, MirostatKeepsTheSurpriseNearItsTarget) {
  for (int version : {1, 2}) {
    auto settings = Settings([version](auto& s) {
      s.set_mirostat(version);
      s.set_mirostat_tau(2);
      s.set_mirostat_eta(0.1f);
      s.set_report_logprob(true);
    });
    auto sampler = Open(OpenWith(settings));
    double mu_sum = 0;
    std::set<float> values;
    for (int i = 0; i < 500; ++i) {
      const wire::SampledToken token = SampleNext(*sampler);
      mu_sum += token.mirostat_mu();
      values.insert(token.mirostat_mu());
    }
    // mu rises and falls until the mean surprise of what was chosen is tau: over 500 tokens it
    // moves by no more than it started with.
    EXPECT_GT(values.size(), 100u) << "version " << version;
    EXPECT_GT(mu_sum / 500, 0.5) << "version " << version;
    EXPECT_LT(mu_sum / 500, 8) << "version " << version;
  }
}

TEST(Sampler, GrammarHoldsFromTheFirstTokenToTheLast) {
  for (float temperature : {0.0f, 1.0f}) {
    auto settings = Settings([temperature](auto& s) {
      s.set_temperature(temperature);
      s.set_grammar("root ::= [a-c] [0-9] [0-9] \",\" [x-z]");
    });
    auto sampler = Open(OpenWith(settings));
    std::string output;
    for (const wire::SampledToken& token : SampleNext(*sampler, 5)) output += token.piece();
    EXPECT_THAT(output, ::testing::MatchesRegex("[a-c][0-9][0-9],[x-z]"));
    EXPECT_EQ(SampleNext(*sampler).token(), kEnd);  // nothing else may follow
  }
}

TEST(Sampler, GrammarThatCannotContinueIsAnErrorNotAnAbort) {
  for (float temperature : {0.0f, 1.0f}) {
    auto settings = Settings([temperature](auto& s) {
      s.set_temperature(temperature);
      s.set_ignore_eog(true);
      s.set_grammar("root ::= \"ab\"");
    });
    auto sampler = Open(OpenWith(settings));
    SampleNext(*sampler, 2);
    EXPECT_EQ(sampler->Sample(5, LogitsAt(sampler->tokens())).status().code(),
              Code::kFailedPrecondition);
    EXPECT_THAT(sampler->tokens(), SizeIs(5));
  }
}

TEST(Sampler, GeneratedTokensThatTheGrammarForbidsAreRefused) {
  auto settings = Settings([](auto& s) { s.set_grammar("root ::= \"ab\""); });
  for (const Tokens& generated :
       {Tokens{TokenOf('b')}, Tokens{TokenOf('a'), kEnd}, Tokens{kEnd}, Tokens{0}}) {
    const absl::Status status =
        SequenceSampler::Open(OpenWith(settings, {5}, generated), Vocabulary()).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("generated["));
  }
  auto sampler = Open(OpenWith(settings, {5}, {TokenOf('a')}));
  EXPECT_EQ(sampler->Feed(2, TokenOf('z')).code(), Code::kInvalidArgument);
  EXPECT_EQ(sampler->Feed(2, kEnd).code(), Code::kInvalidArgument);
  EXPECT_TRUE(sampler->Feed(2, TokenOf('b')).ok());
  EXPECT_TRUE(sampler->Feed(3, kEnd).ok());
}

TEST(Sampler, LogprobsAreTheModelsOwn) {
  auto settings =
      Settings([](auto& s) { s.set_temperature(0.3f), s.set_top_k(1), s.set_logprobs(3); });
  const wire::SampledToken token = *Open(OpenWith(settings))->Sample(3, LogitsOf(kProbabilities));
  EXPECT_EQ(token.token(), 4);
  EXPECT_NEAR(token.logprob(), std::log(0.5), 1e-5);
  ASSERT_EQ(token.top_size(), 3);
  EXPECT_EQ(token.top(1).token(), 10);
  EXPECT_NEAR(token.top(1).logprob(), std::log(0.25), 1e-5);
  EXPECT_EQ(token.top(1).piece(), std::string(1, kCharacters[10 - kLetterA]));
  EXPECT_EQ(token.top(2).token(), 20);
}

TEST(Sampler, LogprobsOfTokensComeBeforeTheLikeliest) {
  auto settings = Settings([](auto& s) {
    s.add_logprob_tokens(20);
    s.add_logprob_tokens(10);
    s.set_logprobs(1);
  });
  const wire::SampledToken token = *Open(OpenWith(settings))->Sample(3, LogitsOf(kProbabilities));
  ASSERT_EQ(token.top_size(), 3);
  EXPECT_EQ(token.top(0).token(), 20);
  EXPECT_EQ(token.top(1).token(), 10);
  EXPECT_NEAR(token.top(1).logprob(), std::log(0.25), 1e-5);
  EXPECT_EQ(token.top(2).token(), 4);
}

TEST(Sampler, LogprobsComeOnlyWhenRequested) {
  auto logits = LogitsOf(kProbabilities);
  EXPECT_EQ(Open(OpenWith(Settings([](auto&) {})))->Sample(3, logits)->logprob(), 0);
  const auto token =
      *Open(OpenWith(Settings([](auto& s) { s.set_report_logprob(true); })))->Sample(3, logits);
  EXPECT_LT(token.logprob(), 0);
  EXPECT_EQ(token.top_size(), 0);
}

TEST(Sampler, LogitsThatAreNotNumbersAreInternal) {
  for (float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (int32_t at : {0, 20, kVocab - 1}) {
      for (float temperature : {0.0f, 1.0f}) {
        std::vector<float> logits(kVocab, 0.0f);
        logits[at] = bad;
        auto sampler = Open(OpenWith(Settings([&](auto& s) { s.set_temperature(temperature); })));
        EXPECT_EQ(sampler->Sample(3, logits).status().code(), Code::kInternal);
        EXPECT_THAT(sampler->tokens(), SizeIs(3));
      }
    }
  }
}

TEST(Sampler, PositionsAndSizesAreChecked) {
  auto sampler = Open(OpenWith(Settings([](auto&) {})));
  const std::vector<float> logits(kVocab, 0.0f);
  EXPECT_EQ(sampler->Sample(2, logits).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(sampler->Sample(4, logits).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(sampler->Sample(-1, logits).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(sampler->Sample(3, absl::MakeConstSpan(logits).first(5)).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(sampler->Feed(4, 1).code(), Code::kInvalidArgument);
  EXPECT_EQ(sampler->Feed(-1, 1).code(), Code::kInvalidArgument);
  EXPECT_EQ(sampler->Feed(3, kVocab).code(), Code::kInvalidArgument);
  EXPECT_EQ(sampler->Rewind(-1).code(), Code::kInvalidArgument);
  EXPECT_TRUE(sampler->Rewind(9).ok());
  EXPECT_THAT(sampler->tokens(), ElementsAre(5, 6, 7));
}

TEST(Sampler, CorrectionCutsTheSequenceAndContinuesIt) {
  auto sampler = Open(OpenWith(Settings([](auto& s) { SetPenalties(s, -1); })));
  SampleNext(*sampler, 6);
  const Tokens before = sampler->tokens();
  ASSERT_TRUE(sampler->Feed(5, before[5]).ok());
  EXPECT_EQ(sampler->tokens(), before);
  const int32_t other = before[5] == 9 ? 10 : 9;
  ASSERT_TRUE(sampler->Feed(5, other).ok());
  EXPECT_THAT(sampler->tokens(), ElementsAre(5, 6, 7, before[3], before[4], other));
  // The corrected sequence equals a fresh one.
  auto fresh = Open(OpenWith(Settings([](auto& s) { SetPenalties(s, -1); }), {5, 6, 7},
                             {before[3], before[4], other}));
  EXPECT_EQ(IdsOf(SampleNext(*sampler, 10)), IdsOf(SampleNext(*fresh, 10)));
}

TEST(Sampler, CorrectedPromptIsNotSeenByTheGrammar) {
  auto sampler = Open(OpenWith(Settings([](auto& s) { s.set_grammar("root ::= [0-9]+"); })));
  SampleNext(*sampler, 2);
  ASSERT_TRUE(sampler->Feed(1, TokenOf('z')).ok());
  ASSERT_TRUE(sampler->Feed(2, TokenOf('y')).ok());
  EXPECT_THAT(SampleNext(*sampler).piece(), ::testing::MatchesRegex("[0-9]"));
}

struct BadSetting {
  const char* field;
  std::function<void(wire::SamplerSettings&)> set;
};

TEST(Sampler, SettingsOutOfRangeAreRefusedByName) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<BadSetting> cases = {
      {"temperature", [](auto& s) { s.set_temperature(kNan); }},
      {"temperature", [](auto& s) { s.set_temperature(kInfinity); }},
      {"top_k", [](auto& s) { s.set_top_k(-1); }},
      {"top_p", [](auto& s) { s.set_top_p(1.1f); }},
      {"min_p", [](auto& s) { s.set_min_p(-0.1f); }},
      {"typical_p", [](auto& s) { s.set_typical_p(2); }},
      {"xtc_probability", [](auto& s) { s.set_xtc_probability(1.5f); }},
      {"xtc_threshold", [](auto& s) { s.set_xtc_threshold(kNan); }},
      {"penalty_last_n", [](auto& s) { s.set_penalty_last_n(-2); }},
      {"penalty_repeat", [](auto& s) { s.set_penalty_repeat(-1); }},
      {"penalty_frequency", [](auto& s) { s.set_penalty_frequency(kInfinity); }},
      {"penalty_presence", [](auto& s) { s.set_penalty_presence(kNan); }},
      {"dry_multiplier", [](auto& s) { s.set_dry_multiplier(-1); }},
      {"dry_base", [](auto& s) { s.set_dry_multiplier(1), s.set_dry_base(0.5f); }},
      {"dry_allowed_length", [](auto& s) { s.set_dry_allowed_length(-1); }},
      {"dry_penalty_last_n", [](auto& s) { s.set_dry_penalty_last_n(-5); }},
      {"dry_sequence_breakers", [](auto& s) { SetDry(s, 5), s.add_dry_sequence_breakers(""); }},
      {"mirostat", [](auto& s) { s.set_mirostat(3); }},
      {"mirostat_tau", [](auto& s) { s.set_mirostat(2), s.set_mirostat_tau(-1); }},
      {"mirostat_eta", [](auto& s) { s.set_mirostat(2), s.set_mirostat_eta(kNan); }},
      {"grammar", [](auto& s) { s.set_grammar("root ::= ("); }},
      {"grammar", [](auto& s) { s.set_grammar("root ::= root \"a\""); }},
      {"grammar", [](auto& s) { s.set_grammar("other ::= \"a\""); }},
      {"grammar", [](auto& s) { s.set_grammar(std::string("root ::= \"a\"\0", 13)); }},
      {"grammar",
       [](auto& s) {
         s.set_grammar(absl::StrCat("root ::= ", std::string(100000, '('), "\"a\"",
                                    std::string(100000, ')')));
       }},
      {"grammar", [](auto& s) { s.set_grammar(std::string(1 << 20, 'a')); }},
      {"grammar_root", [](auto& s) { s.set_grammar("root ::= \"a\""), s.set_grammar_root("a b"); }},
      {"logit_bias", [](auto& s) { s.add_logit_bias()->set_token(kVocab); }},
      {"logit_bias", [](auto& s) { s.add_logit_bias()->set_bias(kInfinity); }},
      {"logprobs", [](auto& s) { s.set_logprobs(kLogprobsMax + 1); }},
      {"logprob_tokens", [](auto& s) { s.add_logprob_tokens(-1); }},
  };
  for (const BadSetting& c : cases) {
    const absl::Status status =
        SequenceSampler::Open(OpenWith(Settings(c.set)), Vocabulary()).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << c.field;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.field));
  }
}

TEST(Sampler, TokensOutsideTheVocabularyAreRefused) {
  for (const Tokens& bad : {Tokens{-1}, Tokens{1, kVocab}}) {
    EXPECT_EQ(SequenceSampler::Open(OpenWith({}, bad), Vocabulary()).status().code(),
              Code::kInvalidArgument);
    EXPECT_EQ(SequenceSampler::Open(OpenWith({}, {1}, bad), Vocabulary()).status().code(),
              Code::kInvalidArgument);
  }
}

TEST(Sampler, MirostatWithoutItsValuesIsRefused) {
  wire::SequenceOpen open = OpenWith(Settings([](auto& s) { SetMirostat(s, 2); }), {5}, {6, 7});
  EXPECT_EQ(SequenceSampler::Open(open, Vocabulary()).status().code(), Code::kInvalidArgument);
  open.add_mirostat_mu(5);
  EXPECT_EQ(SequenceSampler::Open(open, Vocabulary()).status().code(), Code::kInvalidArgument);
  open.add_mirostat_mu(std::numeric_limits<float>::infinity());
  EXPECT_EQ(SequenceSampler::Open(open, Vocabulary()).status().code(), Code::kInvalidArgument);
  open.set_mirostat_mu(1, 4);
  EXPECT_TRUE(SequenceSampler::Open(open, Vocabulary()).ok());
}

TEST(Sampler, EmptySequencesAreAllowed) {
  auto sampler = Open(OpenWith(Settings([](auto& s) { SetPenalties(s, -1); }), {}));
  EXPECT_EQ(SampleNext(*sampler).position(), 0);
}

}  // namespace
}  // namespace strata
