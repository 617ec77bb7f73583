// The model that a person means: by a file, an alias, a short name of the catalogue, a name of a
// model that this machine or another node of the cluster has, or a name that a hub has. Blocks; one
// thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "node/client/model_session.h"
#include "node/hub/aliases.h"
#include "node/hub/local_models.h"
#include "proto/coordinator.pb.h"

namespace strata {

// Without a folder of the options this machine's own; empty where there is none, or its file cannot
// be read, which is said on stderr.
Aliases AliasesOf(const std::string& data_dir);

// The target of the alias `name`; else `name` itself, and a file that is here before all.
std::string WithoutAlias(const std::string& name, const std::string& data_dir);

// Names that a person may have meant: those of models here, aliases and the catalogue, and of
// `known`.
std::vector<std::string> NamesToMean(const std::string& data_dir,
                                     const wire::ListKnownModelsResponse& known);

struct ModelNameOptions {
  std::string data_dir;
  bool offline = false;                    // asks no hub
  const ClientOptions* cluster = nullptr;  // as PullByNameOptions::cluster
  bool whole = false;                      // as PullByNameOptions::whole
};
// The place where the cluster finds the model that `name` means: a file, fetched first if only a
// hub has it, or the hub. An absolute path may be one of the machine whose node is called.
// kNotFound: nobody has it, with the names that are near; kInvalidArgument: it is ambiguous, or in
// another format; else errors of SourceByName().
absl::StatusOr<wire::ModelSource> FindModelSource(const std::string& name,
                                                  const ModelNameOptions& options,
                                                  ModelSession* session);

}  // namespace strata
