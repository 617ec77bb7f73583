#include "node/cli/remove_command.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "node/base/json_line.h"
#include "node/base/progress.h"
#include "node/base/standard_input.h"
#include "node/base/standard_output.h"
#include "node/cli/model_names.h"
#include "node/client/coordinator_client.h"
#include "node/hub/model_removal.h"
#include "node/hub/near_names.h"

namespace strata {
namespace {

// kFailedPrecondition: a cluster has the model loaded, or wants it; or one is there that cannot be
// asked.
absl::Status CheckUnused(const ModelRemoval& removal, const ClientOptions& options) {
  const auto client = CoordinatorClient::Connect(options);
  if (absl::IsUnavailable(client.status())) return absl::OkStatus();  // there is no cluster
  const auto models = client.ok() ? (*client)->ListModels()
                                  : absl::StatusOr<wire::ListModelsResponse>(client.status());
  if (!models.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "whether ", removal.name, " is loaded cannot be asked: ", models.status().message()));
  }
  return CheckNotLoaded(removal, *models);
}

}  // namespace

absl::Status RunRemove(const RemoveOptions& options) {
  const ModelFolders folders = ModelFoldersFromEnvironment();
  const std::string meant = ModelPathOf(WithoutAlias(options.model, options.client.data_dir));
  const auto removal = FindRemoval(folders, meant);
  if (absl::IsNotFound(removal.status())) {
    std::vector<std::string> names;
    for (const LocalModel& model : FindLocalModels({.strata = folders.strata})) {
      names.push_back(model.name);
    }
    for (const UnfinishedModel& unfinished : FindUnfinishedModels(folders)) {
      names.push_back(unfinished.model.name);
    }
    return absl::NotFoundError(absl::StrCat(removal.status().message(), NearText(meant, names)));
  }
  if (!removal.ok()) return removal.status();
  if (!removal->is_unfinished) {
    if (auto s = CheckUnused(*removal, options.client); !s.ok()) return s;
  }
  const std::string shown = removal->name + (removal->is_unfinished ? " (unfinished)" : "");
  if (!options.yes) {
    if (isatty(STDIN_FILENO) == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("this would remove ", shown, "; --yes does so without a terminal"));
    }
    const std::string question = absl::StrCat(
        "Remove ", shown, " (", removal->files.size(),
        removal->files.size() == 1 ? " file, " : " files, ", BytesString(removal->freed_bytes),
        " freed)",
        removal->users.empty()
            ? ""
            : absl::StrCat(", which ", absl::StrJoin(removal->users, ", "), " uses by a link"),
        "?");
    if (!Confirm(question)) return absl::CancelledError("nothing is removed");
  }
  if (auto s = RemoveModel(folders, *removal); !s.ok()) return s;
  return WriteToStdout(options.json
                           ? JsonLine({{"removed", removal->name},
                                       {"files", removal->files},
                                       {"freed_bytes", removal->freed_bytes}})
                           : absl::StrCat(shown, " is removed, ", BytesString(removal->freed_bytes),
                                          " are free again\n"));
}

}  // namespace strata
