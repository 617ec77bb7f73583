// What this node does, as Prometheus reads it (text format 0.0.4,
// https://prometheus.io/docs/instrumenting/exposition_formats/). Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "node/coordinator.h"
#include "node/http_server.h"

namespace strata {

// Counted by the API.
struct ApiCounts {
  uint64_t requests = 0;  // for texts
  uint64_t running = 0;
  uint64_t failed = 0;
  uint64_t client_gone = 0;
  uint64_t tokens = 0;
};

std::string MetricsText(const std::vector<Coordinator::ModelStats>& models,
                        const HttpServer::Stats& http, const ApiCounts& api);

}  // namespace strata
