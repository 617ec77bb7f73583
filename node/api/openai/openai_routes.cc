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
  ApiAnswer answer = {.chat = chat,
                      .id = NewAnswerId(chat),
                      .created_s = absl::ToUnixSeconds(WallNow()),
                      .model = "",
                      .calls_functions = request->calls_functions,
                      .usage = request->usage_in_pieces ? ApiAnswer::Usage::kInPieces
                               : request->include_usage ? ApiAnswer::Usage::kAtEnd
                                                        : ApiAnswer::Usage::kNone};
  backend->Generate(exchange, *std::move(request),
                    [answer = std::move(answer)](const std::string& model) mutable {
                      answer.model = model;
                      return std::make_unique<OpenAiWriter>(std::move(answer));
                    });
}

void Models(ApiBackend* backend, const SharedExchange& exchange) {
  backend->WithModels(exchange, [exchange](const Gateway::ModelList& models,
                                           const std::vector<ChatSupport>& chat) {
    exchange->responder->Answer({.body = ModelsJson(models, chat, absl::ToUnixSeconds(WallNow()))});
  });
}

void Model(ApiBackend* backend, absl::string_view prefix, const SharedExchange& exchange) {
  backend->WithModel(RestOfPath(exchange->http.path, prefix), exchange,
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
  const auto add = [&routes](const char* method, std::string path, bool is_generation,
                             std::function<void(SharedExchange)> handle) {
    routes.push_back({.method = method,
                      .path = std::move(path),
                      .is_generation = is_generation,
                      .error_form = OpenAiError,
                      .handle = std::move(handle)});
  };
  for (const std::string base : {"/v1", ""}) {  // llama.cpp's server has both
    add("POST", base + "/completions", true,
        [backend](const SharedExchange& e) { Complete(backend, /*chat=*/false, e); });
    add("POST", base + "/chat/completions", true,
        [backend](const SharedExchange& e) { Complete(backend, /*chat=*/true, e); });
    add("GET", base + "/models", false, [backend](const SharedExchange& e) { Models(backend, e); });
    const std::string models = base + "/models/";
    add("GET", models, false,
        [backend, models](const SharedExchange& e) { Model(backend, models, e); });
  }
  return routes;
}

}  // namespace strata
