#include "node/api/llama/llama_request.h"

#include <cstdint>
#include <string>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/request/request_status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "node/api/llama/llama_error.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::testing::ElementsAre;
using Json = nlohmann::json;

std::string Body(const std::string& fields) {
  return absl::StrCat(R"({"prompt":"Hi")", fields, "}");
}
std::string ParamOfError(const std::string& body) {
  const auto completion = ParseLlamaCompletion(body);
  return completion.ok() ? "none" : ParamOf(completion.status());
}

TEST(LlamaRequest, HasLlamaServersDefaults) {
  const auto completion = ParseLlamaCompletion(Body(""));
  ASSERT_THAT(completion, IsOk());
  const ApiRequest& request = completion->request;
  EXPECT_FALSE(request.chat);
  EXPECT_FALSE(request.tokens_max.has_value());
  EXPECT_FALSE(request.no_special);
  EXPECT_TRUE(request.parse_special);
  EXPECT_TRUE(request.logprobs);
  EXPECT_FALSE(request.sampler.report_logprob());
  EXPECT_EQ(request.sampler.temperature(), 0.8f);
  EXPECT_EQ(request.sampler.top_k(), 40);
  EXPECT_EQ(request.sampler.top_p(), 0.95f);
  EXPECT_EQ(request.sampler.min_p(), 0.05f);
  EXPECT_FALSE(completion->is_list);
  EXPECT_EQ(Json::parse(LlamaSettingsJson(*completion))["repeat_penalty"], 1);
}

TEST(LlamaRequest, ReadsEveryField) {
  const auto completion = ParseLlamaCompletion(Body(
      R"(,"n_predict":7,"stream":true,"stop":["a"],"cache_prompt":false,"id_slot":3,"n_probs":5,
      "cache_salt":"s",
      "return_tokens":true,"temperature":0,"repeat_penalty":1.1,"seed":9,"n_keep":-1,
      "logit_bias":[[5,false]],"samplers":["dry","top_k","typ_p","top_p","min_p","xtc","temperature"],
      "lora":[],"min_keep":0,"response_fields":[],"unknown":1)"));
  ASSERT_THAT(completion, IsOk());
  EXPECT_EQ(completion->n_probs, 5u);
  EXPECT_TRUE(completion->return_tokens);
  const ApiRequest& request = completion->request;
  EXPECT_EQ(request.tokens_max, 7u);
  EXPECT_TRUE(request.no_cache);
  EXPECT_EQ(request.cache_salt, "s");
  EXPECT_TRUE(request.stream);
  EXPECT_THAT(request.stops, ElementsAre("a"));
  EXPECT_EQ(request.sampler.logprobs(), 5u);
  EXPECT_EQ(request.sampler.temperature(), 0.0f);
  EXPECT_EQ(request.sampler.penalty_last_n(), 64);
  const Json settings = Json::parse(LlamaSettingsJson(*completion));
  EXPECT_EQ(settings["n_predict"], 7);
  EXPECT_EQ(settings["seed"], 9);
  EXPECT_EQ(settings["stop"], Json::array({"a"}));
}

TEST(LlamaRequest, ASeedBelowZeroIsRandom) {
  const auto one = ParseLlamaCompletion(Body(R"(,"seed":-1)"));
  const auto other = ParseLlamaCompletion(Body(R"(,"seed":-1)"));
  ASSERT_THAT(one, IsOk());
  ASSERT_THAT(other, IsOk());
  EXPECT_NE(one->request.sampler.seed(), other->request.sampler.seed());
  EXPECT_LT(one->request.sampler.seed(), uint64_t{1} << 32);
}

TEST(LlamaRequest, APromptHasManyForms) {
  const auto tokens = ParseLlamaCompletion(R"({"prompt":[1,2]})");
  ASSERT_THAT(tokens, IsOk());
  ASSERT_EQ(tokens->request.prompts.size(), 1u);
  EXPECT_THAT(tokens->request.prompts[0].tokens, ElementsAre(1, 2));
  EXPECT_FALSE(tokens->is_list);

  const auto several =
      ParseLlamaCompletion(R"({"prompt":["a",[3,4],{"prompt_string":"b"}],"n_cmpl":2})");
  ASSERT_THAT(several, IsOk());
  EXPECT_TRUE(several->is_list);
  EXPECT_EQ(several->request.n, 2u);
  ASSERT_EQ(several->request.prompts.size(), 3u);
  EXPECT_EQ(several->request.prompts[0].text, "a");
  EXPECT_THAT(several->request.prompts[1].tokens, ElementsAre(3, 4));
  EXPECT_EQ(several->request.prompts[2].text, "b");

  const auto one = ParseLlamaCompletion(R"({"prompt":["a"]})");
  ASSERT_THAT(one, IsOk());
  EXPECT_FALSE(one->is_list);
}

TEST(LlamaRequest, ErrorsNameTheField) {
  EXPECT_EQ(ParamOfError("{}"), "prompt");
  EXPECT_EQ(ParamOfError(R"({"prompt":[]})"), "prompt");
  EXPECT_EQ(ParamOfError(R"({"prompt":{"prompt_string":"a","multimodal_data":["x"]}})"),
            "prompt.multimodal_data");
  EXPECT_EQ(ParamOfError(R"({"prompt":["a",true]})"), "prompt[1]");
  EXPECT_EQ(ParamOfError(Body(R"(,"n_probs":1000)")), "n_probs");
  EXPECT_EQ(ParamOfError(Body(R"(,"lora":[{"id":0,"scale":1}])")), "lora");
  EXPECT_EQ(ParamOfError(Body(R"(,"response_fields":["content"])")), "response_fields");
  EXPECT_EQ(ParamOfError(Body(R"(,"temperature":"x")")), "temperature");
  EXPECT_EQ(ParamOfError(Body(R"(,"grammar":"root")")), "grammar");
  EXPECT_EQ(ParamOf(ParseLlamaTokenize("{}").status()), "content");
  EXPECT_EQ(ParamOf(ParseLlamaTokenize(R"({"content":"a","with_pieces":true})").status()),
            "with_pieces");
}

TEST(LlamaRequest, TokenizeAddsNothingUnlessItIsTold) {
  const auto plain = ParseLlamaTokenize(R"({"content":"a"})");
  ASSERT_THAT(plain, IsOk());
  EXPECT_TRUE(plain->no_special);
  EXPECT_TRUE(plain->parse_special);
  const auto special =
      ParseLlamaTokenize(R"({"content":"a","add_special":true,"parse_special":false})");
  ASSERT_THAT(special, IsOk());
  EXPECT_FALSE(special->no_special);
  EXPECT_FALSE(special->parse_special);
  const auto vllm = ParseLlamaTokenize(R"({"prompt":"a"})");
  ASSERT_THAT(vllm, IsOk());
  EXPECT_EQ(vllm->prompts[0].text, "a");
  EXPECT_FALSE(vllm->no_special);
  const auto chat = ParseLlamaTokenize(R"({"messages":[{"role":"user","content":"a"}]})");
  ASSERT_THAT(chat, IsOk());
  EXPECT_TRUE(chat->chat);
}

TEST(LlamaRequest, DetokenizeTakesTokens) {
  const auto request = ParseLlamaDetokenize(R"({"model":"m","tokens":[3,1]})");
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->model, "m");
  EXPECT_THAT(request->tokens, ElementsAre(3, 1));
  EXPECT_THAT(ParseLlamaDetokenize(R"({"tokens":[]})"), IsOk());
  for (const char* wrong :
       {"{}", R"({"tokens":"a"})", R"({"tokens":[-1]})", R"({"tokens":[[1]]})"}) {
    EXPECT_EQ(ParamOf(ParseLlamaDetokenize(wrong).status()), "tokens") << wrong;
  }
}

