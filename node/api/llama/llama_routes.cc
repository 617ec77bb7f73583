#include "node/api/llama/llama_routes.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "node/api/json_body.h"
#include "node/api/llama/llama_error.h"
#include "node/api/llama/llama_request.h"
#include "node/api/llama/llama_rerank.h"
#include "node/api/llama/llama_response.h"
#include "node/api/openai/openai_request.h"

namespace strata {
namespace {

using OrderedJson = nlohmann::ordered_json;

void AnswerJson(const SharedExchange& exchange, const OrderedJson& json) {
  exchange->responder->Answer({.body = JsonText(json)});
}

void Complete(ApiBackend* backend, bool infill, const SharedExchange& exchange) {
  auto completion =
      infill ? ParseLlamaInfill(exchange->TakeBody()) : ParseLlamaCompletion(exchange->TakeBody());
  if (!completion.ok()) {
    backend->Refuse(exchange, completion.status());
    return;
  }
  LlamaWriter::Answer answer = {
      .n_choices = completion->request.prompts.size() * completion->request.n,
      .is_list = completion->is_list,
      .return_tokens = completion->return_tokens,
      .n_probs = completion->n_probs,
      .timings_in_pieces = completion->request.timings_in_pieces,
      .settings_json = LlamaSettingsJson(*completion)};
  backend->Generate(exchange, std::move(completion->request),
                    [answer = std::move(answer)](const ApiBackend::ServedModel& model) mutable {
                      answer.model = model.name;
                      answer.n_ctx = model.n_ctx;
                      return std::make_unique<LlamaWriter>(std::move(answer));
                    });
}

void Embed(ApiBackend* backend, const SharedExchange& exchange) {
  auto request = ParseLlamaEmbedding(exchange->TakeBody());
  if (!request.ok()) {
    backend->Refuse(exchange, request.status());
    return;
  }
  backend->Embed(exchange, *std::move(request),
                 [exchange](const ApiBackend::ServedModel&, const ApiEmbeddings& embeddings) {
                   exchange->responder->Answer({.body = LlamaEmbeddingJson(embeddings)});
                 });
}

void Tokenize(ApiBackend* backend, const SharedExchange& exchange) {
  auto request = ParseLlamaTokenize(exchange->TakeBody());
  if (!request.ok()) {
    exchange->Fail(request.status());
    return;
  }
  const auto answer = [exchange](const std::vector<int32_t>& tokens) {
    AnswerJson(exchange, {{"tokens", tokens}, {"count", tokens.size()}});
  };
  if (!request->chat && request->prompts[0].text.empty() && request->no_special) {
    answer({});
  } else {
    backend->Tokenize(exchange, *std::move(request), answer);
  }
}

// The text as llama-server names it, and as vLLM does.
void AnswerText(const SharedExchange& exchange, const std::string& text) {
  AnswerJson(exchange, {{"content", text}, {"prompt", text}});
}

void Detokenize(ApiBackend* backend, const SharedExchange& exchange) {
  auto request = ParseLlamaDetokenize(exchange->TakeBody());
  if (!request.ok()) {
    exchange->Fail(request.status());
  } else if (request->tokens.empty()) {
    AnswerText(exchange, "");
  } else {
    backend->Detokenize(exchange, request->model, std::move(request->tokens),
                        [exchange](const std::string& text) { AnswerText(exchange, text); });
  }
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

void Rerank(ApiBackend* backend, const SharedExchange& exchange) {
  auto parsed = ParseLlamaRerank(exchange->TakeBody());
  if (!parsed.ok()) {
    backend->Refuse(exchange, parsed.status());
    return;
  }
  RankRequest request = parsed->request;
  backend->Rank(
      exchange, std::move(request),
      [exchange, rerank = *std::move(parsed)](const ApiBackend::ServedModel& model,
                                              const ApiScores& scores) {
        exchange->responder->Answer({.body = LlamaRerankJson(model.name, rerank, scores)});
      });
}

// As Props(); with ?fail_on_no_slot=1 an error where none is idle.
void Slots(ApiBackend* backend, const SharedExchange& exchange) {
  backend->WithModel(QueryField(exchange->http.query, "model"), {}, exchange,
                     [exchange](const wire::ModelStatus& model) {
                       const bool needs_one =
                           !QueryField(exchange->http.query, "fail_on_no_slot").empty();
                       if (needs_one && model.requests_running() >= model.n_seqs()) {
                         exchange->Fail(503, "no slot available");
                       } else {
                         exchange->responder->Answer({.body = LlamaSlotsJson(model)});
                       }
                     });
}

// ?model=NAME, where the cluster has several.
void Props(ApiBackend* backend, const SharedExchange& exchange) {
  backend->WithModel(QueryField(exchange->http.query, "model"), {}, exchange,
                     [exchange](const wire::ModelStatus& model) {
                       exchange->responder->Answer({.body = LlamaPropsJson(model)});
                     });
}

}  // namespace

ApiRoutes LlamaRoutes(ApiBackend* backend) {
  DialectRoutes routes(LlamaError);
  // Its /completions is OpenAI's here, for clients that leave out /v1.
  routes.Generation("/completion", [backend](const SharedExchange& exchange) {
    Complete(backend, /*infill=*/false, exchange);
  });
  routes.Generation("/infill", [backend](const SharedExchange& exchange) {
    Complete(backend, /*infill=*/true, exchange);
  });
  routes.Generation("/tokenize",
                    [backend](const SharedExchange& exchange) { Tokenize(backend, exchange); });
  routes.Generation("/detokenize",
                    [backend](const SharedExchange& exchange) { Detokenize(backend, exchange); });
  routes.Generation("/embedding",
                    [backend](const SharedExchange& exchange) { Embed(backend, exchange); });
  for (const char* path : {"/rerank", "/v1/rerank", "/reranking", "/v1/reranking"}) {
    routes.Generation(path,
                      [backend](const SharedExchange& exchange) { Rerank(backend, exchange); });
  }
  routes.Post("/apply-template",
              [backend](const SharedExchange& exchange) { ApplyTemplate(backend, exchange); });
  routes.Get("/props", [backend](const SharedExchange& exchange) { Props(backend, exchange); });
  routes.Get("/slots", [backend](const SharedExchange& exchange) { Slots(backend, exchange); });
  routes.Post("/props", [](const SharedExchange& exchange) {
    exchange->Fail(501, "This server does not support changing global properties.");
  });
  return routes.Take();
}

}  // namespace strata
