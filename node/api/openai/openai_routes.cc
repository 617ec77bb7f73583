#include "node/api/openai/openai_routes.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/random/random.h"
#include "absl/strings/str_format.h"
#include "node/api/openai/openai_error.h"
#include "node/api/openai/openai_request.h"
#include "node/api/openai/openai_response.h"
#include "transport/base/wall_clock.h"

namespace strata {
namespace {

std::string NewAnswerId(bool chat) {
  thread_local absl::BitGen random;
  return absl::StrFormat("%s-%016x%08x", chat ? "chatcmpl" : "cmpl",
                         absl::Uniform<uint64_t>(random), absl::Uniform<uint32_t>(random));
}

void Complete(ApiBackend* backend, bool chat, const SharedExchange& exchange) {
  absl::StatusOr<ApiRequest> request =
      chat ? ParseChat(exchange->TakeBody()) : ParseCompletion(exchange->TakeBody());
  if (!request.ok()) {
    backend->CountRefused();
    exchange->Fail(request.status());
    return;
  }
  const bool include_usage = request->include_usage;
  backend->Generate(exchange, *std::move(request), [chat, include_usage](const std::string& model) {
    return std::make_unique<OpenAiWriter>(ApiAnswer{.chat = chat,
                                                    .id = NewAnswerId(chat),
                                                    .created_s = absl::ToUnixSeconds(WallNow()),
                                                    .model = model},
                                          include_usage);
  });
}

void Models(ApiBackend* backend, const SharedExchange& exchange) {
  backend->WithModels(exchange, [exchange](const Gateway::ModelList& models,
                                           const std::vector<ChatSupport>& chat) {
    exchange->responder->Answer({.body = ModelsJson(models, chat, absl::ToUnixSeconds(WallNow()))});
  });
}

void Model(ApiBackend* backend, const SharedExchange& exchange) {
  backend->WithModel(RestOfPath(exchange->http.path, "/v1/models/"), exchange,
                     [backend, exchange](const wire::ModelStatus& model) {
                       backend->CheckChat(model, [exchange, model](const ChatSupport& chat) {
                         exchange->responder->Answer(
                             {.body = ModelJson(model, chat, absl::ToUnixSeconds(WallNow()))});
                       });
                     });
}

}  // namespace

ApiRoutes OpenAiRoutes(ApiBackend* backend) {
  ApiRoutes routes;
  const auto add = [&routes](const char* method, const char* path, bool is_generation,
                             std::function<void(SharedExchange)> handle) {
    routes.push_back({.method = method,
                      .path = path,
                      .is_generation = is_generation,
                      .error_form = OpenAiError,
                      .handle = std::move(handle)});
  };
  add("POST", "/v1/completions", true,
      [backend](const SharedExchange& e) { Complete(backend, /*chat=*/false, e); });
  add("POST", "/v1/chat/completions", true,
      [backend](const SharedExchange& e) { Complete(backend, /*chat=*/true, e); });
  add("GET", "/v1/models", false, [backend](const SharedExchange& e) { Models(backend, e); });
  add("GET", "/v1/models/", false, [backend](const SharedExchange& e) { Model(backend, e); });
  return routes;
}

}  // namespace strata
