#include "node/api/anthropic/anthropic_routes.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "node/api/anthropic/anthropic_error.h"
#include "node/api/anthropic/anthropic_request.h"
#include "node/api/anthropic/anthropic_response.h"
#include "transport/base/wall_clock.h"

namespace strata {
namespace {

// What tells this API's clients from OpenAI's where the path is the same.
constexpr char kVersionHeader[] = "anthropic-version";

std::string NewMessageId() {
  thread_local absl::BitGen random;
  return absl::StrFormat("msg_%016x%08x", absl::Uniform<uint64_t>(random),
                         absl::Uniform<uint32_t>(random));
}

void Messages(ApiBackend* backend, const SharedExchange& exchange) {
  absl::StatusOr<ApiRequest> request = ParseAnthropicMessages(exchange->TakeBody());
  if (!request.ok()) {
    backend->CountRefused();
    exchange->Fail(request.status());
    return;
  }
  backend->Generate(exchange, *std::move(request),
                    [request_id = exchange->http.id](const std::string& model) {
                      return std::make_unique<AnthropicWriter>(AnthropicWriter::Answer{
                          .id = NewMessageId(), .model = model, .request_id = request_id});
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
  backend->WithModels(exchange, [exchange](const Gateway::ModelList& models,
                                           const std::vector<ChatSupport>& /*chat*/) {
    exchange->responder->Answer(
        {.body = AnthropicModelsJson(models, absl::ToUnixSeconds(WallNow()))});
  });
}

void Model(ApiBackend* backend, const SharedExchange& exchange) {
  backend->WithModel(RestOfPath(exchange->http.path, "/v1/models/"), exchange,
                     [exchange](const wire::ModelStatus& model) {
                       exchange->responder->Answer(
                           {.body = AnthropicModelJson(model, absl::ToUnixSeconds(WallNow()))});
                     });
}

}  // namespace

ApiRoutes AnthropicRoutes(ApiBackend* backend) {
  return {{.method = "POST",
           .path = "/v1/messages",
           .is_generation = true,
           .error_form = AnthropicError,
           .handle = [backend](const SharedExchange& e) { Messages(backend, e); }},
          {.method = "POST",
           .path = "/v1/messages/count_tokens",
           .is_generation = true,
           .error_form = AnthropicError,
           .handle = [backend](const SharedExchange& e) { CountTokens(backend, e); }},
          {.method = "GET",
           .path = "/v1/models",
           .header = kVersionHeader,
           .error_form = AnthropicError,
           .handle = [backend](const SharedExchange& e) { Models(backend, e); }},
          {.method = "GET",
           .path = "/v1/models/",
           .header = kVersionHeader,
           .error_form = AnthropicError,
           .handle = [backend](const SharedExchange& e) { Model(backend, e); }}};
}

}  // namespace strata
