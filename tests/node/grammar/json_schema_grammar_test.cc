#include "node/grammar/json_schema_grammar.h"

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "llama.h"
#include "node/api/openai/openai_error.h"
#include "shard/device/engine.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using Json = nlohmann::ordered_json;

const llama_vocab* Vocabulary() {
  static llama_model* const model = [] {
    StartEngine();
    llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    return llama_model_load_from_file(STRATA_DEMO_MODEL, params);
  }();
  EXPECT_NE(model, nullptr);
  return llama_model_get_vocab(model);
}

absl::StatusOr<std::string> GrammarOf(const std::string& schema) {
  const auto json = ParseSchema(schema, "schema");
  if (!json.ok()) return json.status();
  JsonGrammar grammar;
  auto root = grammar.Schema(*json, "schema");
  if (!root.ok()) return root.status();
  return grammar.Finish(*std::move(root), "schema");
}

// libllama's own sampler with a grammar.
class Matcher {
 public:
  explicit Matcher(const std::string& grammar)
      : sampler_(llama_sampler_init_grammar(Vocabulary(), grammar.c_str(), "root")) {
    EXPECT_NE(sampler_, nullptr) << grammar;
  }
  ~Matcher() { llama_sampler_free(sampler_); }
  bool Allows(std::vector<llama_token_data>* candidates) const {
    llama_token_data_array array = {candidates->data(), candidates->size(), -1, false};
    llama_sampler_apply(sampler_, &array);
    std::erase_if(*candidates, [](const llama_token_data& c) { return !std::isfinite(c.logit); });
    return !candidates->empty();
  }
  bool Take(llama_token token) {
    std::vector<llama_token_data> one = {{.id = token, .logit = 0, .p = 0}};
    if (!Allows(&one)) return false;
    if (!llama_vocab_is_eog(Vocabulary(), token)) llama_sampler_accept(sampler_, token);
    return true;
  }
  // The whole string, and then the end.
  bool Reads(const std::string& text) {
    std::vector<llama_token> tokens(text.size() + 1);
    const int n = llama_tokenize(Vocabulary(), text.data(), static_cast<int32_t>(text.size()),
                                 tokens.data(), static_cast<int32_t>(tokens.size()), false, false);
    for (int i = 0; i < n; ++i) {
      if (!Take(tokens[static_cast<size_t>(i)])) return false;
    }
    return Take(llama_vocab_eos(Vocabulary()));
  }

 private:
  llama_sampler* sampler_;
};

// The output of a random model, at most `tokens_max` tokens; "" where it has not ended by then.
std::string Write(const std::string& grammar, uint32_t seed, int tokens_max) {
  Matcher matcher(grammar);
  std::mt19937 random(seed);
  const int n_vocab = llama_vocab_n_tokens(Vocabulary());
  std::string text;
  for (int i = 0; i < tokens_max; ++i) {
    std::vector<llama_token_data> candidates;
    for (int k = 0; k < 48; ++k) {
      candidates.push_back(
          {.id = static_cast<llama_token>(random() % n_vocab), .logit = 0, .p = 0});
    }
    // Punctuation is rare among thousands of words.
    for (int id = 0; id < 260; ++id) candidates.push_back({.id = id, .logit = 0, .p = 0});
    if (!matcher.Allows(&candidates)) return "nothing is allowed";
    llama_token token = candidates[random() % candidates.size()].id;
    for (const auto& c : candidates) {
      if (llama_vocab_is_eog(Vocabulary(), c.id)) token = c.id;
    }
    EXPECT_TRUE(matcher.Take(token));
    if (llama_vocab_is_eog(Vocabulary(), token)) return text;
    char piece[64];
    const int n = llama_token_to_piece(Vocabulary(), token, piece, sizeof(piece), 0, false);
    text.append(piece, static_cast<size_t>(std::max(n, 0)));
  }
  return "";
}

struct Case {
  std::string schema;
  std::vector<std::string> good, bad;
};

