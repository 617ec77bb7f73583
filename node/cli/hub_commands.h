// The verbs about models of this machine and of the hubs: `strata pull` fetches one, `strata
// models` lists what is here. `plan`, `load` and `run` fetch a model that is named so, too.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "node/client/cluster_client.h"
#include "node/hub/pull.h"
#include "proto/coordinator.pb.h"

namespace strata {

struct PullByNameOptions {
  bool offline = false;
  std::function<bool()> cancelled;
  const ClientOptions* cluster = nullptr;  // whose free memory a quant is chosen by; null: none
  bool whole = false;  // SourceByName(): all of it to this machine, whatever the cluster is
};
// The file of the model that `name` means, fetched unless it is here, with notes and progress on
// stderr. kNotFound: no hub has such names (ParseModelSource()); else errors of Pull().
absl::StatusOr<PulledModel> PullByName(const std::string& name, const PullByNameOptions& by);
// As PullByName(), but where the cluster has several nodes and the server sends ranges nothing is
// fetched: each node is to fetch its own layers from `remote`.
absl::StatusOr<wire::ModelSource> SourceByName(const std::string& name,
                                               const PullByNameOptions& by);

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
