// The HTTP API of a node: the dialects' paths, /health, and /metrics for Prometheus. Who may ask is
// decided here: origins, tokens.
//
//   client ─▶ HttpServer ─▶ HttpApi ─▶ a dialect's route ─▶ ApiBackend ─▶ Gateway
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/models/coordinator.h"
#include "node/api/api_backend.h"
#include "node/api/api_route.h"
#include "node/api/api_tokens.h"
#include "node/api/cross_origin.h"
#include "node/http/http_server.h"
#include "proto/node.pb.h"

namespace strata {

// Thread-safe.
class HttpApi {
 public:
  struct Options {
    std::string node_id;
    std::string node_name;
    ApiTokens* tokens = nullptr;     // of the permitted clients; null: there are none
    ApiScopes open = {};             // what clients without a token may do
    ErrorForm error_form = nullptr;  // of paths that no dialect has
    BrowserPolicy browsers;
  };
  using OnStages = absl::AnyInvocable<void(std::vector<wire::StageStatus>) &&>;
  // Reports the stages that this node holds, on any thread; never blocks.
  using ListStages = std::function<void(OnStages)>;
  // REQUIRES: all pointers outlive the API, and the API outlives its HttpServer.
  // `routes`: the dialects'.
  HttpApi(ApiBackend* backend, Coordinator* coordinator, Options options, ApiRoutes routes,
          ListStages list_stages);

  // HttpServer::Handler.
  void Handle(HttpRequest request, std::shared_ptr<HttpResponder> responder);

  // The server whose figures /metrics shows. REQUIRES: it outlives this; called once.
  void SetServer(const HttpServer* server);

 private:
  // Checks the request's token where the route needs one, and sets the request's client to the
  // token's if there is one.
  // False: the request may not go on, and has been answered.
  bool Admit(const ApiRoute& route, ApiExchange* exchange);
  void Health(const SharedExchange& exchange);
  void Metrics(const SharedExchange& exchange);

  ApiBackend* const backend_;
  Coordinator* const coordinator_;
  const Options options_;
  const ListStages list_stages_;
  ApiRoutes routes_;

  absl::Mutex mu_;
  const HttpServer* server_ ABSL_GUARDED_BY(mu_) = nullptr;
};

}  // namespace strata
