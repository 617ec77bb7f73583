// `strata cache`: the prompts that nodes keep on their disks. Blocks; one thread.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "node/client/cluster_client.h"
#include "proto/coordinator.pb.h"

namespace strata {

struct CacheVerbOptions {
  ClientOptions client;
  std::optional<std::string> model;  // of `clear`; unset: all
  bool json = false;
};
// Those of all nodes, or of this machine's data dir alone where no node answers.
absl::Status RunCacheShow(const CacheVerbOptions& options);
// kNotFound: nothing of the model is kept, and it is not loaded.
absl::Status RunCacheClear(const CacheVerbOptions& options);

// A table for people, or one line of JSON; each ends with a line's end.
std::string KeptPromptsTable(const wire::ListKeptPromptsResponse& kept);
std::string KeptPromptsJson(const wire::ListKeptPromptsResponse& kept);

}  // namespace strata
