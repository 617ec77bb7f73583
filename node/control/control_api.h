// The control API, /api/strata/v1: what commands show of a cluster and do to it, by HTTP. It serves
// its own description in the form of OpenAPI, which is made of the same list as its routes.
#pragma once

#include "nlohmann/json_fwd.hpp"
#include "node/api/api_route.h"
#include "node/control/cluster_feed.h"
#include "node/control/control_operation.h"

namespace strata {

// Thread-safe.
class ControlApi {
 public:
  struct Options {
    ControlNode node;
    bool view_only = false;  // nobody may change the cluster by this API
    ClusterFeed::Options feed;
  };
  explicit ControlApi(Options options);

  // REQUIRES: this outlives them, and the HttpServer that serves them ends before this does.
  ApiRoutes Routes();
  nlohmann::json OpenApi() const;

 private:
  ControlOperations AllOperations();

  void Describe(const SharedExchange& exchange);
  void ShowSession(const SharedExchange& exchange);
  void OpenSession(const SharedExchange& exchange);
  void ShowCluster(const SharedExchange& exchange);
  void ShowModels(const SharedExchange& exchange);
  void WatchEvents(const SharedExchange& exchange);
  void Examine(const SharedExchange& exchange);
  void Plan(const SharedExchange& exchange);
  void Load(const SharedExchange& exchange);
  void Unload(const SharedExchange& exchange);
  void Drain(const SharedExchange& exchange);

  const bool view_only_;
  ClusterFeed feed_;
  ControlContext context_;
  const ControlOperations operations_;
};

}  // namespace strata
