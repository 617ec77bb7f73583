// Finds a model that is named: looks for it here, asks the hub which files it is, and fetches them
// to this machine, or says where each node can. Blocks; one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "node/hub/hub_client.h"
#include "node/hub/local_models.h"
#include "node/hub/model_source.h"
#include "node/hub/quant_choice.h"
#include "proto/node.pb.h"
#include "transport/http/http_get.h"

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

// A model that may not be on this machine.
struct NamedModel {
  PulledModel model;  // as Pull() would return it; bytes 0: unknown
  // Where its files are, if it is not here.
  struct Part {
    WebRequest request;
    HubFile file;
    std::string path;  // here, once it is fetched
  };
  std::vector<Part> parts;
};

// kNotFound: there is no such model; for one that may be a path, that too is said. Errors of
// HubClient and ChooseQuant().
absl::StatusOr<NamedModel> FindNamedModel(const ModelSource& source, const PullOptions& options);

// Fetches what is not here of it. Errors of Download().
absl::StatusOr<PulledModel> FetchNamedModel(const NamedModel& named, const ModelSource& source,
                                            const PullOptions& options);
// Both.
absl::StatusOr<PulledModel> Pull(const ModelSource& source, const PullOptions& options);

// Whether a model can be fetched by the nodes, each its own part: asks the server of its files for
// ranges, and fills in lengths and ETags where nobody knows more. nullopt: it can not. Errors of
// Download().
absl::StatusOr<std::optional<wire::RemoteModel>> RemoteModelOf(const NamedModel& named,
                                                               const ModelSource& source,
                                                               const PullOptions& options);

}  // namespace strata