TEST(LlamaRequest, ErrorsHaveLlamaServersForm) {
  EXPECT_EQ(Json::parse(LlamaError({.http_status = 501, .message = "no"})),
            Json::parse(R"({"error":{"code":501,"message":"no","type":"not_supported_error"}})"));
  EXPECT_EQ(Json::parse(LlamaError(
                {.http_status = 400, .code = "context_length_exceeded"}))["error"]["type"],
            "exceed_context_size_error");
}

TEST(LlamaInfill, HasWhatIsBeforeAndBehindAndOtherFiles) {
  const auto infill = ParseLlamaInfill(
      R"({"input_prefix":"int f(","input_suffix":"}","prompt":"int x","n_predict":3,)"
      R"("input_extra":[{"filename":"a.h","text":"A"},{"text":"B"}]})");
  ASSERT_THAT(infill, IsOk());
  EXPECT_EQ(infill->request.prompts[0].text, "int f(int x");
  EXPECT_EQ(infill->request.tokens_max, 3);
  EXPECT_EQ(infill->request.infill->suffix, "}");
  ASSERT_EQ(infill->request.infill->files.size(), 2);
  EXPECT_EQ(infill->request.infill->files[0].name, "a.h");
  EXPECT_EQ(infill->request.infill->files[1].text, "B");
  EXPECT_EQ(ParamOf(ParseLlamaInfill(R"({"input_prefix":"a"})").status()), "input_suffix");
  EXPECT_EQ(ParamOf(ParseLlamaInfill(R"({"input_suffix":"a","input_extra":[1]})").status()),
            "input_extra[0].text");
  EXPECT_THAT(ParseLlamaInfill(R"({"input_suffix":""})"), IsOk());
}

TEST(LlamaEmbedding, TakesContentOrInput) {
  const auto one = ParseLlamaEmbedding(R"({"content":"a"})");
  ASSERT_THAT(one, IsOk());
  EXPECT_EQ(one->inputs[0].text, "a");
  EXPECT_EQ(ParseLlamaEmbedding(R"({"input":["a",[1,2]]})")->inputs.size(), 2);
  EXPECT_EQ(ParamOf(ParseLlamaEmbedding("{}").status()), "content");
}

}  // namespace
}  // namespace strata
