// The HTTP API of a node: OpenAI's /v1/models, /v1/completions and /v1/chat/completions, answered
// by the cluster through node/gateway/gateway.h; /health, and /metrics for Prometheus.
//
//   client ─▶ HttpServer ─▶ OpenAiApi ─▶ openai_request ─▶ template_pool ─▶ CompletionSession ─▶
//   Gateway
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/models/coordinator.h"
#include "node/api/api_tokens.h"
#include "node/api/openai/completion_session.h"
#include "node/api/request_record.h"
#include "node/chat/template_pool.h"
#include "node/gateway/gateway.h"
#include "node/http/http_server.h"
#include "proto/node.pb.h"

namespace strata {

// Thread-safe.
class OpenAiApi {
 public:
  struct Options {
    std::string node_id;
    std::string node_name;
    ApiTokens* tokens = nullptr;  // of those who may use it; null: everybody may
    TemplatePool::Options templates;
    std::vector<std::string> allowed_origins;  // of pages in browsers, besides this node's own
  };
  // Says which stages this node holds, on any thread; never blocks.
  using OnStages = absl::AnyInvocable<void(std::vector<wire::StageStatus>) &&>;
  using AskStages = std::function<void(OnStages)>;
  // All outlive it, and it the server that it handles requests for.
  OpenAiApi(Gateway* gateway, Coordinator* coordinator, Options options, AskStages ask_stages);

  // HttpServer::Handler.
  void Handle(HttpRequest request, std::shared_ptr<HttpResponder> responder);

  // Whose figures /metrics shows; outlives this. Once.
  void SetServer(const HttpServer* server);

 private:
  using Responder = std::shared_ptr<HttpResponder>;  // shared with the connection
  using OnModel = std::function<void(const wire::ModelStatus&)>;

  // Whether the request may go on, as its token's client if it has one; else it is answered.
  bool Admit(HttpRequest* request, bool texts, const Responder& responder, RequestRecord* record);
  void Models(const Responder& responder);
  void Model(const std::string& name, const Responder& responder);
  using Record = std::shared_ptr<RequestRecord>;  // shared with the responder
  void Texts(HttpRequest http, const Responder& responder, const Record& record);
  void Write(ApiRequest request, const HttpRequest& http, const wire::ModelStatus& model,
             const Responder& responder, const Record& record);
  // Its prompts are there, for a model with a context of `n_ctx` tokens.
  void Start(CompletionSession::Options call, uint32_t n_ctx, const Responder& responder);
  void Health(const Responder& responder);
  void Metrics(const Responder& responder);

  // Calls `then` with the model that is meant, on a handler's thread; else answers.
  void WithModel(const std::string& name, const Responder& responder, const OnModel& then);

  Gateway* const gateway_;
  Coordinator* const coordinator_;
  const Options options_;
  const AskStages ask_stages_;
  const std::shared_ptr<ApiCounters> counters_;  // shared with calls under way

  absl::Mutex mu_;
  const HttpServer* server_ ABSL_GUARDED_BY(mu_) = nullptr;

  TemplatePool templates_;  // last: its threads use the others
};

}  // namespace strata
