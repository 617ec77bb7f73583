#include "node/cli/alias_command.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "node/base/data_dir.h"
#include "node/base/standard_output.h"
#include "node/cli/model_names.h"
#include "node/client/coordinator_client.h"
#include "node/hub/aliases.h"
#include "node/hub/catalogue.h"
#include "node/hub/foreign_format.h"
#include "node/hub/model_source.h"
#include "node/hub/near_names.h"
#include "transport/base/printable_text.h"
#include "transport/base/text_table.h"

namespace strata {
namespace {

constexpr int64_t kLookMs = 300;  // for a cluster, whose names are good to know, but no more

// Names that models have here or in the cluster, loaded or not.
std::vector<std::string> NamesOfModels(ClientOptions options) {
  std::vector<std::string> names;
  for (LocalModel& model : FindLocalModels(ModelFoldersFromEnvironment())) {
    names.push_back(std::move(model.name));
  }
  for (const CatalogueModel& model : Catalogue()) names.push_back(model.name);
  options.look_ms = std::min(options.look_ms, kLookMs);
  const auto client = CoordinatorClient::Connect(options);
  if (!client.ok()) return names;
  if (const auto loaded = (*client)->ListModels(); loaded.ok()) {
    for (const wire::ModelStatus& model : loaded->models()) names.push_back(model.name());
  }
  if (const auto known = (*client)->ListKnownModels(); known.ok()) {
    for (const wire::KnownModel& model : known->models()) names.push_back(model.file().name());
  }
  return names;
}

// The text that the alias is kept with: a file's path is absolute.
absl::StatusOr<std::string> TargetOf(const std::string& model,
                                     const std::vector<std::string>& names) {
  if (IsModelFile(model)) {
    if (const auto why = WhyNoModel(model)) return absl::InvalidArgumentError(*why);
    return ModelPathOf(model);
  }
  const auto source = ParseModelSource(CatalogueSource(model).value_or(model));
  if (source.ok()) return model;
  if (!absl::IsNotFound(source.status())) return source.status();
  if (absl::c_any_of(
          names, [&](const std::string& name) { return absl::EqualsIgnoreCase(name, model); })) {
    return model;
  }
  return absl::NotFoundError(absl::StrCat(
      PrintableText::OfPath(model.substr(0, kModelNameBytesMax)).str(),
      ": no such file here, and no model of that name is known", NearText(model, names)));
}

absl::Status ListAliases(const std::string& folder, bool json) {
  const auto aliases = OpenAliases(folder, PrintNote);
  if (!aliases.ok()) return aliases.status();
  if (json) return WriteToStdout(nlohmann::json{{"aliases", *aliases}}.dump() + "\n");
  if (aliases->empty()) {
    PrintNote("there are no aliases; strata alias NAME MODEL makes one");
    return absl::OkStatus();
  }
  std::vector<std::vector<std::string>> rows = {{"ALIAS", "MODEL"}};
  for (const auto& [name, target] : *aliases) rows.push_back({name, target});
  return WriteToStdout(TextTable(std::move(rows)).Text());
}

}  // namespace

absl::Status RunAlias(const AliasOptions& options) {
  const auto folder = DataDir::PathOf(options.client.data_dir);
  if (!folder.ok()) return folder.status();
  if (!options.remove.empty()) {
    if (auto s = RemoveAlias(*folder, options.remove, PrintNote); !s.ok()) return s;
    return WriteToStdout(options.json ? nlohmann::json{{"removed", options.remove}}.dump() + "\n"
                                      : absl::StrCat(options.remove, " is no alias any more\n"));
  }
  if (options.name.empty()) return ListAliases(*folder, options.json);
  if (auto s = CheckAliasName(options.name); !s.ok()) return s;
  const std::vector<std::string> names = NamesOfModels(options.client);
  if (absl::c_any_of(names, [&](const std::string& name) {
        return absl::EqualsIgnoreCase(name, options.name);
      })) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.name, " is a model's own name: choose another one"));
  }
  // An alias of an alias is refused below, with what that stands for.
  const auto target = AliasTarget(AliasesOf(options.client.data_dir), options.model).empty()
                          ? TargetOf(options.model, names)
                          : absl::StatusOr<std::string>(options.model);
  if (!target.ok()) return target.status();
  if (auto s = AddAlias(*folder, options.name, *target, PrintNote); !s.ok()) return s;
  return WriteToStdout(
      options.json ? nlohmann::json{{"alias", options.name}, {"model", *target}}.dump() + "\n"
                   : absl::StrCat(options.name, " stands for ", *target, "\n"));
}

}  // namespace strata
