#include "node/openai_api.h"

#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/random/random.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"
#include "node/metrics.h"
#include "node/model_match.h"
#include "node/openai_error.h"
#include "node/openai_request.h"
#include "node/openai_response.h"
#include "node/peer_addresses.h"

namespace strata {
namespace {

// How old what we know of the cluster's models may be.
constexpr absl::Duration kModelsAge = absl::Seconds(1);
// Of a token, more than any vocabulary has: a text that is longer than the context is told so
// before a stage has spent its time on it.
constexpr size_t kTokenBytesMax = 512;

std::string NewAnswerId(bool chat) {
  thread_local absl::BitGen random;
  return absl::StrFormat("%s-%016x%08x", chat ? "chatcmpl" : "cmpl",
                         absl::Uniform<uint64_t>(random), absl::Uniform<uint32_t>(random));
}

std::string PercentDecoded(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    std::string byte;
    if (text[i] == '%' && i + 2 < text.size() &&
        absl::HexStringToBytes(text.substr(i + 1, 2), &byte)) {
      out += byte;
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string HostOf(absl::string_view authority) {
  const auto parsed = ParseHostPort(authority);
  std::string host = parsed.ok() ? parsed->host : std::string(authority);
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]"))
    host = host.substr(1, host.size() - 2);
  return host;
}

// Pages in a browser are not among the API's clients: one of another site must neither use this
// machine nor read what it says, not even under a name that it points here.
absl::Status CheckBrowser(const HttpRequest& request) {
  const absl::string_view host = request.Header("host");
  absl::string_view origin = request.Header("origin");
  if (!origin.empty() && !(absl::ConsumePrefix(&origin, "http://") && origin == host)) {
    return absl::PermissionDeniedError("pages of other sites may not use this API");
  }
  if (request.to_loopback && !host.empty() && !IsLoopbackHost(HostOf(host))) {
    return absl::PermissionDeniedError(
        absl::StrCat("this machine is not called ", host, " here: use localhost or 127.0.0.1"));
  }
  return absl::OkStatus();
}

const wire::ModelStatus* FindIn(const Gateway::ModelList& models, const std::string& name,
                                absl::Status* why) {
  const wire::ModelStatus* found = nullptr;
  std::vector<std::string> names;
  for (const wire::ModelStatus& model : models) {
    names.push_back(model.name());
    if (!MeansModel(
            name, {.name = model.name(), .path = model.source().path(), .id = model.model_id()})) {
      continue;
    }
    if (found != nullptr) {
      *why = BadParam("model", absl::StrCat("\"", name, "\" means several models; loaded: ",
                                            absl::StrJoin(names, ", ")));
      return nullptr;
    }
    found = &model;
  }
  if (found == nullptr) {
    *why = absl::NotFoundError(
        absl::StrCat("the model \"", name, "\" does not exist; ",
                     names.empty() ? "none is loaded (strata load MODEL)"
                                   : absl::StrCat("loaded: ", absl::StrJoin(names, ", "))));
  }
  return found;
}

HttpResponse MethodNotAllowed(const char* allowed) {
  HttpResponse response = ErrorResponse(405, absl::StrCat("this takes ", allowed));
  response.headers.emplace_back("Allow", allowed);
  return response;
}

}  // namespace

OpenAiApi::OpenAiApi(Gateway* gateway, Coordinator* coordinator, Options options)
    : gateway_(gateway),
      coordinator_(coordinator),
      options_(std::move(options)),
      counters_(std::make_shared<ApiCounters>()) {}

void OpenAiApi::SetServer(const HttpServer* server) {
  absl::MutexLock lock(mu_);
  server_ = server;
}

void OpenAiApi::Handle(HttpRequest request, std::shared_ptr<HttpResponder> responder) {
  LOG(INFO) << "http id=" << request.id << " client=" << request.client
            << " method=" << absl::CEscape(request.method)
            << " path=" << absl::CEscape(request.path) << " bytes=" << request.body.size();
  if (absl::Status status = CheckBrowser(request); !status.ok()) {
    responder->Answer(ErrorResponse(403, std::string(status.message())));
    return;
  }
  const std::string& path = request.path;
  const bool texts = path == "/v1/completions" || path == "/v1/chat/completions";
  const bool reads = path == "/health" || path == "/metrics" || path == "/v1/models" ||
                     absl::StartsWith(path, "/v1/models/");
  if (!texts && !reads) {
    responder->Answer(ErrorResponse(404, absl::StrCat("there is nothing at ", path)));
    return;
  }
  const char* allowed = texts ? "POST, OPTIONS" : "GET, HEAD, OPTIONS";
  if (request.method == "OPTIONS") {
    responder->Answer({.status = 204, .headers = {{"Allow", allowed}}});
  } else if (request.method != (texts ? "POST" : "GET")) {
    responder->Answer(MethodNotAllowed(allowed));
  } else if (texts) {
    Texts(std::move(request), responder);
  } else if (path == "/health") {
    const nlohmann::ordered_json health = {
        {"status", "ok"}, {"node", {{"id", options_.node_id}, {"name", options_.node_name}}}};
    responder->Answer({.body = health.dump()});
  } else if (path == "/metrics") {
    responder->Answer(
        {.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = Metrics()});
  } else if (path == "/v1/models") {
    Models(responder);
  } else {
    Model(PercentDecoded(absl::StripPrefix(path, "/v1/models/")), responder);
  }
}

std::string OpenAiApi::Metrics() {
  HttpServer::Stats http;
  {
    absl::MutexLock lock(mu_);
    if (server_ != nullptr) http = server_->stats();
  }
  return MetricsText(coordinator_->Stats(), http,
                     {.requests = counters_->requests,
                      .running = counters_->running,
                      .failed = counters_->failed,
                      .client_gone = counters_->client_gone,
                      .tokens = counters_->tokens});
}

void OpenAiApi::Models(const Responder& responder) {
  gateway_->ListModels(
      absl::ZeroDuration(), [responder](const absl::StatusOr<Gateway::Models>& models) {
        if (!models.ok()) {
          responder->Answer(ErrorResponse(models.status()));
          return;
        }
        responder->Answer({.body = ModelsJson(**models, absl::ToUnixSeconds(absl::Now()))});
      });
}

void OpenAiApi::Model(const std::string& name, const Responder& responder) {
  FindModel(name, responder, [responder](const wire::ModelStatus& model) {
    responder->Answer({.body = ModelJson(model, absl::ToUnixSeconds(absl::Now()))});
  });
}

void OpenAiApi::FindModel(const std::string& name, const Responder& responder, OnModel then) {
  const auto answer = [this, name, responder, then](const absl::StatusOr<Gateway::Models>& models,
                                                    bool fresh) {
    absl::Status why = models.status();
    const wire::ModelStatus* model = models.ok() ? FindIn(**models, name, &why) : nullptr;
    if (model != nullptr) {
      then(*model);
    } else if (fresh || !models.ok()) {
      responder->Answer(ErrorResponse(why));
    } else {
      return false;
    }
    return true;
  };
  gateway_->ListModels(
      kModelsAge, [this, answer, responder](const absl::StatusOr<Gateway::Models>& models) {
        // From here on on a handler's thread: this one belongs to everybody who waits for a list.
        responder->Run([this, answer, responder, models] {
          if (answer(models, /*fresh=*/false)) return;
          // It may have been loaded since.
          gateway_->ListModels(absl::ZeroDuration(),
                               [answer, responder](const absl::StatusOr<Gateway::Models>& newer) {
                                 responder->Run([answer, newer] { answer(newer, /*fresh=*/true); });
                               });
        });
      });
}

void OpenAiApi::Texts(HttpRequest http, const Responder& responder) {
  const bool chat = http.path == "/v1/chat/completions";
  absl::StatusOr<ApiRequest> request = chat ? ParseChat(http.body) : ParseCompletion(http.body);
  http.body = std::string();
  if (!request.ok()) {
    ++counters_->requests;
    ++counters_->failed;
    responder->Answer(ErrorResponse(request.status()));
    return;
  }
  const std::string name = request->model;
  FindModel(name, responder,
            [this, request = *std::move(request), http = std::move(http), responder](
                const wire::ModelStatus& model) { Write(request, http, model, responder); });
}

void OpenAiApi::Write(ApiRequest request, const HttpRequest& http, const wire::ModelStatus& model,
                      const Responder& responder) {
  for (const wire::LogitBias& bias : request.sampler.logit_bias()) {
    if (model.n_vocab() == 0 || static_cast<uint32_t>(bias.token()) < model.n_vocab()) continue;
    responder->Answer(
        ErrorResponse(BadParam("logit_bias", absl::StrCat("there is no token ", bias.token(),
                                                          "; the model has ", model.n_vocab()))));
    return;
  }
  ApiCall::Options call;
  if (request.chat) {
    const auto chat_template = TemplateOf(model);
    if (!chat_template.ok()) {
      responder->Answer(ErrorResponse(chat_template.status()));
      return;
    }
    auto prompt = (*chat_template)->Render(request.messages, absl::Now());
    if (!prompt.ok()) {
      responder->Answer(ErrorResponse(prompt.status()));
      return;
    }
    request.messages.clear();
    request.prompts.push_back({.text = std::move(prompt->text)});
    call.parse_special = true;
    call.no_special = prompt->has_bos;
  }
  for (const ApiPrompt& prompt : request.prompts) {
    if (prompt.text.size() / kTokenBytesMax <= model.n_ctx() &&
        prompt.tokens.size() <= model.n_ctx()) {
      continue;
    }
    responder->Answer(ErrorResponse(WithErrorCode(
        BadParam(request.chat ? "messages" : "prompt",
                 absl::StrCat("longer than the context of ", model.n_ctx(), " tokens")),
        "context_length_exceeded")));
    return;
  }
  call.answer = {.chat = request.chat,
                 .id = NewAnswerId(request.chat),
                 .created_s = absl::ToUnixSeconds(absl::Now()),
                 .model = model.name()};
  call.request_id = http.id;
  call.client = http.client;
  call.model_id = absl::BytesToHexString(model.model_id());
  call.tokens_max = request.tokens_max.value_or(model.n_ctx());
  call.request = std::move(request);
  ApiCall::Start(gateway_, std::move(call), responder, counters_);
}

absl::StatusOr<std::shared_ptr<const ChatTemplate>> OpenAiApi::TemplateOf(
    const wire::ModelStatus& model) {
  if (model.chat_template().empty()) {
    return BadParam("model", absl::StrCat(model.name(),
                                          " comes without a chat template; it can do "
                                          "/v1/completions"));
  }
  const std::string key =
      absl::StrCat(model.bos_text(), "\n", model.eos_text(), "\n", model.chat_template());
  {
    absl::MutexLock lock(mu_);
    const auto known = templates_.find(key);
    if (known != templates_.end()) return known->second;
  }
  auto parsed = ChatTemplate::Parse(
      {.text = model.chat_template(), .bos = model.bos_text(), .eos = model.eos_text()});
  if (!parsed.ok()) return parsed.status();
  absl::MutexLock lock(mu_);
  if (templates_.size() >= kChatTemplatesMax) templates_.clear();
  templates_[key] = *parsed;
  return *std::move(parsed);
}

}  // namespace strata
