// The HTTP API of a node: OpenAI's /v1/models, /v1/completions and /v1/chat/completions, served
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
#include "node/chat/template_check.h"
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
    ApiTokens* tokens = nullptr;  // of the permitted clients; null: all are permitted
    TemplatePool::Options templates;
    std::vector<std::string> allowed_origins;  // of pages in browsers, besides this node's own
  };
  using OnStages = absl::AnyInvocable<void(std::vector<wire::StageStatus>) &&>;
  // Reports the stages that this node holds, on any thread; never blocks.
  using ListStages = std::function<void(OnStages)>;
  // REQUIRES: all pointers outlive the API, and the API outlives its HttpServer.
  OpenAiApi(Gateway* gateway, Coordinator* coordinator, Options options, ListStages list_stages);

  // HttpServer::Handler.
  void Handle(HttpRequest request, std::shared_ptr<HttpResponder> responder);

  // The server whose figures /metrics shows. REQUIRES: it outlives this; called once.
  void SetServer(const HttpServer* server);

 private:
  using Responder = std::shared_ptr<HttpResponder>;  // shared with the connection
  using OnModel = std::function<void(const wire::ModelStatus&)>;

  // Checks the request's token, and sets the request's client to the token's if there is one.
  // False: the request may not go on, and has been answered.
  bool Admit(HttpRequest* request, bool is_completion, const Responder& responder,
             RequestRecord* record);
  void Models(const Responder& responder);
  void Model(const std::string& name, const Responder& responder);
  using Record = std::shared_ptr<RequestRecord>;  // shared with the responder
  void Complete(HttpRequest http, const Responder& responder, const Record& record);
  void Write(ApiRequest request, const HttpRequest& http, const wire::ModelStatus& model,
             const Responder& responder, const Record& record);
  // REQUIRES: `call` has its prompts, for a model with a context of `n_ctx` tokens.
  void Start(CompletionSession::Options call, uint32_t n_ctx, const Responder& responder);
  void Health(const Responder& responder);
  void Metrics(const Responder& responder);

  // Calls `then` with the model that `name` means, on a handler's thread; else answers with an
  // error.
  void WithModel(const std::string& name, const Responder& responder, const OnModel& then);

  Gateway* const gateway_;
  Coordinator* const coordinator_;
  const Options options_;
  const ListStages list_stages_;
  const std::shared_ptr<ApiCounters> counters_;  // shared with sessions in flight

  absl::Mutex mu_;
  const HttpServer* server_ ABSL_GUARDED_BY(mu_) = nullptr;

  TemplateCheck template_check_;
  TemplatePool templates_;  // last: its threads use the others
};

}  // namespace strata
