// `strata demo`: a cluster of several nodes on this machine shares one model and generates text.
// The nodes are child processes, each with a worker of its own; the demo is their client, as
// `strata run` is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "node/client/model_session.h"

namespace strata {

struct DemoOptions {
  GenerateFlags generation;
  uint32_t nodes = 0;          // 0: one for each stage of `cuts`, else 3
  std::string model;           // path of a GGUF; empty: the embedded demo model
  std::vector<uint32_t> cuts;  // empty: cut by bytes
  uint32_t n_threads = 0;      // per node; 0: the cores divided by the nodes
  bool verbose = false;
};

inline constexpr uint32_t kDemoNodesMax = 64;

// Runs to the end of the generation and stops every process it started, in all cases. Blocks. Text
// and JSON go to stdout, all else to stderr. kCancelled: interrupted; else the error, with the
// node.
absl::Status RunDemo(DemoOptions options);

}  // namespace strata
