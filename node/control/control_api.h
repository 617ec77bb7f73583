// The control API, /api/strata/v1: what commands show of a cluster and do to it, by HTTP. It serves
// its own description in the form of OpenAPI, which is made of the same list as its routes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "nlohmann/json_fwd.hpp"
#include "node/api/api_route.h"
#include "node/control/cluster_feed.h"
#include "node/control/control_calls.h"
#include "node/control/control_request.h"

namespace strata {

// Thread-safe.
class ControlApi {
 public:
  struct Options {
    std::string node_id;
    std::string node_name;
    std::string token_file;  // of the API's tokens; empty: this node stores none
    bool view_only = false;  // nobody may change the cluster by this API
    ClusterFeed::Options feed;
    ControlCalls::NewClient new_client;
  };
  explicit ControlApi(Options options);

  // REQUIRES: this outlives them, and the HttpServer that serves them ends before this does.
  ApiRoutes Routes();
  nlohmann::json OpenApi() const;

 private:
  struct Operation {
    const char* method;
    const char* path;  // behind /api/strata/v1
    ApiScope scope;
    const char* summary;
    absl::Span<const ControlField> fields;  // of its body
    const char* answer;                     // the response's content type
    void (ControlApi::*run)(const SharedExchange& exchange);
    bool is_public = false;
  };
  std::vector<Operation> Operations() const;

  void Describe(const SharedExchange& exchange);
  void ShowSession(const SharedExchange& exchange);
  void OpenSession(const SharedExchange& exchange);
  void ShowCluster(const SharedExchange& exchange);
  void ShowModels(const SharedExchange& exchange);
  void WatchEvents(const SharedExchange& exchange);
  void Plan(const SharedExchange& exchange);
  void Load(const SharedExchange& exchange);
  void Unload(const SharedExchange& exchange);
  void Drain(const SharedExchange& exchange);

  // Runs `call` on a thread, or answers that there are too many.
  void Start(const SharedExchange& exchange,
             std::function<void(const SharedExchange&, CoordinatorClient*)> call);

  const Options options_;
  ClusterFeed feed_;
  ControlCalls calls_;
};

}  // namespace strata
