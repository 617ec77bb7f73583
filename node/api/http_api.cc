#include "node/api/http_api.h"

#include <algorithm>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "node/api/json_body.h"
#include "node/api/metrics.h"
#include "node/http/content_coding.h"
#include "transport/base/wall_clock.h"

namespace strata {
namespace {

bool IsOf(const ApiRoute& route, const HttpRequest& request) {
  if (!route.header.empty() && request.Header(route.header).empty()) return false;
  return route.path.size() > 1 && absl::EndsWith(route.path, "/")
             ? absl::StartsWith(request.path, route.path)
             : request.path == route.path;
}

// "POST, OPTIONS"
std::string AllowedMethods(const std::vector<const ApiRoute*>& routes) {
  std::vector<std::string> methods;
  for (const ApiRoute* route : routes) {
    if (std::find(methods.begin(), methods.end(), route->method) != methods.end()) continue;
    methods.push_back(route->method);
    if (route->method == "GET") methods.push_back("HEAD");
  }
  methods.push_back("OPTIONS");
  return absl::StrJoin(methods, ", ");
}

absl::Status DecodeBody(HttpRequest* request) {
  auto body = DecodeContent(request->Header("content-encoding"), std::move(request->body),
                            kHttpBodyBytesMax);
  if (!body.ok()) return body.status();
  request->body = *std::move(body);
  return absl::OkStatus();
}

}  // namespace

HttpApi::HttpApi(ApiBackend* backend, Coordinator* coordinator, Options options, ApiRoutes routes,
                 ListStages list_stages)
    : backend_(backend),
      coordinator_(coordinator),
      options_(std::move(options)),
      list_stages_(std::move(list_stages)),
      routes_(std::move(routes)) {
  for (const char* path : {"/health", "/v1/health"}) {
    routes_.push_back({.method = "GET",
                       .path = path,
                       .is_public = true,  // health checks have no token
                       .error_form = options_.error_form,
                       .handle = [this](const SharedExchange& exchange) { Health(exchange); }});
  }
  routes_.push_back({.method = "GET",
                     .path = "/metrics",
                     .error_form = options_.error_form,
                     .handle = [this](const SharedExchange& exchange) { Metrics(exchange); }});
  std::stable_partition(routes_.begin(), routes_.end(),
                        [](const ApiRoute& route) { return !route.header.empty(); });
}

void HttpApi::SetServer(const HttpServer* server) {
  absl::MutexLock lock(mu_);
  server_ = server;
}

bool HttpApi::Admit(const ApiRoute& route, ApiExchange* exchange) {
  constexpr absl::string_view kScheme = "Bearer ";  // RFC 6750
  absl::string_view text = exchange->http.Header("authorization");
  if (absl::StartsWithIgnoreCase(text, kScheme)) {
    text.remove_prefix(kScheme.size());
  } else {
    for (const char* header : {"x-api-key", "x-goog-api-key"}) {
      const absl::string_view key = exchange->http.Header(header);
      if (!key.empty()) text = key;
    }
  }
  // Clients of other APIs send keys of their own where none is needed.
  if (options_.open.Has(route.scope) && (route.scope == ApiScope::kChat || text.empty())) {
    exchange->scopes = options_.open;
    return true;
  }
  if (options_.tokens == nullptr) {
    exchange->Fail(403, "this node stores no tokens, and nobody may do that without one");
    return false;
  }
  ApiTokens::AdmitResult result = options_.tokens->Admit(
      {.text = text, .stream = route.is_generation, .scope = route.scope, .now = WallNow()});
  if (result.status.ok()) {
    exchange->scopes = result.grant.scopes();
    // Fair queueing goes by the client; no address has a space.
    if (const std::string& name = result.grant.name(); !name.empty()) {
      exchange->http.client = absl::StrCat("token ", name);
      exchange->cache_scope = result.grant.cache_scope();
    }
    exchange->record->SetTokenGrant(std::move(result.grant));
    return true;
  }
  HttpResponse response;
  if (absl::IsUnauthenticated(result.status)) {
    response = WrongTokenResponse(result.status.message(), exchange->error_form);
  } else if (absl::IsPermissionDenied(result.status)) {
    response = ErrorResponse(result.status, exchange->error_form);
  } else if (absl::IsResourceExhausted(result.status)) {
    response = ErrorResponse(429, result.status.message(), exchange->error_form);
    if (result.retry_after > absl::ZeroDuration()) {
      const int64_t ms =
          absl::ToInt64Milliseconds(absl::Ceil(result.retry_after, absl::Milliseconds(1)));
      response.headers.emplace_back("Retry-After", absl::StrCat((ms + 999) / 1000));
      response.headers.emplace_back("retry-after-ms", absl::StrCat(ms));
    }
  } else {
    LOG_EVERY_N_SEC(ERROR, 10) << "HTTP API: " << result.status.message();
    response = ErrorResponse(503, "tokens cannot be checked at present; the node's log says why",
                             exchange->error_form);
  }
  exchange->responder->Answer(std::move(response));
  return false;
}

void HttpApi::Handle(HttpRequest request, std::shared_ptr<HttpResponder> unrecorded) {
  std::vector<const ApiRoute*> at;
  for (const ApiRoute& route : routes_) {
    if (IsOf(route, request) && (at.empty() || at.front()->path == route.path)) {
      at.push_back(&route);
    }
  }
  const auto route = std::find_if(at.begin(), at.end(), [&request](const ApiRoute* each) {
    return each->method == request.method;
  });
  const ApiRoute none = {.method = "", .path = "", .error_form = options_.error_form, .handle = {}};
  const ApiRoute& found = route != at.end() ? **route : at.empty() ? none : *at.front();

  const auto record = std::make_shared<RequestRecord>(request);  // shared with the responder
  const auto responder =
      Recorded(WithOrigin(std::move(unrecorded), request, options_.browsers), record);
  absl::Status browser = CheckBrowser(request, options_.browsers);
  if (browser.ok() && found.scope != ApiScope::kChat && options_.open.Has(found.scope)) {
    browser = CheckOpenAccess(request, options_.browsers);
  }
  const auto exchange =
      std::make_shared<ApiExchange>(ApiExchange{.http = std::move(request),
                                                .responder = responder,
                                                .record = record,
                                                .error_form = found.error_form,
                                                .stream_form = found.stream_form});
  if (!browser.ok()) {
    exchange->Fail(403, browser.message());
    return;
  }
  const std::string allowed = AllowedMethods(at);
  if (IsPreflight(exchange->http, options_.browsers)) {  // which never has a token
    responder->Answer(AnswerPreflight(exchange->http, at.empty() ? "GET, HEAD, OPTIONS" : allowed));
    return;
  }
  if (!found.is_public && !Admit(found, exchange.get())) return;
  if (at.empty()) {
    exchange->Fail(404, absl::StrCat("there is nothing at ", exchange->http.path));
  } else if (exchange->http.method == "OPTIONS") {
    responder->Answer({.status = 204, .headers = {{"Allow", allowed}}, .body = ""});
  } else if (route == at.end()) {
    HttpResponse response =
        ErrorResponse(405, absl::StrCat("this path takes ", allowed), found.error_form);
    response.headers.emplace_back("Allow", allowed);
    responder->Answer(std::move(response));
  } else if (absl::Status status = DecodeBody(&exchange->http); status.ok()) {
    found.handle(exchange);
  } else {
    if (found.is_generation) backend_->CountRefused();
    const int http_status = absl::IsUnimplemented(status)       ? 415
                            : absl::IsResourceExhausted(status) ? 413
                                                                : HttpStatusOf(status);
    HttpResponse response = ErrorResponse(http_status, status.message(), found.error_form);
    response.headers.emplace_back("Accept-Encoding", kContentCodings);  // RFC 7694
    responder->Answer(std::move(response));
  }
}

// Whether this node can forward a request to a coordinator.
void HttpApi::Health(const SharedExchange& exchange) {
  const Coordinator::Leadership leadership = coordinator_->leadership();
  const bool knows = leadership.mine || !leadership.address.empty();
  nlohmann::ordered_json health = {{"status", knows ? "ok" : "unavailable"}};
  if (!knows) {
    health["reason"] = "no node coordinates at present";
    // As llama-server says it.
    health["error"] = {{"code", 503},
                       {"message", "no node coordinates at present"},
                       {"type", "unavailable_error"}};
  }
  if (options_.open.view) {  // else clients without a token would see it
    health["node"] = {{"id", options_.node_id}, {"name", options_.node_name}};
    health["coordinates"] = leadership.mine;
    if (!leadership.refused.empty()) health["reason"] = leadership.refused;
    for (const std::string& problem : coordinator_->Problems()) {
      health["problems"].push_back(problem);
    }
  }
  HttpResponse response = {.status = knows ? 200 : 503, .body = JsonText(health)};
  if (!knows) response.headers.emplace_back("Retry-After", "1");
  exchange->responder->Answer(std::move(response));
}

void HttpApi::Metrics(const SharedExchange& exchange) {
  list_stages_([this, exchange](std::vector<wire::StageStatus> stages) {
    exchange->responder->Run([this, exchange, stages = std::move(stages)]() mutable {
      MetricsView view = {.node_id = options_.node_id,
                          .node_name = options_.node_name,
                          .models = coordinator_->Stats(),
                          .stages = std::move(stages)};
      {
        absl::MutexLock lock(mu_);
        if (server_ != nullptr) view.http = server_->stats();
      }
      const ApiCounters& counters = backend_->counters();
      view.api = {.requests = counters.requests,
                  .running = counters.running,
                  .failed = counters.failed,
                  .client_gone = counters.client_gone,
                  .tokens = counters.tokens,
                  .first_token_us = counters.first_token_us};
      std::ranges::copy(counters.first_tokens, view.api.first_tokens.begin());
      exchange->responder->Answer(
          {.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = MetricsText(view)});
    });
  });
}

}  // namespace strata
