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
#include "transport/base/printable_text.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kOwnPlace = "Strata";

std::vector<std::string> FilesOf(const LocalModel& model) {
  // Parts are named relative to one folder, which the first one's path ends the name of.
  const std::string& first = model.variant.parts[0].name;
  std::vector<std::string> files;
  for (const HubFile& part : model.variant.parts) {
    files.push_back(absl::StrCat(absl::StripSuffix(model.path, first), part.name));
  }
  return files;
}

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

std::vector<LocalModel> Meant(absl::Span<const LocalModel> models, absl::string_view name) {
  std::vector<LocalModel> meant;
  for (const LocalModel& model : models) {
    const bool is_part = model.place == kOwnPlace && absl::c_linear_search(FilesOf(model), name);
    if (is_part || FindLocalModel({model}, name).ok()) meant.push_back(model);
  }
  return meant;
}

}  // namespace

absl::StatusOr<ModelRemoval> FindRemoval(const ModelFolders& folders, absl::string_view name) {
  const std::string shown = PrintableText::OfPath(name.substr(0, kModelNameBytesMax)).str();
  const std::vector<LocalModel> own = Meant(FindLocalModels({.strata = folders.strata}), name);
  ModelFolders of_others = folders;
  of_others.strata.clear();
  const std::vector<LocalModel> others = FindLocalModels(of_others);
  if (own.empty()) {
    for (const LocalModel& model : Meant(others, name)) {
      return absl::FailedPreconditionError(
          absl::StrCat(shown, " is in the folder of ", model.place,
                       ", which removes it by: ", CommandOf(model)));
    }
    return absl::NotFoundError(absl::StrCat(shown, " is no model that Strata has here"));
  }
  if (own.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(shown, " may be any of ",
                     absl::StrJoin(own, ", ",
                                   [](std::string* out, const LocalModel& model) {
                                     absl::StrAppend(out, model.name, " (",
                                                     PrintableText::OfPath(model.path).str(), ")");
                                   }),
                     ": name one, or its file"));
  }
  ModelRemoval removal = {.name = own[0].name, .files = FilesOf(own[0])};
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

absl::Status RemoveModel(const ModelFolders& folders, const ModelRemoval& removal) {
  const fs::path root = fs::path(folders.strata).lexically_normal();
  for (const std::string& file : removal.files) {
    std::error_code error;
    if (!fs::remove(file, error) && error) {
      return absl::ErrnoToStatus(error.value(), PrintableText::OfPath(file).str());
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