const Case kCases[] = {
    {R"({"type":"string"})",
     {R"("")", R"("a b")", R"("\n\u00e9\ud83d\ude00é")"},
     {"a", R"("a)", R"("\x")", R"("\ud83d")", "\"a\nb\"", R"(1)", R"("a"b)"}},
    {R"({"type":"string","minLength":2,"maxLength":3})",
     {R"("ab")", R"("a\né")"},
     {R"("a")", R"("abcd")", R"("")"}},
    {R"({"type":"integer"})", {"0", "-12", "123456789012345"}, {"01", "1.5", "+1", "-", "1e3"}},
    {R"({"type":"integer","minimum":-3,"maximum":120})",
     {"-3", "-1", "0", "9", "10", "99", "100", "120"},
     {"-4", "121", "-0", "130", "00", "1000"}},
    {R"({"type":"integer","exclusiveMinimum":7})", {"8", "10", "99999"}, {"7", "0", "-8"}},
    {R"({"type":"integer","maximum":-8})", {"-8", "-10", "-888"}, {"-7", "0", "8"}},
    {R"({"type":"number"})", {"0", "-1.5", "2e10", "1.25E-3"}, {".5", "1.", "0x1", "NaN", "--1"}},
    {R"({"type":"number","minimum":0,"maximum":1})",
     {"0", "0.5", "1", "0.999"},
     {"1.1", "-0.1", "2", "-1"}},
    {R"({"type":"number","exclusiveMinimum":0})", {"0.5", "1", "12.25"}, {"0", "0.0", "-1"}},
    {R"({"type":"number","minimum":-2,"exclusiveMaximum":0})",
     {"-2", "-1.5", "-0.1"},
     {"0", "-2.5", "0.1"}},
    {R"({"type":"boolean"})", {"true", "false"}, {"True", "null", "1"}},
    {R"({"type":["string","null"],"maxLength":2})", {"null", R"("a")"}, {R"("abc")", "0"}},
    {R"({"type":"string","nullable":true})", {"null", R"("a")"}, {"0"}},
    {R"({"enum":["red","reddish","re\"d",7,null,{"a":[1]}]})",
     {R"("red")", R"("reddish")", R"("re\"d")", "7", "null", R"({"a":[1]})"},
     {R"("re")", R"("redd")", "8", R"("")"}},
    {R"({"type":"string","enum":["a",1]})", {R"("a")"}, {"1"}},
    {R"({"const":"x"})", {R"("x")"}, {R"("y")", R"("xx")"}},
    {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"},
        "c":{"type":"boolean"}},"required":["b"],"additionalProperties":false})",
     {R"({"a":1,"b":"x","c":true})", R"({"b":"x"})", R"({"a": 1, "b": ""})",
      "{\n  \"b\": \"x\",\n  \"c\": false\n}"},
     {R"({})", R"({"a":1})", R"({"b":"x","a":1})", R"({"b":"x","d":1})", R"({"b":"x",})",
      R"({"b":1})", R"({"b":"x")"}},
    {R"({"type":"object","properties":{"a":{"type":"integer"},"ab":{"type":"string"}}})",
     {R"({})", R"({"a":1})", R"({"ab":"x"})", R"({"a":1,"ab":"x"})"},
     {R"({"ab":1})", R"({"a":"x"})", R"({"abc":1})", R"({"a":1,"a":1})"}},
    {R"({"type":"object","properties":{"kind":{"const":"k"}},"required":["kind"],
        "additionalProperties":{"type":"integer"}})",
     {R"({"kind":"k"})", R"({"kind":"k","other":1,"kin":2,"kinds":3})"},
     {R"({"other":1})", R"({"kind":"k","kind":1})", R"({"kind":"k","x":"y"})"}},
    {R"({"type":"object","additionalProperties":{"type":"integer"},"minProperties":1})",
     {R"({"a":1})", R"({"a":1,"b":2})"},
     {"{}", R"({"a":"b"})"}},
    {R"({"type":"object"})", {"{}", R"({"a":[1,{"b":null}]})"}, {"[]", R"({"a"})", R"({1:2})"}},
    {R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3})",
     {"[1]", "[1,2, 3]", "[\n 1\n]"},
     {"[]", "[1,2,3,4]", "[1,]", "[\"a\"]", "[,1]"}},
    {R"({"type":"array","items":{"type":"null"}})", {"[]", "[null]", "[null,null]"}, {"[1]", "["}},
    {R"({"type":"array","prefixItems":[{"type":"string"},{"type":"integer"}],"items":false})",
     {R"([])", R"(["a"])", R"(["a",1])"},
     {R"([1])", R"(["a",1,2])"}},
    {R"({"type":"array","prefixItems":[{"type":"string"}],"items":{"type":"integer"},"minItems":2})",
     {R"(["a",1])", R"(["a",1,2,3])"},
     {R"(["a"])", R"([1,1])"}},
    {R"({"type":"array","maxItems":0})", {"[]"}, {"[1]"}},
    {R"({"anyOf":[{"type":"integer"},{"type":"array","items":{"type":"integer"}}]})",
     {"1", "[1]"},
     {"\"a\"", "[[1]]"}},
    {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},
        "anyOf":[{"required":["a"]},{"required":["b"]}]})",
     {R"({"a":1})", R"({"b":1})", R"({"a":1,"b":2})"},
     {"{}"}},
    {R"({"oneOf":[{"type":"object","properties":{"t":{"const":"a"},"x":{"type":"integer"}},
        "required":["t","x"]},{"type":"object","properties":{"t":{"const":"b"}},"required":["t"]}]})",
     {R"({"t":"a","x":1})", R"({"t":"b"})"},
     {R"({"t":"a"})", R"({"t":"c"})"}},
    {R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},
        {"properties":{"b":{"type":"string"}},"required":["b"]}]})",
     {R"({"a":1,"b":"x"})"},
     {R"({"a":1})", R"({"b":"x"})"}},
    {R"({"$ref":"#/$defs/tree","$defs":{"tree":{"type":"object","properties":{"v":{"type":"integer"},
        "kids":{"type":"array","items":{"$ref":"#/$defs/tree"}}},"required":["v","kids"],
        "additionalProperties":false}}})",
     {R"({"v":1,"kids":[]})", R"({"v":1,"kids":[{"v":2,"kids":[]},{"v":3,"kids":[]}]})"},
     {R"({"v":1})", R"({"v":1,"kids":[1]})"}},
    {R"({"type":"object","properties":{"next":{"anyOf":[{"$ref":"#"},{"type":"null"}]}},
        "required":["next"]})",
     {R"({"next":null})", R"({"next":{"next":null}})"},
     {"{}", R"({"next":{}})"}},
    {R"({"$ref":"#/$defs/s","maxLength":2,"$defs":{"s":{"type":"string"}}})",
     {R"("ab")"},
     {R"("abc")"}},
    {R"({"type":"string","format":"date"})",
     {R"("2024-02-28")", R"("2024-12-31")"},
     {R"("2024-13-01")", R"("2024-04-31")", R"("24-01-01")"}},
    {R"({"type":"string","format":"date-time"})",
     {R"("2024-02-28T23:59:59Z")", R"("2024-02-28T00:00:00.25+01:00")"},
     {R"("2024-02-28")", R"("2024-02-28T24:00:00Z")"}},
    {R"({"type":"string","format":"uuid"})",
     {R"("123e4567-e89b-12d3-a456-426614174000")"},
     {R"("123e4567")"}},
    {R"({"type":"string","format":"ipv4"})", {R"("255.0.10.1")"}, {R"("256.0.0.1")", R"("1.2.3")"}},
    {R"({"type":"integer","minimum":-9007199254740991,"maximum":9007199254740991})",
     {"0", "-9007199254740991", "9007199254740991", "999999999999999", "8123456789012345"},
     {"9007199254740992", "-9107199254740991", "01", "-0", "10000000000000000"}},
    {R"({"type":"integer","minimum":-9223372036854775808,"maximum":9223372036854775807})",
     {"9223372036854775807", "-9223372036854775807", "0"},
     {"9223372036854775808", "92233720368547758070"}},
    {R"({"type":"integer","minimum":0.5,"exclusiveMaximum":3.5})", {"1", "3"}, {"0", "4"}},
    {R"({"type":"number","minimum":0,"maximum":0.5})",
     {"0", "0.5", "0.499", "0.50"},
     {"0.51", "1", "0.6", "-0.1"}},
    {R"({"type":"number","exclusiveMinimum":0,"maximum":1.5})",
     {"0.001", "1", "1.5", "1.25"},
     {"0", "0.0", "1.6", "1.51"}},
    {R"({"type":"number","minimum":-1.25,"exclusiveMaximum":1e-3})",
     {"-1.25", "-1.2", "-0.5", "0", "0.0005", "0.00099"},
     {"-1.26", "0.001", "1", "-2"}},
    {R"({"type":"number","minimum":1.25,"maximum":1.35})",
     {"1.25", "1.3", "1.349"},
     {"1.2", "1.36", "1"}},
    {R"({"type":"number","minimum":1,"exclusiveMinimum":true})", {"1.5", "2"}, {"1", "1.0"}},
    {R"({"type":"number","multipleOf":0.01})", {"1.25", "0.1", "3"}, {"1.255"}},
    {R"({"type":"number","multipleOf":0.1,"maximum":0.5,"exclusiveMinimum":0})",
     {"0.1", "0.5"},
     {"0", "0.6", "0.05"}},
    {R"({"type":"integer","multipleOf":5})", {"0", "5", "-10", "12345"}, {"1", "-0", "05", "12"}},
    {R"({"type":"integer","multipleOf":7,"minimum":-9007199254740991,"maximum":9007199254740991})",
     {"0", "7", "-49", "700"},
     {"1", "71"}},
    {R"({"type":"number","multipleOf":25,"minimum":10,"maximum":100})",
     {"25", "100"},
     {"0", "30", "125"}},
    {R"({"type":"string","pattern":"^[a-z]{2,5}-\\d+$"})",
     {R"("ab-1")", R"("abcde-123")"},
     {R"("a-1")", R"("abcdef-1")", R"("ab-")"}},
    {R"({"type":"string","pattern":"\\S"})",
     {R"("a")", R"(" a ")", R"("\n\\")"},
     {R"("")", R"("  ")"}},
    {R"({"type":"string","pattern":"^a\"\\\\\\n.$"})",
     {R"("a\"\\\nb")"},
     {R"("a"\\nb")", R"("a\"\\\n")"}},
    {R"({"type":"string","pattern":"^[a-z]+$","minLength":2,"maxLength":3})",
     {R"("ab")", R"("abc")"},
     {R"("a")", R"("abcd")", R"("A1")"}},
    {R"({"type":"string","pattern":"^(ab)+$","minLength":3,"maxLength":5})",
     {R"("abab")"},
     {R"("ab")"}},
    {R"({"type":"string","pattern":"^(?=.*a)[a-z]+$"})", {R"("cab")"}, {R"("bc")"}},
    {R"({"type":"string","pattern":"@example\\.com$","format":"email"})",
     {R"("a.b@example.com")"},
     {R"("a.b@example.org")", R"("@example.com")"}},
    {R"({"type":"string","allOf":[{"pattern":"^x"},{"pattern":"a"},{"pattern":"[^b]$"}]})",
     {R"("xa")", R"("xbac")"},
     {R"("x")", R"("a")", R"("xab")"}},
    {R"({"enum":["aa","ab","b",3],"pattern":"^a","not":{"const":"ab"}})",
     {R"("aa")", "3"},
     {R"("ab")", R"("b")"}},
    {R"({"type":["string","integer","null"],"not":{"type":"null"}})", {"1", R"("a")"}, {"null"}},
    {R"({"type":"object","propertyNames":{"type":"string"},"additionalProperties":{"type":"number"}})",
     {"{}", R"({"a":1.5})"},
     {R"({"a":"b"})"}},
    {R"({"type":"object","propertyNames":{"pattern":"^[a-z]+$"},"additionalProperties":{"type":"number"}})",
     {"{}", R"({"a":1,"b":2})"},
     {R"({"A":1})", R"({"":1})"}},
    {R"({"type":"object","propertyNames":{"enum":["a","b"]},"required":["a","b"],
        "additionalProperties":{"type":"integer"}})",
     {R"({"a":1,"b":2})"},
     {R"({"a":1})", R"({"a":1,"b":2,"c":3})"}},
    {R"({"type":"object","patternProperties":{"^x-":{"type":"integer"},"y$":{"type":"null"}}})",
     {"{}", R"({"x-a":1})", R"({"x-a":1,"by":null})"},
     {R"({"x-a":"1"})", R"({"a":1})", R"({"x-y":1})"}},
    {R"({"type":"object","properties":{"x-a":{"minimum":5},"b":{"type":"null"}},"required":["x-a"],
        "patternProperties":{"^x-":{"type":"integer"}},"additionalProperties":{"type":"boolean"}})",
     {R"({"x-a":5,"b":null,"x-b":1,"c":true})"},
     {R"({"x-a":4})", R"({"x-a":5.5})", R"({"x-a":5,"c":1})", R"({"x-a":5,"x-b":true})"}},
    {R"({"type":"object","properties":{"kids":{"type":"array","items":{"$ref":"T0"}}},"required":["kids"],
        "$id":"T0"})",
     {R"({"kids":[{"kids":[]}]})"},
     {R"({"kids":[1]})"}},
    {R"({"allOf":[{"anyOf":[{"type":"string"},{"type":"integer"}]},{"anyOf":[{"type":"integer"},{"type":"null"}]}]})",
     {"1"},
     {R"("a")", "null"}},
    {R"({"type":"object","properties":{"a":{"type":"integer"}},"unevaluatedProperties":{"type":"null"}})",
     {R"({"a":1,"b":null})"},
     {R"({"b":1})"}},
    {R"({"type":"array","contains":{"type":"integer"},"items":{"type":"integer"}})",
     {"[1]"},
     {"[]"}},
    {R"({"type":"string","format":"email"})",
     {R"("a.b+c@d-e.org")"},
     {R"("a@b")", R"("a..b@c.de")"}},
    {R"({"type":"string","format":"ipv6"})",
     {R"("::1")", R"("2001:db8::ff00:42:8329")"},
     {R"("1::2::3")", R"(":1")"}},
    {R"({"type":"string","format":"uri"})",
     {R"("https://a.de:80/b?c=d#e")", R"("mailto:a@b.de")"},
     {R"("a b")", R"("//a")"}},
    {R"({"type":"string","format":"duration"})",
     {R"("P1DT2H")", R"("PT5M")"},
     {R"("P")", R"("1D")"}},
    {R"({"type":"string","format":"hostname"})", {R"("a-b.example")"}, {R"("-a")", R"("a..b")"}},
    {R"({})", {"1", "{}", R"([{"a":"b"}])", "null"}, {"", "x", "{"}},
    {R"(true)", {"1", "{}"}, {"x"}},
};

TEST(JsonGrammar, AcceptsExactlyTheValuesThatMeetTheSchema) {
  for (const Case& test : kCases) {
    const auto grammar = GrammarOf(test.schema);
    ASSERT_THAT(grammar, IsOk()) << test.schema;
    for (const std::string& text : test.good) {
      EXPECT_TRUE(Matcher(*grammar).Reads(text)) << test.schema << "\n" << text << "\n" << *grammar;
    }
    for (const std::string& text : test.bad) {
      EXPECT_FALSE(Matcher(*grammar).Reads(text)) << test.schema << "\n"
                                                  << text << "\n"
                                                  << *grammar;
    }
  }
}

TEST(JsonGrammar, AllOutputParses) {
  int ended = 0;
  for (const Case& test : kCases) {
    const auto grammar = GrammarOf(test.schema);
    ASSERT_THAT(grammar, IsOk()) << test.schema;
    for (uint32_t seed = 1; seed <= 3; ++seed) {
      const std::string text = Write(*grammar, seed, 60);
      if (text.empty()) continue;
      ++ended;
      // Invalid bytes are U+FFFD for a client.
      const std::string told =
          Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace));
      EXPECT_FALSE(Json::parse(told, nullptr, false).is_discarded())
          << "seed " << seed << ": " << test.schema << "\n"
          << text;
    }
  }
  EXPECT_GT(ended, 60);
}

