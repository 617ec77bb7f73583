#include "node/client/model_alias.h"

#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "node/hub/aliases.h"
#include "node/hub/catalogue.h"
#include "node/hub/foreign_format.h"
#include "node/hub/local_models.h"
#include "node/hub/model_source.h"
#include "node/hub/near_names.h"
#include "transport/base/printable_text.h"

namespace strata {
namespace {

// Names that models have here or in the cluster, loaded or not.
std::vector<std::string> NamesOfModels(CoordinatorClient* client) {
  std::vector<std::string> names;
  for (LocalModel& model : FindLocalModels(ModelFoldersFromEnvironment())) {
    names.push_back(std::move(model.name));
  }
  for (const CatalogueModel& model : Catalogue()) names.push_back(model.name);
  if (client == nullptr) return names;
  if (const auto loaded = client->ListModels(); loaded.ok()) {
    for (const wire::ModelStatus& model : loaded->models()) names.push_back(model.name());
  }
  if (const auto known = client->ListKnownModels(); known.ok()) {
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

}  // namespace

absl::StatusOr<std::string> GiveAlias(const std::string& data_dir, const ModelAlias& alias,
                                      CoordinatorClient* client,
                                      const std::function<void(const std::string&)>& note) {
  if (auto s = CheckAliasName(alias.name); !s.ok()) return s;
  const std::vector<std::string> names = NamesOfModels(client);
  if (absl::c_any_of(names, [&](const std::string& name) {
        return absl::EqualsIgnoreCase(name, alias.name);
      })) {
    return absl::InvalidArgumentError(
        absl::StrCat(alias.name, " is a model's own name: choose another one"));
  }
  const auto aliases = OpenAliases(data_dir, note);
  if (!aliases.ok()) return aliases.status();
  // An alias of an alias is refused below, with what that stands for.
  auto target = AliasTarget(*aliases, alias.model).empty()
                    ? TargetOf(alias.model, names)
                    : absl::StatusOr<std::string>(alias.model);
  if (!target.ok()) return target.status();
  if (auto s = AddAlias(data_dir, alias.name, *target, note); !s.ok()) return s;
  return target;
}

}  // namespace strata
