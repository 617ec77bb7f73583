#include "node/api/openai/openai_api.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/random/random.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "coordinator/models/model_match.h"
#include "coordinator/request/request_status.h"
#include "nlohmann/json.hpp"
#include "node/api/cross_origin.h"
#include "node/api/openai/metrics.h"
#include "node/api/openai/openai_error.h"
#include "node/api/openai/openai_request.h"
#include "node/api/openai/openai_response.h"
#include "node/api/openai/openai_tools.h"
#include "transport/base/utf8.h"
#include "transport/base/wall_clock.h"

namespace strata {
namespace {

// The age up to which a list of the cluster's models is used.
constexpr absl::Duration kModelsAge = absl::Seconds(1);
// An upper bound on a token's bytes, more than any vocabulary has: a prompt that exceeds the
// context is refused before a stage has spent its time on it.
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

// Checks that the tokens which a request names exist. `n_vocab` 0: not known.
absl::Status CheckTokens(const wire::SamplerSettings& sampler, uint32_t n_vocab) {
  const auto check = [n_vocab](const char* param, int32_t token) {
    if (n_vocab == 0 || static_cast<uint32_t>(token) < n_vocab) return absl::OkStatus();
    return BadParam(param, absl::StrCat("there is no token ", token, "; the model has ", n_vocab));
  };
  absl::Status status;
  for (const wire::LogitBias& bias : sampler.logit_bias()) {
    if (status.ok()) status = check("logit_bias", bias.token());
  }
  for (const int32_t token : sampler.stop_tokens()) {
    if (status.ok()) status = check("stop_token_ids", token);
  }
  return status;
}

ChatTemplate::Source TemplateOf(const wire::ModelStatus& model, bool with_tools) {
  const bool other = with_tools && !model.tools_chat_template().empty();
  return {.text = other ? model.tools_chat_template() : model.chat_template(),
          .bos = model.bos_text(),
          .eos = model.eos_text()};
}

HttpResponse MethodNotAllowed(const char* allowed) {
  HttpResponse response = ErrorResponse(405, absl::StrCat("this path takes ", allowed));
  response.headers.emplace_back("Allow", allowed);
  return response;
}

}  // namespace

OpenAiApi::OpenAiApi(Gateway* gateway, Coordinator* coordinator, Options options,
                     ListStages list_stages)
    : gateway_(gateway),
      coordinator_(coordinator),
      options_(std::move(options)),
      list_stages_(std::move(list_stages)),
      counters_(std::make_shared<ApiCounters>()),
      template_check_(&templates_),
      templates_(options_.templates) {}

void OpenAiApi::SetServer(const HttpServer* server) {
  absl::MutexLock lock(mu_);
  server_ = server;
}

bool OpenAiApi::Admit(HttpRequest* request, bool is_completion, const Responder& responder,
                      RequestRecord* record) {
  if (options_.tokens == nullptr) return true;
  constexpr absl::string_view kScheme = "Bearer ";  // RFC 6750
  absl::string_view text = request->Header("authorization");
  if (absl::StartsWithIgnoreCase(text, kScheme)) {
    text.remove_prefix(kScheme.size());
  } else if (const absl::string_view key = request->Header("x-api-key"); !key.empty()) {
    text = key;
  }
  ApiTokens::AdmitResult result =
      options_.tokens->Admit({.text = text, .stream = is_completion, .now = WallNow()});
  if (result.status.ok()) {
    // Fair queueing goes by the client; no address has a space.
    if (const std::string& name = result.grant.name(); !name.empty()) {
      request->client = absl::StrCat("token ", name);
    }
    record->SetTokenGrant(std::move(result.grant));
    return true;
  }
  HttpResponse response;
  if (absl::IsUnauthenticated(result.status)) {
    response = WrongTokenResponse(result.status.message());
  } else if (absl::IsResourceExhausted(result.status)) {
    response = ErrorResponse(429, std::string(result.status.message()));
    if (result.retry_after > absl::ZeroDuration()) {
      const int64_t ms =
          absl::ToInt64Milliseconds(absl::Ceil(result.retry_after, absl::Milliseconds(1)));
      response.headers.emplace_back("Retry-After", absl::StrCat((ms + 999) / 1000));
      response.headers.emplace_back("retry-after-ms", absl::StrCat(ms));
    }
  } else {
    LOG_EVERY_N_SEC(ERROR, 10) << "HTTP API: " << result.status.message();
    response = ErrorResponse(503, "tokens cannot be checked at present; the node's log says why");
  }
  responder->Answer(std::move(response));
  return false;
}

void OpenAiApi::Handle(HttpRequest request, std::shared_ptr<HttpResponder> unrecorded) {
  const auto record = std::make_shared<RequestRecord>(request);  // shared with the responder
  const Responder responder =
      Recorded(WithOrigin(std::move(unrecorded), request, options_.allowed_origins), record);
  if (absl::Status status = CheckBrowser(request, options_.allowed_origins); !status.ok()) {
    responder->Answer(ErrorResponse(403, std::string(status.message())));
    return;
  }
  const std::string& path = request.path;
  const bool is_completion = path == "/v1/completions" || path == "/v1/chat/completions";
  const bool is_read = path == "/health" || path == "/metrics" || path == "/v1/models" ||
                       absl::StartsWith(path, "/v1/models/");
  const char* allowed = is_completion ? "POST, OPTIONS" : "GET, HEAD, OPTIONS";
  if (IsPreflight(request, options_.allowed_origins)) {  // which never has a token
    responder->Answer(AnswerPreflight(request, allowed));
    return;
  }
  // Health checks have no token.
  if (path != "/health" && !Admit(&request, is_completion, responder, record.get())) return;
  if (!is_completion && !is_read) {
    responder->Answer(ErrorResponse(404, absl::StrCat("there is nothing at ", path)));
    return;
  }
  if (request.method == "OPTIONS") {
    responder->Answer({.status = 204, .headers = {{"Allow", allowed}}});
  } else if (request.method != (is_completion ? "POST" : "GET")) {
    responder->Answer(MethodNotAllowed(allowed));
  } else if (is_completion) {
    Complete(std::move(request), responder, record);
  } else if (path == "/health") {
    Health(responder);
  } else if (path == "/metrics") {
    Metrics(responder);
  } else if (path == "/v1/models") {
    Models(responder);
  } else {
    Model(PercentDecoded(absl::StripPrefix(path, "/v1/models/")), responder);
  }
}

// Whether this node can forward a request to a coordinator.
void OpenAiApi::Health(const Responder& responder) {
  const Coordinator::Leadership leadership = coordinator_->leadership();
  const bool knows = leadership.mine || !leadership.address.empty();
  nlohmann::ordered_json health = {{"status", knows ? "ok" : "unavailable"}};
  if (!knows) health["reason"] = "no node coordinates at present";
  if (options_.tokens == nullptr) {  // else clients without a token would see it
    health["node"] = {{"id", options_.node_id}, {"name", options_.node_name}};
    health["coordinates"] = leadership.mine;
    if (!leadership.refused.empty()) health["reason"] = leadership.refused;
    for (const std::string& problem : coordinator_->Problems()) {
      health["problems"].push_back(ValidUtf8(problem));
    }
  }
  HttpResponse response = {.status = knows ? 200 : 503, .body = health.dump()};
  if (!knows) response.headers.emplace_back("Retry-After", "1");
  responder->Answer(std::move(response));
}

void OpenAiApi::Metrics(const Responder& responder) {
  list_stages_([this, responder](std::vector<wire::StageStatus> stages) {
    responder->Run([this, responder, stages = std::move(stages)]() mutable {
      MetricsView view = {.node_id = options_.node_id,
                          .node_name = options_.node_name,
                          .models = coordinator_->Stats(),
                          .stages = std::move(stages)};
      {
        absl::MutexLock lock(mu_);
        if (server_ != nullptr) view.http = server_->stats();
      }
      view.api = {.requests = counters_->requests,
                  .running = counters_->running,
                  .failed = counters_->failed,
                  .client_gone = counters_->client_gone,
                  .tokens = counters_->tokens,
                  .first_token_us = counters_->first_token_us};
      std::ranges::copy(counters_->first_tokens, view.api.first_tokens.begin());
      responder->Answer(
          {.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = MetricsText(view)});
    });
  });
}

void OpenAiApi::Models(const Responder& responder) {
  gateway_->ListModels(
      absl::ZeroDuration(), [this, responder](const absl::StatusOr<Gateway::Models>& models) {
        if (!models.ok()) {
          responder->Answer(ErrorResponse(models.status()));
          return;
        }
        std::vector<ChatTemplate::Source> sources;
        for (const wire::ModelStatus& model : **models) {
          sources.push_back(TemplateOf(model, /*with_tools=*/false));
        }
        template_check_.Check(std::move(sources), [responder, models = *models](
                                                      std::vector<ChatSupport> chat) {
          responder->Answer({.body = ModelsJson(*models, chat, absl::ToUnixSeconds(WallNow()))});
        });
      });
}

void OpenAiApi::Model(const std::string& name, const Responder& responder) {
  WithModel(name, responder, [this, responder](const wire::ModelStatus& model) {
    template_check_.Check(
        {TemplateOf(model, /*with_tools=*/false)},
        [responder, model](const std::vector<ChatSupport>& chat) {
          responder->Answer({.body = ModelJson(model, chat[0], absl::ToUnixSeconds(WallNow()))});
        });
  });
}

void OpenAiApi::WithModel(const std::string& name, const Responder& responder,
                          const OnModel& then) {
  const auto answer = [name, responder, then](const absl::StatusOr<Gateway::Models>& models,
                                              bool fresh) {
    const absl::StatusOr<const wire::ModelStatus*> model =
        models.ok() ? FindModel(**models, name)
                    : absl::StatusOr<const wire::ModelStatus*>(models.status());
    if (model.ok()) {
      then(**model);
    } else if (fresh || !models.ok()) {
      responder->Answer(ErrorResponse(model.status()));
    } else {
      return false;
    }
    return true;
  };
  gateway_->ListModels(
      kModelsAge, [this, answer, responder](const absl::StatusOr<Gateway::Models>& models) {
        // Continue on a handler's thread: this one serves all calls that wait for a list.
        responder->Run([this, answer, responder, models] {
          if (answer(models, /*fresh=*/false)) return;
          // The model may have been loaded since.
          gateway_->ListModels(absl::ZeroDuration(),
                               [answer, responder](const absl::StatusOr<Gateway::Models>& newer) {
                                 responder->Run([answer, newer] { answer(newer, /*fresh=*/true); });
                               });
        });
      });
}

void OpenAiApi::Complete(HttpRequest http, const Responder& responder, const Record& record) {
  const absl::string_view coding = http.Header("content-encoding");
  if (!coding.empty() && !absl::EqualsIgnoreCase(coding, "identity")) {
    ++counters_->requests;
    ++counters_->failed;
    HttpResponse response = ErrorResponse(
        415,
        absl::StrCat("Content-Encoding ", coding, " is not supported: send the body as it is"));
    response.headers.emplace_back("Accept-Encoding", "identity");  // RFC 7694
    responder->Answer(std::move(response));
    return;
  }
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
  WithModel(
      name, responder,
      [this, request = *std::move(request), http = std::move(http), responder,
       record](const wire::ModelStatus& model) { Write(request, http, model, responder, record); });
}

void OpenAiApi::Write(ApiRequest request, const HttpRequest& http, const wire::ModelStatus& model,
                      const Responder& responder, const Record& record) {
  if (absl::Status status = CheckTokens(request.sampler, model.n_vocab()); !status.ok()) {
    responder->Answer(ErrorResponse(status));
    return;
  }
  CompletionSession::Options call;
  const ChatTemplate::Source source = TemplateOf(model, request.tools.offered());
  call.answer = {.chat = request.chat,
                 .id = NewAnswerId(request.chat),
                 .created_s = absl::ToUnixSeconds(WallNow()),
                 .model = model.name()};
  call.request_id = http.id;
  call.record = record;
  call.client = http.client;
  call.model_id = absl::BytesToHexString(model.model_id());
  call.tokens_max = request.tokens_max.value_or(model.n_ctx());
  call.request = std::move(request);
  call.no_special = call.request.no_special;
  if (!call.request.chat) {
    if (absl::Status status = Constrain({}, &call.request); !status.ok()) {
      responder->Answer(ErrorResponse(status));
      return;
    }
    Start(std::move(call), model.n_ctx(), responder);
    return;
  }
  if (source.text.empty()) {
    responder->Answer(ErrorResponse(BadParam(
        "model", absl::StrCat(model.name(), " has no chat template; use /v1/completions"))));
    return;
  }
  TemplateRequest render = {.source = source,
                            .messages = std::move(call.request.messages),
                            .tools = call.request.tools,
                            .now = WallNow(),
                            .options = {.ends_with_opening = call.request.ends_with_opening,
                                        .continues_last = call.request.continues_last,
                                        .variables = std::move(call.request.template_variables)}};
  call.request.messages.clear();
  TemplateTurns::Owner owner = {.model = call.model_id, .client = call.client};
  templates_.Render(
      std::move(owner), std::move(render),
      [this, call = std::move(call), n_ctx = model.n_ctx(), responder](auto prompt) mutable {
        if (!prompt.ok()) {
          responder->Answer(ErrorResponse(prompt.status()));
          return;
        }
        call.format = DecodeChatFormat(prompt->format);
        if (absl::Status status = Constrain(call.format, &call.request); !status.ok()) {
          responder->Answer(ErrorResponse(status));
          return;
        }
        // Some templates open a thought though none is wanted.
        if (call.request.thought_tokens_max == 0 && !call.format.is_harmony &&
            call.format.thoughts.IsOpenIn(prompt->text)) {
          absl::StrAppend(&prompt->text, ThoughtEnding(call.format, /*may_call=*/true));
        }
        call.request.prompts.push_back({.text = std::move(prompt->text)});
        call.parse_special = true;
        call.no_special = prompt->has_bos;
        Start(std::move(call), n_ctx, responder);
      });
}

void OpenAiApi::Start(CompletionSession::Options call, uint32_t n_ctx, const Responder& responder) {
  for (const ApiPrompt& prompt : call.request.prompts) {
    if (prompt.text.size() / kTokenBytesMax <= n_ctx && prompt.tokens.size() <= n_ctx) continue;
    responder->Answer(ErrorResponse(WithErrorCode(
        BadParam(call.request.chat ? "messages" : "prompt",
                 absl::StrCat("the prompt is too long: it exceeds the context window; "
                              "this model's maximum context length is ",
                              n_ctx, " tokens")),
        "context_length_exceeded")));
    return;
  }
  uint64_t bytes = 0;
  for (const ApiPrompt& prompt : call.request.prompts) {
    bytes += (prompt.text.size() + prompt.tokens.size() * sizeof(int32_t)) * call.request.n;
  }
  if (bytes > kApiPromptBytesMax) {
    responder->Answer(ErrorResponse(
        BadParam("n", absl::StrCat("times the prompt is ", bytes >> 20, " MiB; at most ",
                                   kApiPromptBytesMax >> 20, " are taken at a time"))));
    return;
  }
  CompletionSession::Start(gateway_, std::move(call), responder, counters_);
}

}  // namespace strata
