#include "node/api/anthropic/anthropic_routes.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "node/api/anthropic/anthropic_error.h"
#include "node/api/anthropic/anthropic_request.h"
#include "node/api/anthropic/anthropic_response.h"
#include "node/api/server_sent_events.h"
#include "transport/base/wall_clock.h"

namespace strata {
namespace {

// What tells this API's clients from OpenAI's where the path is the same.
constexpr char kVersionHeader[] = "anthropic-version";

void Messages(ApiBackend* backend, const SharedExchange& exchange) {
  absl::StatusOr<ApiRequest> request = ParseAnthropicMessages(exchange->TakeBody());
  if (!request.ok()) {
    backend->Refuse(exchange, request.status());
    return;
  }
  backend->Generate(
      exchange, *std::move(request),
      [request_id = exchange->http.id](const ApiBackend::ServedModel& model) {
        return std::make_unique<AnthropicWriter>(AnthropicWriter::Answer{
            .id = NewAnswerId("msg_"), .model = model.name, .request_id = request_id});
      });
}

void CountTokens(ApiBackend* backend, const SharedExchange& exchange) {
  absl::StatusOr<ApiRequest> request = ParseAnthropicMessages(exchange->TakeBody());
  if (!request.ok()) {
    exchange->Fail(request.status());
    return;
  }
  backend->Tokenize(exchange, *std::move(request), [exchange](const std::vector<int32_t>& tokens) {
    exchange->responder->Answer({.body = absl::StrCat("{\"input_tokens\":", tokens.size(), "}")});
  });
}

void Models(ApiBackend* backend, const SharedExchange& exchange) {
  backend->WithModels(ApiBackend::Models::kAll, exchange,
                      [exchange](const Gateway::Models& models) {
                        exchange->responder->Answer(
                            {.body = AnthropicModelsJson(*models, absl::ToUnixSeconds(WallNow()))});
                      });
}

void Model(ApiBackend* backend, const SharedExchange& exchange) {
  backend->WithModel(RestOfPath(exchange->http.path, "/v1/models/"), {}, exchange,
                     [exchange](const wire::ModelStatus& model) {
                       exchange->responder->Answer(
                           {.body = AnthropicModelJson(model, absl::ToUnixSeconds(WallNow()))});
                     });
}

}  // namespace

ApiRoutes AnthropicRoutes(ApiBackend* backend) {
  static constexpr StreamForm kStreams = {
      .head = EventStreamHead,
      .waiting = EventStreamWaiting,
      .failure = [](const std::string& error) { return ServerSentEvent("error", error); }};
  DialectRoutes routes(AnthropicError, &kStreams);
  routes.Generation("/v1/messages",
                    [backend](const SharedExchange& exchange) { Messages(backend, exchange); });
  routes.Generation("/v1/messages/count_tokens",
                    [backend](const SharedExchange& exchange) { CountTokens(backend, exchange); });
  routes.GetWithHeader("/v1/models", kVersionHeader,
                       [backend](const SharedExchange& exchange) { Models(backend, exchange); });
  routes.GetWithHeader("/v1/models/", kVersionHeader,
                       [backend](const SharedExchange& exchange) { Model(backend, exchange); });
  return routes.Take();
}

}  // namespace strata
