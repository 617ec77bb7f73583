// Which model a client means: the rule of coordinator/models/model_match.h, and behind it the ways
// in which clients of other servers name models. Pure.
//
// A name means, the first of these that means one:
//   - a loaded model, as FindModel() says;
//   - a model whose file a node has, by its name as `strata models` lists it or as its hub's other
//     programs write it (hf:org/repo:quant, hf.co/org/repo, org/repo, ollama:name:tag, name:tag),
//     by an alias, by its path, or by the name of its file;
//   - a loaded model by its name, file or stem of a file in any case or without a tag;
//   - with ModelNaming::any_model, the only one that is loaded.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/coordinator.pb.h"

namespace strata {

struct ModelNaming {
  bool any_model = false;   // a name that none has means the only model
  bool loads_known = true;  // a request loads the model that it names, where a node has its file
};

// Exactly one is set: a model that is loaded, or else one that can be.
struct FoundModel {
  const wire::ModelStatus* loaded = nullptr;
  const wire::KnownModel* known = nullptr;
};
// `known` as Coordinator.ListKnownModels returns them. Errors of FindModel(); kNotFound names those
// that are near, too.
absl::StatusOr<FoundModel> FindModelOrFile(const std::vector<wire::ModelStatus>& models,
                                           const wire::ListKnownModelsResponse& known,
                                           absl::string_view text, ModelNaming naming);

// The models as lists show them: those that are loaded, by their own names, then those that nodes
// have files of, by the files' names; of what is not loaded, a status of state UNKNOWN with its
// name, source and size.
std::vector<wire::ModelStatus> ListedModels(const std::vector<wire::ModelStatus>& models,
                                            const wire::ListKnownModelsResponse& known);

// Such a status.
wire::ModelStatus UnloadedModel(const wire::KnownModel& known);

}  // namespace strata
