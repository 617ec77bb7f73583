// Brings a model that is named to this machine: looks for it here, asks the hub which files it is,
// and fetches them. Blocks; one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "node/hub/hub_client.h"
#include "node/hub/local_models.h"
#include "node/hub/model_source.h"

namespace strata {

struct PullOptions {
  HubOptions hub;  // its `cancelled` and `note` are those of the whole
  ModelFolders folders;
  bool offline = false;               // what is not here is an error
  std::optional<uint64_t> bytes_max;  // what the model may have, where no quant is named
  int connections = 4;
  std::function<void(const std::string& label, uint64_t done, uint64_t total)> progress =
      [](const std::string&, uint64_t, uint64_t) {};  // done and total of all its files
};

struct PulledModel {
  std::string name;   // as LocalModel::name
  std::string path;   // of its first file
  std::string quant;  // empty: unknown
  uint64_t bytes = 0;
  bool was_here = false;
};

// kNotFound: there is no such model; for one that may be a path, that too is said. Errors of
// HubClient, ChooseQuant() and Download().
absl::StatusOr<PulledModel> Pull(const ModelSource& source, const PullOptions& options);

}  // namespace strata
