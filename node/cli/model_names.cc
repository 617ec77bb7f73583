#include "node/cli/model_names.h"

#include <filesystem>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "node/base/data_dir.h"
#include "node/cli/hub_commands.h"
#include "node/hub/catalogue.h"
#include "node/hub/foreign_format.h"
#include "node/hub/model_source.h"
#include "node/hub/near_names.h"
#include "transport/base/printable_text.h"

namespace strata {
namespace {

// A model that a node of a cluster has.
LocalModel LocalModelOf(const wire::KnownModel& known) {
  const wire::LocalModelFile& file = known.file();
  LocalModel model = {.name = file.name(), .path = file.path(), .place = file.place()};
  model.variant = {.quant = file.quant(),
                   .parts = {{.name = std::filesystem::path(file.path()).filename().string(),
                              .bytes = file.bytes()}},
                   .bytes = file.bytes()};
  if (const auto source = ParseModelSource(file.name()); source.ok()) {
    model.repo = source->repo;
    model.is_ollama = source->kind == ModelSource::Kind::kOllama;
    model.revision = model.is_ollama ? source->tag : source->revision;
  }
  return model;
}

}  // namespace

Aliases AliasesOf(const std::string& data_dir) {
  const auto folder = DataDir::PathOf(data_dir);
  if (!folder.ok()) return {};
  const auto note = [](const std::string& text) { PrintNote(text); };
  auto aliases = OpenAliases(*folder, note);
  if (aliases.ok()) return *std::move(aliases);
  note(absl::StrCat("no aliases: ", aliases.status().message()));
  return {};
}

std::string WithoutAlias(const std::string& name, const std::string& data_dir) {
  if (IsModelFile(name) || !CheckAliasName(name).ok()) return name;
  const std::string target = AliasTarget(AliasesOf(data_dir), name);
  return target.empty() ? name : target;
}

std::vector<std::string> NamesToMean(const std::string& data_dir,
                                     const wire::ListKnownModelsResponse& known) {
  std::vector<std::string> names;
  for (const auto& [alias, target] : AliasesOf(data_dir)) names.push_back(alias);
  for (LocalModel& model : FindLocalModels(ModelFoldersFromEnvironment())) {
    names.push_back(std::move(model.name));
  }
  for (const wire::KnownModel& model : known.models()) names.push_back(model.file().name());
  for (const CatalogueModel& model : Catalogue()) names.push_back(model.name);
  return names;
}

absl::StatusOr<wire::ModelSource> FindModelSource(const std::string& name,
                                                  const ModelNameOptions& options,
                                                  ModelSession* session) {
  const std::string meant = WithoutAlias(name, options.data_dir);
  wire::ModelSource found;
  const std::string path = ModelPathOf(meant);
  if (std::filesystem::path(path).is_absolute()) {
    if (const auto why = WhyNoModel(path)) return absl::InvalidArgumentError(*why);
    found.set_path(path);
    return found;
  }
  const auto source = ParseModelSource(CatalogueSource(meant).value_or(meant));
  if (!source.ok() && !absl::IsNotFound(source.status())) return source.status();
  const auto here = FindLocalModel(FindLocalModels(ModelFoldersFromEnvironment()), meant);
  if (absl::IsInvalidArgument(here.status())) return here.status();
  wire::ListKnownModelsResponse known;
  if (!here.ok()) {
    // Nodes of older versions do not know.
    known = (*session)->ListKnownModels().value_or(wire::ListKnownModelsResponse());
    std::vector<LocalModel> models;
    for (const wire::KnownModel& each : known.models()) models.push_back(LocalModelOf(each));
    const auto there = FindLocalModel(models, meant);
    if (absl::IsInvalidArgument(there.status())) return there.status();
    for (int i = 0; there.ok() && i < known.models_size(); ++i) {
      const LocalModel& each = models[static_cast<size_t>(i)];
      if (each.path != there->path || each.name != there->name) continue;
      found.set_path(there->path);
      found.set_node(absl::BytesToHexString(known.models(i).node()));
      PrintNote(absl::StrCat(there->name, " is on ", known.models(i).node_name()));
      return found;
    }
  }
  if (source.ok()) {
    return SourceByName(meant, {.offline = options.offline,
                                .cancelled = [session] { return session->interrupted(); },
                                .cluster = options.cluster,
                                .whole = options.whole});
  }
  if (here.ok()) {
    found.set_path(here->path);
    return found;
  }
  if (const auto why = WhyNoModel(meant)) return absl::InvalidArgumentError(*why);
  return absl::NotFoundError(absl::StrCat(
      PrintableText::OfPath(meant.substr(0, kModelNameBytesMax)).str(),
      ": no such file here, and no node has a model of that name",
      NearText(meant, NamesToMean(options.data_dir, known)),
      "; for a file on another machine give its full path there, and --node with the address of "
      "that machine's node"));
}

}  // namespace strata
