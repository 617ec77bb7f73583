// The node's metrics, as Prometheus reads them (text format 0.0.4,
// https://prometheus.io/docs/instrumenting/exposition_formats/; names and units as
// https://prometheus.io/docs/practices/naming/ wants them). Pure.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/models/coordinator.h"
#include "node/api/completion_session.h"
#include "node/http/http_server.h"
#include "proto/node.pb.h"

namespace strata {

// Counted by the API.
struct ApiCounts {
  uint64_t requests = 0;  // for completions
  uint64_t running = 0;
  uint64_t failed = 0;
  uint64_t client_gone = 0;
  uint64_t tokens = 0;
  // As ApiCounters has them.
  std::array<uint64_t, ApiCounters::kFirstTokenMs.size() + 1> first_tokens = {};
  uint64_t first_token_us = 0;
};

struct MetricsView {
  std::string node_id;
  std::string node_name;
  std::vector<Coordinator::ModelStats> models;  // where this node coordinates
  std::vector<wire::StageStatus> stages;        // that this node holds
  HttpServer::Stats http;
  ApiCounts api;
};

std::string MetricsText(const MetricsView& view);

}  // namespace strata
