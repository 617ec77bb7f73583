#include "node/api/ollama/ollama_routes.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "node/api/ollama/ollama_error.h"
#include "node/api/ollama/ollama_models.h"
#include "node/api/ollama/ollama_request.h"
#include "node/api/ollama/ollama_response.h"
#include "transport/base/wall_clock.h"

namespace strata {
namespace {

// The version of Ollama whose API this is: clients compare it with the one that they need.
constexpr char kOllamaVersion[] = "0.13.5";

constexpr char kNoEmbeddings[] =
    "embeddings are not supported yet: this cluster's models only generate";
constexpr char kNoFiles[] =
    "models are loaded and unloaded by the cluster's own commands: strata load FILE, strata unload "
    "MODEL";

void Generate(ApiBackend* backend, const SharedExchange& exchange, ApiRequest request, bool chat) {
  backend->Generate(exchange, std::move(request), [chat](const std::string& model) {
    return std::make_unique<OllamaWriter>(model, chat);
  });
}

void Answer(ApiBackend* backend, bool chat, const SharedExchange& exchange) {
  absl::StatusOr<OllamaRequest> parsed =
      chat ? ParseOllamaChat(exchange->TakeBody()) : ParseOllamaGenerate(exchange->TakeBody());
  if (!parsed.ok()) {
    backend->CountRefused();
    exchange->Fail(parsed.status());
    return;
  }
  const std::string name = parsed->request.model;
  if (parsed->only_loads) {
    backend->WithModel(name, exchange, [exchange, chat](const wire::ModelStatus& model) {
      exchange->responder->Answer({.body = OllamaLoaded(model.name(), chat)});
    });
  } else if (chat || !parsed->request.chat) {
    Generate(backend, exchange, std::move(parsed->request), chat);
  } else {
    backend->WithModel(
        name, exchange,
        [backend, exchange, request = std::move(parsed->request)](const wire::ModelStatus& model) {
          Generate(backend, exchange,
                   model.chat_template().empty() ? AsCompletion(request) : request,
                   /*chat=*/false);
        });
  }
}

void List(ApiBackend* backend, bool running, const SharedExchange& exchange) {
  backend->WithModels(exchange, [exchange, running](const Gateway::ModelList& models,
                                                    const std::vector<ChatSupport>&) {
    exchange->responder->Answer({.body = OllamaModels(models, WallNow(), running)});
  });
}

// Calls `then` with the model that the body names.
void WithNamed(ApiBackend* backend, const SharedExchange& exchange,
               std::function<void(const OllamaModelRequest&, const wire::ModelStatus&)> then) {
  absl::StatusOr<OllamaModelRequest> parsed = ParseOllamaModel(exchange->TakeBody());
  if (!parsed.ok()) {
    exchange->Fail(parsed.status());
    return;
  }
  const std::string name = parsed->model;
  backend->WithModel(name, exchange,
                     [parsed = *std::move(parsed), then = std::move(then)](
                         const wire::ModelStatus& model) { then(parsed, model); });
}

void Show(ApiBackend* backend, const SharedExchange& exchange) {
  WithNamed(backend, exchange,
            [backend, exchange](const OllamaModelRequest&, const wire::ModelStatus& model) {
              backend->CheckChat(model, [exchange, model](const ChatSupport& chat) {
                exchange->responder->Answer({.body = OllamaModel(model, chat, WallNow())});
              });
            });
}

// A model that is loaded needs no download.
void Pull(ApiBackend* backend, const SharedExchange& exchange) {
  WithNamed(
      backend, exchange, [exchange](const OllamaModelRequest& request, const wire::ModelStatus&) {
        const std::string success = R"({"status":"success"})";
        if (request.stream) {
          exchange->responder->Answer({.content_type = kOllamaStreamType, .body = success + "\n"});
        } else {
          exchange->responder->Answer({.body = success});
        }
      });
}

}  // namespace

ApiRoutes OllamaRoutes(ApiBackend* backend) {
  ApiRoutes routes;
  const auto add = [&routes](const char* method, const char* path,
                             std::function<void(SharedExchange)> handle,
                             bool is_generation = false) {
    routes.push_back({.method = method,
                      .path = path,
                      .is_generation = is_generation,
                      .error_form = OllamaError,
                      .handle = std::move(handle)});
  };
  add(
      "POST", "/api/chat",
      [backend](const SharedExchange& e) { Answer(backend, /*chat=*/true, e); }, true);
  add(
      "POST", "/api/generate",
      [backend](const SharedExchange& e) { Answer(backend, /*chat=*/false, e); }, true);
  add("GET", "/api/version", [](const SharedExchange& e) {
    e->responder->Answer({.body = nlohmann::json({{"version", kOllamaVersion}}).dump()});
  });
  add("GET", "/api/tags",
      [backend](const SharedExchange& e) { List(backend, /*running=*/false, e); });
  add("GET", "/api/ps", [backend](const SharedExchange& e) { List(backend, /*running=*/true, e); });
  add("POST", "/api/show", [backend](const SharedExchange& e) { Show(backend, e); });
  add("POST", "/api/pull", [backend](const SharedExchange& e) { Pull(backend, e); });
  for (const char* path : {"/api/embed", "/api/embeddings"}) {
    add("POST", path, [](const SharedExchange& e) { e->Fail(501, kNoEmbeddings); });
  }
  for (const char* path : {"/api/copy", "/api/create", "/api/push"}) {
    add("POST", path, [](const SharedExchange& e) { e->Fail(501, kNoFiles); });
  }
  add("DELETE", "/api/delete", [](const SharedExchange& e) { e->Fail(501, kNoFiles); });
  return routes;
}

bool AnswerOllamaGreeting(const HttpRequest& request, HttpResponder* responder) {
  if (request.method != "GET" || request.path != "/") return false;
  responder->Answer({.content_type = "text/plain; charset=utf-8", .body = "Ollama is running"});
  return true;
}

}  // namespace strata
