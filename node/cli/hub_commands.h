// The verbs about models of this machine and of the hubs: `strata pull` fetches one, `strata
// models` lists what is here. `plan`, `load` and `run` fetch a model that is named so, too.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "node/client/cluster_client.h"
#include "node/hub/pull.h"

namespace strata {

struct PullByNameOptions {
  bool offline = false;
  std::function<bool()> cancelled;
  const ClientOptions* cluster = nullptr;  // whose free memory a quant is chosen by; null: none
};
// The file of the model that `name` means, fetched unless it is here, with notes and progress on
// stderr. kNotFound: no hub has such names (ParseModelSource()); else errors of Pull().
absl::StatusOr<PulledModel> PullByName(const std::string& name, const PullByNameOptions& by);

struct PullVerbOptions {
  std::string model;
  bool offline = false;
  bool json = false;
};
// Writes the path to stdout. Blocks.
absl::Status RunPull(const PullVerbOptions& options);

struct ModelsOptions {
  ClientOptions client;
  bool json = false;
};
// Blocks; a cluster that does not answer is no error.
absl::Status RunModels(const ModelsOptions& options);

}  // namespace strata
