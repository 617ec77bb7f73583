#include "node/hub/model_removal.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "node/hub/part_file.h"
#include "shard/model/model_file.h"
#include "transport/base/printable_text.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kOwnPlace = "Strata";

// The command by which the program that has the model removes it.
std::string CommandOf(const LocalModel& model) {
  const std::string path = PrintableText::OfPath(model.path).str();
  if (model.place == "Hugging Face") return absl::StrCat("hf cache rm model/", model.repo);
  if (model.place == "Ollama") {
    return absl::StrCat("ollama rm ", absl::StripPrefix(model.name, "ollama:"));
  }
  if (model.place == "LM Studio") return "its list of models, My Models";
  return absl::StrCat("removing the file ", path);
}

bool IsMeant(const LocalModel& model, absl::string_view name) {
  const std::vector<std::string> files = FilesOf(model);
  const bool is_file = absl::c_any_of(files, [&](const std::string& file) {
    return file == name || absl::c_linear_search(PartFilesOf(file), name);
  });
  return (model.place == kOwnPlace && is_file) || FindLocalModel({model}, name).ok();
}

}  // namespace

absl::StatusOr<ModelRemoval> FindRemoval(const ModelFolders& folders, absl::string_view name) {
  if (name.empty()) {
    return absl::NotFoundError(
        "the model's name is empty; strata models lists those that are here");
  }
  const std::string shown = PrintableText::OfPath(name.substr(0, kModelNameBytesMax)).str();
  std::vector<ModelRemoval> own;
  for (const LocalModel& model : FindLocalModels({.strata = folders.strata})) {
    if (IsMeant(model, name)) own.push_back({.name = model.name, .files = FilesOf(model)});
  }
  for (const UnfinishedModel& unfinished : FindUnfinishedModels(folders)) {
    if (!IsMeant(unfinished.model, name)) continue;
    own.push_back({.name = unfinished.model.name,
                   .files = FilesOf(unfinished.model),
                   .is_unfinished = true,
                   .freed_bytes = unfinished.bytes_here});
  }
  ModelFolders of_others = folders;
  of_others.strata.clear();
  const std::vector<LocalModel> others = FindLocalModels(of_others);
  if (own.empty()) {
    for (const LocalModel& model : others) {
      if (!IsMeant(model, name)) continue;
      return absl::FailedPreconditionError(
          absl::StrCat(shown, " is in the folder of ", model.place,
                       ", which removes it by: ", CommandOf(model)));
    }
    return absl::NotFoundError(absl::StrCat(shown, " is no model that Strata has here"));
  }
  if (own.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        shown, " may be any of ",
        absl::StrJoin(own, ", ",
                      [](std::string* out, const ModelRemoval& removal) {
                        absl::StrAppend(out, removal.name, " (",
                                        removal.is_unfinished ? "unfinished, " : "",
                                        PrintableText::OfPath(removal.files[0]).str(), ")");
                      }),
        ": name one, or its file"));
  }
  ModelRemoval removal = std::move(own[0]);
  if (removal.is_unfinished) return removal;
  if (const auto file = ModelFile::Open(removal.files[0]); file.ok()) {
    removal.model_id = (*file)->id();
  }
  for (const std::string& file : removal.files) {
    struct stat info{};
    if (lstat(file.c_str(), &info) != 0) return absl::ErrnoToStatus(errno, file);
    if (S_ISREG(info.st_mode) && info.st_nlink == 1) {
      removal.freed_bytes += static_cast<uint64_t>(info.st_size);
    }
  }
  for (const LocalModel& other : others) {
    std::error_code error;
    const bool is_same = fs::is_symlink(other.path, error) &&
                         fs::equivalent(other.path, removal.files[0], error) && !error;
    if (is_same && !absl::c_linear_search(removal.users, other.place)) {
      removal.users.push_back(other.place);
    }
  }
  return removal;
}

absl::Status CheckNotLoaded(const ModelRemoval& removal, const wire::ListModelsResponse& loaded) {
  for (const wire::ModelStatus& model : loaded.models()) {
    const bool is_it = absl::c_any_of(removal.files, [&](const std::string& file) {
      std::error_code error;
      return fs::equivalent(file, model.source().path(), error) && !error;
    });
    if (is_it) {
      return absl::FailedPreconditionError(
          absl::StrCat(removal.name, " is loaded; strata unload ", model.name(), " makes it free"));
    }
  }
  return absl::OkStatus();
}

bool IsLoaded(absl::string_view model_id, const wire::ListModelsResponse& loaded) {
  return absl::c_any_of(loaded.models(), [&](const wire::ModelStatus& model) {
    return model.model_id() == model_id;
  });
}

absl::Status RemoveModel(const ModelFolders& folders, const ModelRemoval& removal) {
  // Nobody may fetch it meanwhile.
  std::vector<PartFile> leftovers;
  for (const std::string& file : removal.files) {
    auto leftover = PartFile::OpenLeftover(file);
    if (leftover.ok()) {
      leftovers.push_back(*std::move(leftover));
    } else if (!absl::IsNotFound(leftover.status())) {
      return leftover.status();
    }
  }
  for (PartFile& leftover : leftovers) leftover.Discard();
  const fs::path root = fs::path(folders.strata).lexically_normal();
  for (const std::string& file : removal.files) {
    std::vector<std::string> names = PartFilesOf(file);
    names.push_back(file);
    for (const std::string& name : names) {
      std::error_code error;
      if (!fs::remove(name, error) && error) {
        return absl::ErrnoToStatus(error.value(), PrintableText::OfPath(name).str());
      }
    }
    // Up to the folder of all models, as long as nothing else is in it.
    for (fs::path folder = fs::path(file).lexically_normal().parent_path();
         folder != root && folder.has_relative_path(); folder = folder.parent_path()) {
      if (rmdir(folder.c_str()) != 0) break;
    }
  }
  return absl::OkStatus();
}

}  // namespace strata
