// `strata pull` fetches a model from a hub; `plan`, `load` and `run` fetch one that is named so,
// too.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
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
// The file of the model that `name` means, also in the catalogue, fetched unless it is here, with
// notes and progress on stderr; but where the cluster has several nodes and the server sends ranges
// nothing is fetched: each node is to fetch its own layers from `remote`. kNotFound: no hub has
// such names (ParseModelSource()); else errors of Pull().
absl::StatusOr<wire::ModelSource> SourceByName(const std::string& name,
                                               const PullByNameOptions& by);

struct PullVerbOptions {
  std::string model;
  std::string data_dir;  // of the aliases; empty: DataDir::Default()
  bool offline = false;
  bool json = false;
};
// Writes the path to stdout. Blocks.
absl::Status RunPull(const PullVerbOptions& options);

// The part of the nodes' free memory that a model may have, which is said; the rest is for its
// caches and activations. nullopt: nobody knows.
std::optional<uint64_t> RoomForModel(const ClientOptions& options);

}  // namespace strata
