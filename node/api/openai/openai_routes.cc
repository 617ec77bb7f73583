#include "node/api/openai/openai_routes.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "node/api/openai/openai_embeddings.h"
#include "node/api/openai/openai_error.h"
#include "node/api/openai/openai_request.h"
#include "node/api/openai/openai_response.h"
#include "transport/base/wall_clock.h"

namespace strata {
namespace {

void Complete(ApiBackend* backend, bool chat, const SharedExchange& exchange) {
  absl::StatusOr<ApiRequest> request =
      chat ? ParseChat(exchange->TakeBody()) : ParseCompletion(exchange->TakeBody());
  if (!request.ok()) {
    backend->Refuse(exchange, request.status());
    return;
  }
  ApiAnswer answer = {.chat = chat,
                      .id = NewAnswerId(chat ? "chatcmpl-" : "cmpl-"),
                      .created_s = absl::ToUnixSeconds(WallNow()),
                      .model = "",
                      .calls_functions = request->calls_functions,
                      .usage = request->usage_in_pieces ? ApiAnswer::Usage::kInPieces
                               : request->include_usage ? ApiAnswer::Usage::kAtEnd
                                                        : ApiAnswer::Usage::kNone,
                      .timings_in_pieces = request->timings_in_pieces,
                      .top_logprobs = request->top_logprobs,
                      .prompt_top = request->prompt_top.value_or(0),
                      .returns_tokens = request->returns_tokens,
                      .tokens_as_ids = request->tokens_as_ids};
  backend->Generate(exchange, *std::move(request),
                    [answer = std::move(answer)](const ApiBackend::ServedModel& model) mutable {
                      answer.model = model.name;
                      return std::make_unique<OpenAiWriter>(std::move(answer));
                    });
}

void Embed(ApiBackend* backend, const SharedExchange& exchange) {
  absl::StatusOr<EmbeddingRequest> request = ParseEmbeddings(exchange->TakeBody());
  if (!request.ok()) {
    backend->Refuse(exchange, request.status());
    return;
  }
  const bool is_base64 = request->is_base64;
  backend->Embed(
      exchange, *std::move(request),
      [exchange, is_base64](const ApiBackend::ServedModel& model, const ApiEmbeddings& embeddings) {
        exchange->responder->Answer({.body = EmbeddingsJson(model.name, is_base64, embeddings)});
      });
}

void Models(ApiBackend* backend, const SharedExchange& exchange) {
  backend->WithModels(
      ApiBackend::Models::kAll, exchange, [backend, exchange](const Gateway::Models& models) {
        backend->CheckChats(*models, [exchange, models](const std::vector<ChatSupport>& chats) {
          exchange->responder->Answer(
              {.body = ModelsJson(*models, chats, absl::ToUnixSeconds(WallNow()))});
        });
      });
}

void Model(ApiBackend* backend, absl::string_view prefix, const SharedExchange& exchange) {
  backend->WithModel(RestOfPath(exchange->http.path, prefix), {}, exchange,
                     [backend, exchange](const wire::ModelStatus& model) {
                       backend->CheckChats({model}, [exchange, model](const auto& chats) {
                         exchange->responder->Answer(
                             {.body = ModelJson(model, chats[0], absl::ToUnixSeconds(WallNow()))});
                       });
                     });
}

}  // namespace

ApiRoutes OpenAiRoutes(ApiBackend* backend) {
  DialectRoutes routes(OpenAiError);
  for (const std::string base : {"/v1", ""}) {  // llama.cpp's server has both
    routes.Generation(base + "/completions", [backend](const SharedExchange& exchange) {
      Complete(backend, /*chat=*/false, exchange);
    });
    routes.Generation(base + "/chat/completions", [backend](const SharedExchange& exchange) {
      Complete(backend, /*chat=*/true, exchange);
    });
    routes.Generation(base + "/embeddings",
                      [backend](const SharedExchange& exchange) { Embed(backend, exchange); });
    routes.Get(base + "/models",
               [backend](const SharedExchange& exchange) { Models(backend, exchange); });
    const std::string models = base + "/models/";
    routes.Get(models, [backend, models](const SharedExchange& exchange) {
      Model(backend, models, exchange);
    });
  }
  return routes.Take();
}

}  // namespace strata
