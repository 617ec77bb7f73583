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
#include "transport/base/steady_time.h"
#include "transport/base/wall_clock.h"

namespace strata {
namespace {

// The version of Ollama whose API this is: clients compare it with the one that they need.
constexpr char kOllamaVersion[] = "0.13.5";

constexpr char kNoFiles[] =
    "models are loaded and unloaded by the cluster's own commands: strata load FILE, strata unload "
    "MODEL";

void Generate(ApiBackend* backend, const SharedExchange& exchange, ApiRequest request, bool chat) {
  backend->Generate(exchange, std::move(request), [chat](const ApiBackend::ServedModel& model) {
    return std::make_unique<OllamaWriter>(model.name, chat);
  });
}

void Answer(ApiBackend* backend, bool chat, const SharedExchange& exchange) {
  absl::StatusOr<OllamaRequest> parsed =
      chat ? ParseOllamaChat(exchange->TakeBody()) : ParseOllamaGenerate(exchange->TakeBody());
  if (!parsed.ok()) {
    backend->Refuse(exchange, parsed.status());
    return;
  }
  const std::string name = parsed->request.model;
  const ApiBackend::ModelUse use = {.loads = !parsed->unloads,
                                    .streams = parsed->request.stream,
                                    .keep_alive_ms = parsed->request.keep_alive_ms};
  if (parsed->only_loads) {
    backend->WithModel(
        name, use, exchange, [backend, exchange, chat, use](const wire::ModelStatus& model) {
          const auto answer = [exchange, chat, use, name = model.name()] {
            exchange->responder->Answer({.body = OllamaLoaded(name, chat, /*unloads=*/!use.loads)});
          };
          const bool is_loaded = model.state() != wire::ModelStatus::UNKNOWN;
          if (!use.keep_alive_ms || !is_loaded) return answer();
          backend->KeepAlive(exchange, model, *use.keep_alive_ms, answer);
        });
  } else if (chat || !parsed->request.chat) {
    Generate(backend, exchange, std::move(parsed->request), chat);
  } else {
    backend->WithModel(
        name, use, exchange,
        [backend, exchange, request = std::move(parsed->request)](const wire::ModelStatus& model) {
          Generate(backend, exchange,
                   model.chat_template().empty() ? AsCompletion(request) : request,
                   /*chat=*/false);
        });
  }
}

// `is_old`: of /api/embeddings.
void Embed(ApiBackend* backend, bool is_old, const SharedExchange& exchange) {
  auto request =
      is_old ? ParseOllamaEmbeddings(exchange->TakeBody()) : ParseOllamaEmbed(exchange->TakeBody());
  if (!request.ok()) {
    backend->Refuse(exchange, request.status());
    return;
  }
  backend->Embed(
      exchange, *std::move(request),
      [exchange, is_old](const ApiBackend::ServedModel& model, const ApiEmbeddings& embeddings) {
        const absl::Duration took = SteadyTime::Now() - exchange->record->since();
        exchange->responder->Answer({.body = is_old ? OllamaEmbeddings(embeddings)
                                                    : OllamaEmbed(model.name, embeddings, took)});
      });
}

void List(ApiBackend* backend, bool running, const SharedExchange& exchange) {
  backend->WithModels(
      running ? ApiBackend::Models::kLoaded : ApiBackend::Models::kAll, exchange,
      [exchange, running](const Gateway::Models& models) {
        exchange->responder->Answer({.body = OllamaModels(*models, WallNow(), running)});
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
  backend->WithModel(name, {}, exchange,
                     [parsed = *std::move(parsed), then = std::move(then)](
                         const wire::ModelStatus& model) { then(parsed, model); });
}

void Show(ApiBackend* backend, const SharedExchange& exchange) {
  WithNamed(backend, exchange,
            [backend, exchange](const OllamaModelRequest&, const wire::ModelStatus& model) {
              backend->CheckChats({model}, [exchange, model](const auto& chats) {
                exchange->responder->Answer({.body = OllamaModel(model, chats[0], WallNow())});
              });
            });
}

// A model that the cluster has needs no download.
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
  static constexpr StreamForm kStreams = {
      .head = OllamaStream,
      .waiting = [](absl::string_view model, absl::string_view) { return OllamaNothing(model); },
      .failure = [](const std::string& error) { return error + "\n"; }};
  DialectRoutes routes(OllamaError, &kStreams);
  routes.Generation("/api/chat", [backend](const SharedExchange& exchange) {
    Answer(backend, /*chat=*/true, exchange);
  });
  routes.Generation("/api/generate", [backend](const SharedExchange& exchange) {
    Answer(backend, /*chat=*/false, exchange);
  });
  routes.Get("/api/version", [](const SharedExchange& exchange) {
    exchange->responder->Answer({.body = nlohmann::json({{"version", kOllamaVersion}}).dump()});
  });
  routes.Get("/api/tags", [backend](const SharedExchange& exchange) {
    List(backend, /*running=*/false, exchange);
  });
  routes.Get("/api/ps", [backend](const SharedExchange& exchange) {
    List(backend, /*running=*/true, exchange);
  });
  routes.Post("/api/show", [backend](const SharedExchange& exchange) { Show(backend, exchange); });
  routes.Post("/api/pull", [backend](const SharedExchange& exchange) { Pull(backend, exchange); });
  const auto no_files = [](const SharedExchange& exchange) { exchange->Fail(501, kNoFiles); };
  routes.Generation("/api/embed", [backend](const SharedExchange& exchange) {
    Embed(backend, /*is_old=*/false, exchange);
  });
  routes.Generation("/api/embeddings", [backend](const SharedExchange& exchange) {
    Embed(backend, /*is_old=*/true, exchange);
  });
  for (const char* path : {"/api/copy", "/api/create", "/api/push"}) routes.Post(path, no_files);
  routes.Delete("/api/delete", no_files);
  return routes.Take();
}

bool AnswerOllamaGreeting(const HttpRequest& request, HttpResponder* responder) {
  if (request.method != "GET" || request.path != "/") return false;
  responder->Answer({.content_type = "text/plain; charset=utf-8", .body = "Ollama is running"});
  return true;
}

}  // namespace strata
