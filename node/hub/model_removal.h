// Removes models that Strata has fetched, or begun to fetch. What other programs have is theirs:
// this says how they remove it. Blocks on the disk; one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "node/hub/local_models.h"
#include "proto/coordinator.pb.h"

namespace strata {

struct ModelRemoval {
  std::string name;
  std::string model_id;            // empty: it is unfinished, or cannot be read
  std::vector<std::string> files;  // all parts of the model, by their names once they are whole
  bool is_unfinished = false;
  uint64_t freed_bytes = 0;        // of those that have no other name on the disk
  std::vector<std::string> users;  // "LM Studio": programs whose folders link to these files
};

// The removal of the one model of Strata's own that `name` means, as FindLocalModel() has it, or
// the path of any of its parts. kNotFound: there is none; kFailedPrecondition: it is another
// program's, with its command; kInvalidArgument: several, which are listed.
absl::StatusOr<ModelRemoval> FindRemoval(const ModelFolders& folders, absl::string_view name);

// kFailedPrecondition: one of the loaded models has one of these files.
absl::Status CheckNotLoaded(const ModelRemoval& removal, const wire::ListModelsResponse& loaded);

// Whether one of the loaded models has that id.
bool IsLoaded(absl::string_view model_id, const wire::ListModelsResponse& loaded);

// Removes the files, what is beside them of a fetch, and folders in ModelFolders::strata that are
// empty then. kFailedPrecondition: another process is fetching it, and nothing is removed; else the
// system's errors, and the model is no whole one then.
absl::Status RemoveModel(const ModelFolders& folders, const ModelRemoval& removal);

}  // namespace strata
