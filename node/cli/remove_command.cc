#include "node/cli/remove_command.h"

#include <unistd.h>

#include <memory>

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
#include "shard/model/model_file.h"

namespace strata {
namespace {

using Cluster = std::unique_ptr<CoordinatorClient>;

// kFailedPrecondition: the cluster has the model loaded, or wants it; or it cannot be asked.
absl::Status CheckUnused(const ModelRemoval& removal, const absl::StatusOr<Cluster>& cluster) {
  if (absl::IsUnavailable(cluster.status())) return absl::OkStatus();
  const auto models = cluster.ok() ? (*cluster)->ListModels()
                                   : absl::StatusOr<wire::ListModelsResponse>(cluster.status());
  if (!models.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "whether ", removal.name, " is loaded cannot be asked: ", models.status().message()));
  }
  return CheckNotLoaded(removal, *models);
}

// Of the removed model, unless it is loaded from another file.
void ClearPrompts(const std::string& model_id, const absl::StatusOr<Cluster>& cluster,
                  const std::string& data_dir) {
  const auto loaded = cluster.ok() ? (*cluster)->ListModels()
                                   : absl::StatusOr<wire::ListModelsResponse>(cluster.status());
  if (loaded.ok() && IsLoaded(model_id, *loaded)) return;
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
  const auto cluster = CoordinatorClient::Connect(options.client);
  std::string model_id;
  if (!removal->is_unfinished) {
    if (auto s = CheckUnused(*removal, cluster); !s.ok()) return s;
    if (const auto file = ModelFile::Open(removal->files[0]); file.ok()) model_id = (*file)->id();
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
  if (!model_id.empty()) ClearPrompts(model_id, cluster, options.client.data_dir);
  return WriteToStdout(options.json
                           ? JsonLine({{"removed", removal->name},
                                       {"files", removal->files},
                                       {"freed_bytes", removal->freed_bytes}})
                           : absl::StrCat(shown, " is removed, ", BytesString(removal->freed_bytes),
                                          " are free again\n"));
}

}  // namespace strata