TEST(JsonGrammar, UnmetAndUnsupportedSchemasNameTheirPath) {
  const struct {
    const char* schema;
    const char* param;
  } cases[] = {
      {R"(false)", "schema"},
      {R"(7)", "schema"},
      {R"({"type":"thing"})", "schema.type"},
      {R"({"type":[]})", "schema.type"},
      {R"({"enum":[]})", "schema.enum"},
      {R"({"type":"string","enum":[1]})", "schema.enum"},
      {R"({"type":"array","minItems":3,"maxItems":2})", "schema.minItems"},
      {R"({"type":"array","minItems":-1})", "schema.minItems"},
      {R"({"type":"array","items":false,"minItems":1})", "schema.items"},
      {R"({"type":"string","minLength":3,"maxLength":2})", "schema.minLength"},
      {R"({"type":"integer","minimum":3,"maximum":2})", "schema.minimum"},
      {R"({"type":"object","properties":{"a":false},"required":["a"]})", "schema.properties.a"},
      {R"({"type":"object","additionalProperties":false,"required":["a"]})", "schema.required"},
      {R"({"type":"object","patternProperties":[]})", "schema.patternProperties"},
      {R"({"type":"object","patternProperties":{"(":true}})", "schema.patternProperties.("},
      {R"({"type":"string","minLength":1000000000})", "schema.minLength"},
      {R"({"type":"string","pattern":"("})", "schema.pattern"},
      {R"({"type":"string","pattern":"a{1000000000}"})", "schema.pattern"},
      {R"({"type":"string","pattern":7})", "schema.pattern"},
      {R"({"type":"string","pattern":"^a","const":"b"})", "schema.const"},
      {R"({"type":"string","pattern":"^[a-z]{3}$","maxLength":2})", "schema.pattern"},
      {R"({"type":"integer","minimum":0.2,"maximum":0.8})", "schema.minimum"},
      {R"({"type":"number","exclusiveMinimum":0.5,"maximum":0.5})", "schema.minimum"},
      {R"({"type":"integer","minimum":1,"maximum":4,"multipleOf":5})", "schema.minimum"},
      {R"({"type":"integer","multipleOf":0})", "schema.multipleOf"},
      {R"({"not":{}})", "schema.not"},
      {R"({"type":"string","not":{"type":["string","null"]}})", "schema.not"},
      {R"({"$dynamicRef":"#x"})", "schema.$dynamicRef"},
      {R"({"type":"object","properties":{"ab":{}},"required":["ab"],"propertyNames":{"maxLength":1}})",
       "schema.properties.ab"},
      {R"({"$ref":"#/$defs/none"})", "schema.$ref"},
      {R"({"$ref":"http://example.com/x"})", "schema.$ref"},
      {R"({"$ref":"#"})", "schema.$ref"},
      {R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})", "schema"},
      {R"({"anyOf":[]})", "schema.anyOf"},
      {R"({"allOf":[{"type":"integer"},{"type":"string"}]})", "schema.allOf.type"},
  };
  for (const auto& test : cases) {
    const auto grammar = GrammarOf(test.schema);
    ASSERT_THAT(grammar, StatusIs(absl::StatusCode::kInvalidArgument)) << test.schema;
    const Json error = Json::parse(OpenAiError(ErrorOf(grammar.status())))["error"];
    EXPECT_EQ(error["param"], test.param) << error;
  }
}

std::vector<std::string> RelaxedOf(const std::string& schema) {
  JsonGrammar grammar;
  EXPECT_THAT(grammar.Schema(*ParseSchema(schema, "schema"), "schema"), IsOk()) << schema;
  return grammar.relaxed();
}

TEST(JsonGrammar, SaysWhatNoGrammarKeeps) {
  const struct {
    const char* schema;
    const char* relaxed;
  } cases[] = {
      {R"({"type":"array","uniqueItems":true})", "schema.uniqueItems"},
      {R"({"type":"string","pattern":"^x$","format":"date"})", "schema.format"},
      {R"({"type":"string","maxLength":1000000})", "schema.maxLength"},
      {R"j({"type":"string","pattern":"a(?=b)"})j", "schema.pattern"},
      {R"j({"type":"string","pattern":"^\\p{L}+$"})j", "schema.pattern"},
      {R"j({"type":"string","pattern":"^(?:a|b)*a(?:a|b){30}$"})j", "schema"},
      {R"({"type":"integer","multipleOf":37})", "schema.multipleOf"},
      {R"({"type":"number","multipleOf":0.3})", "schema.multipleOf"},
      {R"({"type":"object","properties":{"a":{"not":{"const":1}}}})", "schema.properties.a.not"},
      {R"({"type":"object","properties":{"a":{}},"if":{"required":["a"]}})", "schema.if"},
      {R"({"type":"object","properties":{"a":{}},"dependentRequired":{"a":["b"]}})",
       "schema.dependentRequired"},
      {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "schema.oneOf"},
      {R"({"type":"object","properties":{"a":{},"b":{}},"minProperties":1})",
       "schema.minProperties"},
      {R"({"allOf":[{"type":"string","format":"date"},{"format":"time"}]})", "schema.allOf.format"},
      {R"({"type":"array","contains":{"const":1}})", "schema.contains"},
  };
  for (const auto& test : cases) {
    EXPECT_THAT(RelaxedOf(test.schema), ::testing::Contains(test.relaxed)) << test.schema;
  }
  for (const Case& test : kCases) {
    if (test.schema.find("contains") != std::string::npos) continue;
    EXPECT_THAT(RelaxedOf(test.schema), ::testing::IsEmpty()) << test.schema;
  }
}

TEST(JsonGrammar, AHostileSchemaIsRefusedSoon) {
  std::string deep = R"({"type":"integer"})";
  for (int i = 0; i < 60; ++i) deep = absl::StrCat(R"({"items":)", deep, "}");
  std::string wide = R"({"type":"object","properties":{)";
  for (int i = 0; i < 3000; ++i) absl::StrAppend(&wide, i ? "," : "", "\"key", i, R"(":{})");
  // Two lists of different names, merged again and again.
  std::string merges = R"({"allOf":[)";
  for (int i = 0; i < 160; ++i) {
    absl::StrAppend(&merges, i ? "," : "", R"({"$ref":"#/$defs/)", i % 2 == 0 ? "a" : "b", "\"}");
  }
  absl::StrAppend(&merges, R"(],"$defs":{)");
  for (const char* half : {"a", "b"}) {
    absl::StrAppend(&merges, *half == 'a' ? "" : ",", "\"", half, R"(":{"required":[)");
    for (int i = 0; i < 7000; ++i) absl::StrAppend(&merges, i ? "," : "", "\"", half, i, "\"");
    absl::StrAppend(&merges, "]}");
  }
  merges += "}}";
  // A schema of very many keys, merged again and again.
  std::string keys = R"({"allOf":[)";
  for (int i = 0; i < 160; ++i) {
    absl::StrAppend(&keys, i ? "," : "", R"({"$ref":"#/$defs/b"})");
  }
  absl::StrAppend(&keys, R"(],"$defs":{"b":{)");
  for (int i = 0; i < 10'000; ++i) absl::StrAppend(&keys, i ? "," : "", "\"k", i, "\":0");
  keys += "}}}";
  const std::string cases[] = {
      merges,
      keys,
      absl::StrCat(R"({"type":"object","additionalProperties":true,"properties":{")",
                   std::string(40'000, 'a'), R"(":{}}})"),
      absl::StrCat(std::string(100'000, '['), std::string(100'000, ']')),
      absl::StrCat(R"({"items":)", deep, "}}}}"),
      wide + "}}",
      absl::StrCat(R"({"enum":[")", std::string(200'000, 'a'), "\"]}"),
      // Each merge of a and b needs two more.
      R"({"allOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"}],"$defs":{
          "a":{"properties":{"x":{"$ref":"#/$defs/a"},"y":{"$ref":"#/$defs/a"}}},
          "b":{"properties":{"x":{"$ref":"#/$defs/b"},"y":{"$ref":"#/$defs/b"}}}}})",
      // Derivations of "[[[[" that double with each bracket.
      R"({"anyOf":[{"type":"array","items":{"$ref":"#"},"minItems":1},
          {"type":"array","items":{"$ref":"#"},"maxItems":3}]})",
      R"({"type":"array","maxItems":20000,"minItems":20000,"items":{"type":"array","minItems":20000,
          "items":{"type":"array","minItems":20000}}})",
  };
  for (const std::string& schema : cases) {
    EXPECT_THAT(GrammarOf(schema), StatusIs(absl::StatusCode::kInvalidArgument))
        << schema.substr(0, 80);
  }
}

TEST(JsonGrammar, UnmetAlternativesAreLeftOutEachTime) {
  const auto grammar = GrammarOf(
      R"({"type":"object","properties":{"a":{"$ref":"#/$defs/n"},"b":{"$ref":"#/$defs/n"}},
          "$defs":{"n":{"type":"string","enum":[]}}})");
  ASSERT_THAT(grammar, IsOk());
  EXPECT_TRUE(Matcher(*grammar).Reads("{}"));
  EXPECT_FALSE(Matcher(*grammar).Reads(R"({"b":})"));
}

TEST(JsonGrammar, PropertiesKeepTheirOrder) {
  const auto grammar = GrammarOf(
      R"({"type":"object","properties":{"z":{"type":"null"},"a":{"type":"null"}},"required":["a","z"]})");
  ASSERT_THAT(grammar, IsOk());
  EXPECT_TRUE(Matcher(*grammar).Reads(R"({"z":null,"a":null})"));
  EXPECT_FALSE(Matcher(*grammar).Reads(R"({"a":null,"z":null})"));
}

}  // namespace
}  // namespace strata
