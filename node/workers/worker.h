// `strata worker`: the process that holds the stages of one device. Started and watched by a node
// (worker_process.h); not for people.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "shard/serving/link_selector.h"
#include "transport/rpc/request_log.h"

namespace strata {

struct WorkerRunOptions {
  std::string tls_folder;  // of its node's certificates (node_security.h); empty: with `open` only
  bool open = false;       // everything is plain
  std::string listen = "127.0.0.1:0";
  uint32_t n_threads = 1;
  LinkSelectorOptions links;
  bool log_requests = false;  // to stdout, for the node
  LogFormat log_format = LogFormat::kText;
};

// `links` as arguments of `strata worker`.
std::vector<std::string> LinkArgs(const LinkSelectorOptions& links);

// Prints {"worker":{"address":"host:port","pid":…}} to stdout and serves until SIGTERM or the end
// of stdin. Blocks. kUnavailable: the address cannot be listened on.
absl::Status RunWorker(const WorkerRunOptions& options);

}  // namespace strata
