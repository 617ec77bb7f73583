#include "node/api/gemini/gemini_routes.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "node/api/gemini/gemini_error.h"
#include "node/api/gemini/gemini_request.h"
#include "node/api/gemini/gemini_response.h"

namespace strata {
namespace {

// This header tells the API's clients from OpenAI's where the path is the same.
constexpr char kKeyHeader[] = "x-goog-api-key";

void GeminiGenerate(ApiBackend* backend, const std::string& model, bool stream,
                    const SharedExchange& exchange) {
  auto request = ParseGeminiGenerate(exchange->TakeBody());
  if (!request.ok()) {
    backend->Refuse(exchange, request.status());
    return;
  }
  request->model = model;
  request->stream = stream;
  const bool has_events = QueryField(exchange->http.query, "alt") == "sse";
  backend->Generate(exchange, *std::move(request),
                    [has_events](const ApiBackend::ServedModel& served) {
                      return std::make_unique<GeminiWriter>(GeminiWriter::Answer{
                          .id = NewAnswerId(""), .model = served.name, .has_events = has_events});
                    });
}

void GeminiCount(ApiBackend* backend, const std::string& model, const SharedExchange& exchange) {
  auto request = ParseGeminiCount(exchange->TakeBody());
  if (!request.ok()) {
    exchange->Fail(request.status());
    return;
  }
  request->model = model;
  backend->Tokenize(exchange, *std::move(request), [exchange](const std::vector<int32_t>& tokens) {
    exchange->responder->Answer({.body = absl::StrCat("{\"totalTokens\":", tokens.size(), "}")});
  });
}

void GeminiEmbed(ApiBackend* backend, const std::string& model, bool is_batch,
                 const SharedExchange& exchange) {
  auto request = ParseGeminiEmbed(exchange->TakeBody(), is_batch);
  if (!request.ok()) {
    backend->Refuse(exchange, request.status());
    return;
  }
  request->model = model;
  backend->Embed(
      exchange, *std::move(request),
      [exchange, is_batch](const ApiBackend::ServedModel&, const ApiEmbeddings& embeddings) {
        exchange->responder->Answer({.body = GeminiEmbeddingsJson(embeddings, is_batch)});
      });
}

// POST of the prefix with NAME:METHOD; the name may have a colon, too.
void CallMethod(ApiBackend* backend, const std::string& prefix, const SharedExchange& exchange) {
  const std::string rest = RestOfPath(exchange->http.path, prefix);
  const size_t colon = rest.rfind(':');
  const std::string method = colon == rest.npos ? "" : rest.substr(colon + 1);
  const std::string model = rest.substr(0, colon);
  if (method == "generateContent" || method == "streamGenerateContent") {
    GeminiGenerate(backend, model, method == "streamGenerateContent", exchange);
  } else if (method == "countTokens") {
    GeminiCount(backend, model, exchange);
  } else if (method == "embedContent" || method == "batchEmbedContents") {
    GeminiEmbed(backend, model, method == "batchEmbedContents", exchange);
  } else {
    exchange->Fail(404, absl::StrCat("models have no method \"", method,
                                     "\" here: there are generateContent, streamGenerateContent, "
                                     "countTokens, embedContent and batchEmbedContents"));
  }
}

}  // namespace

ApiRoutes GeminiRoutes(ApiBackend* backend) {
  DialectRoutes routes(GeminiError);
  const auto list = [backend](const SharedExchange& exchange) {
    backend->WithModels(ApiBackend::Models::kAll, exchange,
                        [exchange](const Gateway::Models& models) {
                          exchange->responder->Answer({.body = GeminiModelsJson(*models)});
                        });
  };
  routes.Get("/v1beta/models", list);
  routes.GetWithHeader("/v1/models", kKeyHeader, list);
  for (const std::string prefix : {"/v1beta/models/", "/v1/models/"}) {
    const auto show = [backend, prefix](const SharedExchange& exchange) {
      backend->WithModel(RestOfPath(exchange->http.path, prefix), {}, exchange,
                         [exchange](const wire::ModelStatus& model) {
                           exchange->responder->Answer({.body = GeminiModelJson(model)});
                         });
    };
    if (prefix == "/v1/models/") {
      routes.GetWithHeader(prefix, kKeyHeader, show);
    } else {
      routes.Get(prefix, show);
    }
    routes.Generation(prefix, [backend, prefix](const SharedExchange& exchange) {
      CallMethod(backend, prefix, exchange);
    });
  }
  return routes.Take();
}

}  // namespace strata
