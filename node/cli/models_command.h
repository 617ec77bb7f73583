// `strata models`: the models that the cluster and this machine have, those of the catalogue, and
// those that Hugging Face finds, each with whether this cluster can run it. Blocks; one thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "node/client/cluster_client.h"

namespace strata {

struct ModelsOptions {
  ClientOptions client;
  bool catalogue = false;  // its models instead
  bool json = false;
};
// Without a cluster, the models of this machine; that is no error. Rows are written as the cluster
// has planned them; what it has not within ten seconds is left open.
absl::Status RunModels(const ModelsOptions& options);

inline constexpr int kFoundModelsMax = 50;

struct ModelsSearchOptions {
  ClientOptions client;
  std::vector<std::string> words;
  int count = 10;  // of models, at most kFoundModelsMax
  bool offline = false;
  bool json = false;
};
// kFailedPrecondition: offline; else errors of HubClient::Search().
absl::Status RunModelsSearch(const ModelsSearchOptions& options);

}  // namespace strata
