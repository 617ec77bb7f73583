#include "node/api/llama/llama_routes.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"
#include "node/api/llama/llama_error.h"
#include "node/api/llama/llama_request.h"
#include "node/api/llama/llama_response.h"
#include "node/api/openai/openai_request.h"

namespace strata {
namespace {

using Json = nlohmann::json;

void AnswerJson(const SharedExchange& exchange, const Json& json) {
  exchange->responder->Answer({.body = json.dump(-1, ' ', false, Json::error_handler_t::replace)});
}

void Complete(ApiBackend* backend, const SharedExchange& exchange) {
  auto parsed = ParseLlamaCompletion(exchange->TakeBody());
  if (!parsed.ok()) {
    backend->CountRefused();
    exchange->Fail(parsed.status());
    return;
  }
  const auto completion = std::make_shared<LlamaCompletion>(*std::move(parsed));
  // The settings tell of the model's context.
  backend->WithModel(completion->request.model, exchange,
                     [backend, exchange, completion](const wire::ModelStatus& model) {
                       LlamaWriter::Answer answer = {
                           .n_ctx = model.n_ctx(),
                           .n_choices = completion->request.prompts.size() * completion->request.n,
                           .is_list = completion->is_list,
                           .return_tokens = completion->return_tokens,
                           .n_probs = completion->n_probs,
                           .settings_json = LlamaSettingsJson(*completion, model.n_ctx())};
                       backend->Generate(exchange, std::move(completion->request),
                                         [answer = std::move(answer)](const std::string& name) {
                                           LlamaWriter::Answer named = answer;
                                           named.model = name;
                                           return std::make_unique<LlamaWriter>(std::move(named));
                                         });
                     });
}

void Tokenize(ApiBackend* backend, const SharedExchange& exchange) {
  auto request = ParseLlamaTokenize(exchange->TakeBody());
  if (!request.ok()) {
    exchange->Fail(request.status());
    return;
  }
  if (request->prompts[0].text.empty() && request->no_special) {
    AnswerJson(exchange, {{"tokens", Json::array()}});
    return;
  }
  backend->Tokenize(exchange, *std::move(request), [exchange](const std::vector<int32_t>& tokens) {
    AnswerJson(exchange, {{"tokens", tokens}});
  });
}

void ApplyTemplate(ApiBackend* backend, const SharedExchange& exchange) {
  auto chat = ParseChat(exchange->TakeBody());
  if (!chat.ok()) {
    exchange->Fail(chat.status());
    return;
  }
  backend->Render(exchange, *std::move(chat), [exchange](const std::string& prompt) {
    AnswerJson(exchange, {{"prompt", prompt}});
  });
}

// ?model=NAME, where the cluster has several.
void Props(ApiBackend* backend, const SharedExchange& exchange) {
  std::string name;
  for (absl::string_view field : absl::StrSplit(exchange->http.query, '&')) {
    if (absl::ConsumePrefix(&field, "model=")) name = RestOfPath(field, "");
  }
  backend->WithModel(name, exchange, [exchange](const wire::ModelStatus& model) {
    exchange->responder->Answer({.body = LlamaPropsJson(model)});
  });
}

}  // namespace

ApiRoutes LlamaRoutes(ApiBackend* backend) {
  ApiRoutes routes;
  const auto add = [&routes](const char* method, const char* path, bool is_generation,
                             std::function<void(SharedExchange)> handle) {
    routes.push_back({.method = method,
                      .path = path,
                      .is_generation = is_generation,
                      .error_form = LlamaError,
                      .handle = std::move(handle)});
  };
  const auto refuse = [&add](const char* method, const char* path, const char* words) {
    add(method, path, false, [words](const SharedExchange& e) { e->Fail(501, words); });
  };
  // Its /completions is OpenAI's here, for clients that leave out /v1.
  add("POST", "/completion", true, [backend](const SharedExchange& e) { Complete(backend, e); });
  add("POST", "/tokenize", true, [backend](const SharedExchange& e) { Tokenize(backend, e); });
  add("POST", "/apply-template", false,
      [backend](const SharedExchange& e) { ApplyTemplate(backend, e); });
  add("GET", "/props", false, [backend](const SharedExchange& e) { Props(backend, e); });
  refuse("POST", "/props", "This server does not support changing global properties.");
  refuse("GET", "/slots", "This server does not support slots endpoint.");
  refuse("POST", "/detokenize", "This server does not support detokenize endpoint.");
  refuse("POST", "/infill", "This server does not support infill endpoint.");
  return routes;
}

}  // namespace strata
