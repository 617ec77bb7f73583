#include "node/cli/remove_command.h"

#include <unistd.h>

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "node/base/data_dir.h"
#include "node/base/json_line.h"
#include "node/base/progress.h"
#include "node/base/standard_input.h"
#include "node/base/standard_output.h"
#include "node/cli/model_names.h"
#include "node/client/coordinator_client.h"
#include "node/client/model_session.h"
#include "node/hub/model_removal.h"
#include "node/hub/near_names.h"
#include "shard/kv_store/kv_folder.h"

namespace strata {
namespace {

using Cluster = std::unique_ptr<CoordinatorClient>;

// The models that the cluster has loaded, or wants; none where there is no cluster.
// kFailedPrecondition: it cannot be asked.
absl::StatusOr<wire::ListModelsResponse> LoadedModels(const absl::StatusOr<Cluster>& cluster,
                                                      const std::string& name) {
  if (absl::IsUnavailable(cluster.status())) return wire::ListModelsResponse();
  auto models = cluster.ok() ? (*cluster)->ListModels()
                             : absl::StatusOr<wire::ListModelsResponse>(cluster.status());
  if (models.ok()) return models;
  return absl::FailedPreconditionError(
      absl::StrCat("whether ", name, " is loaded cannot be asked: ", models.status().message()));
}

// Of the removed model, in the cluster, or where there is none on this machine.
void ClearPrompts(const std::string& model_id, const absl::StatusOr<Cluster>& cluster,
                  const std::string& data_dir) {
  if (!cluster.ok()) {
    const auto folder = DataDir::PathOf(data_dir);
    if (folder.ok()) ClearKvFolders(KvFolderPath(*folder), model_id);
    return;
  }
  const auto cleared = (*cluster)->ClearKeptPrompts(absl::BytesToHexString(model_id));
  if (!cleared.ok() && !absl::IsNotFound(cleared.status())) {
    PrintNote(absl::StrCat("prompts of it may be kept still: ", cleared.status().message()));
  }
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
  absl::StatusOr<Cluster> cluster = absl::UnavailableError("not needed");
  wire::ListModelsResponse loaded;
  if (!removal->is_unfinished) {
    cluster = CoordinatorClient::Connect(options.client);
    auto models = LoadedModels(cluster, removal->name);
    if (!models.ok()) return models.status();
    loaded = *std::move(models);
    if (auto s = CheckNotLoaded(*removal, loaded); !s.ok()) return s;
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
  // It may be loaded from another file.
  if (!removal->model_id.empty() && !IsLoaded(removal->model_id, loaded)) {
    ClearPrompts(removal->model_id, cluster, options.client.data_dir);
  }
  return WriteToStdout(options.json
                           ? JsonLine({{"removed", removal->name},
                                       {"files", removal->files},
                                       {"freed_bytes", removal->freed_bytes}})
                           : absl::StrCat(shown, " is removed, ", BytesString(removal->freed_bytes),
                                          " are free again\n"));
}

}  // namespace strata
