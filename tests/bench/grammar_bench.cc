// Schemas as grammars: what it takes to make one, to read it in the sampler, and to choose a token
// under it, over the vocabulary of the demo's model.
#include <cmath>
#include <string>
#include <vector>

#include "absl/log/check.h"
#include "absl/strings/string_view.h"
#include "benchmark/benchmark.h"
#include "llama.h"
#include "node/grammar/json_schema_grammar.h"
#include "shard/device/engine.h"
#include "shard/sampling/gbnf.h"

namespace strata {
namespace {

struct Case {
  const char* name;
  const char* schema;
  const char* text;  // of the grammar
};
const Case kCases[] = {
    {"person",
     R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"},
         "role":{"enum":["reader","writer","owner"]},"tags":{"type":"array","items":{"type":"string"}},
         "score":{"type":"number"}},"required":["name","age","role","tags","score"],
         "additionalProperties":false})",
     R"({"name": "Ada of the old harbour", "age": 36, "role": "writer", "tags": ["sea", "storm"], "score": 0.75})"},
    {"bounded strings",
     R"({"type":"array","items":{"type":"string","minLength":1,"maxLength":500}})",
     R"(["The old captain", "went to the sea", "and never came back"])"},
    {"whole numbers",
     R"({"type":"array","items":{"type":"integer","minimum":0,"maximum":1000000}})",
     R"([1, 20, 300, 4000, 50000, 600000, 70000, 8000, 900, 10])"},
    {"safe integers",
     R"({"type":"array","items":{"type":"integer","minimum":-9007199254740991,"maximum":9007199254740991}})",
     R"([1, 20, 300, 4000, 50000, 600000, 70000, 8000, 900, 10])"},
    {"email",
     R"j({"type":"array","items":{"type":"string","format":"email","pattern":"^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$"}})j",
     R"(["ada.lovelace@old-harbour.example.com", "captain@sea.org"])"},
    {"pattern and length",
     R"({"type":"array","items":{"type":"string","pattern":"^[a-z]+(-[a-z]+)*$","maxLength":200}})",
     R"(["the-old-captain-went-to-the-sea", "and-never-came-back"])"},
};

const llama_vocab* Vocabulary() {
  static llama_model* const model = [] {
    StartEngine();
    llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    return llama_model_load_from_file(STRATA_DEMO_MODEL, params);
  }();
  return llama_model_get_vocab(model);
}

std::string GrammarOf(const Case& c) {
  JsonGrammar grammar;
  auto root = grammar.Schema(SchemaJson::parse(c.schema), "schema");
  CHECK_OK(root);
  auto text = grammar.Finish(*std::move(root), "schema");
  CHECK_OK(text);
  return *std::move(text);
}

void MakeGrammar(benchmark::State& state) {
  const Case& c = kCases[state.range(0)];
  state.SetLabel(c.name);
  size_t bytes = 0;
  for (auto _ : state) bytes = GrammarOf(c).size();
  state.counters["bytes"] = static_cast<double>(bytes);
}

void ReadGrammar(benchmark::State& state) {
  const Case& c = kCases[state.range(0)];
  state.SetLabel(c.name);
  const std::string grammar = GrammarOf(c);
  for (auto _ : state) {
    llama_sampler* sampler = llama_sampler_init_grammar(Vocabulary(), grammar.c_str(), "root");
    CHECK(sampler != nullptr);
    llama_sampler_free(sampler);
  }
}

// All tokens of the vocabulary are candidates, for each token of the text.
void ChooseToken(benchmark::State& state) {
  const Case& c = kCases[state.range(0)];
  state.SetLabel(c.name);
  const std::string grammar = GrammarOf(c);
  const absl::string_view text = c.text;
  std::vector<llama_token> tokens(text.size() + 1);
  const int n = llama_tokenize(Vocabulary(), text.data(), static_cast<int32_t>(text.size()),
                               tokens.data(), static_cast<int32_t>(tokens.size()), false, false);
  CHECK_GT(n, 0);
  tokens.resize(static_cast<size_t>(n));
  std::vector<llama_token_data> candidates(static_cast<size_t>(llama_vocab_n_tokens(Vocabulary())));
  for (auto _ : state) {
    llama_sampler* sampler = llama_sampler_init_grammar(Vocabulary(), grammar.c_str(), "root");
    for (const llama_token token : tokens) {
      for (size_t i = 0; i < candidates.size(); ++i) {
        candidates[i] = {.id = static_cast<llama_token>(i), .logit = 0, .p = 0};
      }
      llama_token_data_array array = {candidates.data(), candidates.size(), -1, false};
      llama_sampler_apply(sampler, &array);
      CHECK(std::isfinite(candidates[static_cast<size_t>(token)].logit)) << c.name;
      llama_sampler_accept(sampler, token);
    }
    llama_sampler_free(sampler);
  }
  state.SetItemsProcessed(state.iterations() * n);
}

constexpr int64_t kLast = std::size(kCases) - 1;
BENCHMARK(MakeGrammar)->DenseRange(0, kLast);
BENCHMARK(ReadGrammar)->DenseRange(0, kLast);
BENCHMARK(ChooseToken)->DenseRange(0, kLast);

}  // namespace
}  // namespace strata
