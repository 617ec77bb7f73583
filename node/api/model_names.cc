#include "node/api/model_names.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "coordinator/models/model_match.h"
#include "coordinator/request/request_status.h"
#include "node/hub/model_source.h"
#include "node/hub/near_names.h"
#include "node/hub/quant_choice.h"
#include "shard/model/model_file.h"
#include "transport/base/printable_text.h"

namespace strata {
namespace {

bool IsLoadedFrom(const wire::ModelStatus& model, const wire::KnownModel& known) {
  return model.source().path() == known.file().path() &&
         model.source().node() == absl::BytesToHexString(known.node());
}

absl::string_view FileOf(absl::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == path.npos ? path : path.substr(slash + 1);
}

// The name behind which a tag stands, as of "name:tag"; empty: there is no tag.
absl::string_view Untagged(absl::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == text.npos || absl::StrContains(text.substr(colon), '/')) return "";
  return text.substr(0, colon);
}

bool IsFileName(absl::string_view text, absl::string_view path) {
  const std::string stem = ModelFileStem(path);
  return absl::EqualsIgnoreCase(text, stem) || absl::EqualsIgnoreCase(text, FileOf(path));
}

bool IsLooselyNamed(const wire::ModelStatus& model, absl::string_view text) {
  return !text.empty() &&
         (absl::EqualsIgnoreCase(text, model.name()) || IsFileName(text, model.source().path()));
}

// The loaded model that `text` loosely means.
absl::StatusOr<const wire::ModelStatus*> FindLoosely(const std::vector<wire::ModelStatus>& models,
                                                     absl::string_view text) {
  for (const absl::string_view name : {text, Untagged(text)}) {
    if (name.empty()) continue;
    std::vector<const wire::ModelStatus*> meant;
    for (const wire::ModelStatus& model : models) {
      if (IsLooselyNamed(model, name)) meant.push_back(&model);
    }
    if (meant.size() == 1) return FindModel(models, meant.front()->name());
    if (const auto plain = FindModel(models, name); !absl::IsNotFound(plain.status())) return plain;
  }
  return absl::NotFoundError("");
}

// `text` as the lists of known models write names of its hub; empty: it is none.
std::vector<std::string> HubNames(absl::string_view text) {
  std::vector<std::string> names;
  if (text.size() > kModelNameBytesMax) return names;
  for (const std::string& form : {std::string(text), absl::StrCat("ollama:", text)}) {
    if (const auto source = ParseModelSource(form); source.ok()) names.push_back(source->Name());
  }
  return names;
}

ModelMatch MatchKnownModel(absl::string_view text, const std::vector<std::string>& hub_names,
                           const wire::LocalModelFile& file) {
  ModelMatch match = MatchModel(text, {.name = file.name(), .path = file.path(), .id = ""});
  const auto is_name = [&](const std::string& name) {
    return absl::EqualsIgnoreCase(name, file.name());
  };
  if (absl::c_linear_search(file.aliases(), text) || absl::c_any_of(hub_names, is_name)) {
    match = std::max(match, ModelMatch::kByName);
  }
  const auto is_repo = [&](const std::string& name) {
    return absl::StartsWithIgnoreCase(file.name(), absl::StrCat(name, ":"));
  };
  if (IsFileName(text, file.path()) || absl::c_any_of(hub_names, is_repo)) {
    match = std::max(match, ModelMatch::kByPart);
  }
  return match;
}

// The files that `text` means best.
std::vector<const wire::KnownModel*> MeantFiles(const wire::ListKnownModelsResponse& known,
                                                absl::string_view text) {
  const std::vector<std::string> hub_names = HubNames(text);
  std::vector<const wire::KnownModel*> meant;
  ModelMatch best = ModelMatch::kNone;
  for (const wire::KnownModel& model : known.models()) {
    const ModelMatch match = MatchKnownModel(text, hub_names, model.file());
    if (match == ModelMatch::kNone || match < best) continue;
    if (match > best) meant.clear();
    best = match;
    meant.push_back(&model);
  }
  return meant;
}

// One of the files that a name means alike: that of a loaded model, else of a repository's quants
// the best one. kInvalidArgument: they are different models.
absl::StatusOr<FoundModel> ChooseAmong(const std::vector<wire::ModelStatus>& models,
                                       const std::vector<const wire::KnownModel*>& meant,
                                       absl::string_view text) {
  for (const wire::KnownModel* const known : meant) {
    for (const wire::ModelStatus& model : models) {
      if (!IsLoadedFrom(model, *known)) continue;
      const auto loaded = FindModel(models, model.name());
      if (!loaded.ok()) return loaded.status();
      return FoundModel{.loaded = *loaded};
    }
  }
  std::vector<ModelVariant> variants;
  std::vector<std::string> names;
  bool is_one_repo = true;
  const absl::string_view repo = Untagged(meant.front()->file().name());
  for (const wire::KnownModel* const known : meant) {
    const wire::LocalModelFile& file = known->file();
    if (absl::c_linear_search(names, file.name())) continue;  // another node has it, too
    names.push_back(file.name());
    is_one_repo = is_one_repo && !repo.empty() && Untagged(file.name()) == repo;
    variants.push_back(
        {.quant = file.quant(), .parts = {{.name = file.name()}}, .bytes = file.bytes()});
  }
  if (names.size() == 1) return FoundModel{.known = meant.front()};
  absl::c_stable_sort(
      variants, [](const ModelVariant& a, const ModelVariant& b) { return a.bytes < b.bytes; });
  absl::StatusOr<QuantChoice> choice = absl::InvalidArgumentError("they are not of one repository");
  if (is_one_repo) choice = ChooseQuant(variants, "", "", std::nullopt);
  if (!choice.ok()) {
    return BadParam("model", absl::StrCat("\"", PrintableText::From(text),
                                          "\" means several models: ", absl::StrJoin(names, ", "),
                                          "; name one of these"));
  }
  for (const wire::KnownModel* const known : meant) {
    if (known->file().name() == choice->variant.parts[0].name) return FoundModel{.known = known};
  }
  return absl::InternalError("a chosen model is not among those known");
}

}  // namespace

wire::ModelStatus UnloadedModel(const wire::KnownModel& known) {
  wire::ModelStatus model;
  model.set_name(known.file().name());
  model.mutable_source()->set_path(known.file().path());
  model.mutable_source()->set_node(absl::BytesToHexString(known.node()));
  model.set_tensor_bytes(known.file().bytes());
  return model;
}

std::vector<wire::ModelStatus> ListedModels(const std::vector<wire::ModelStatus>& models,
                                            const wire::ListKnownModelsResponse& known) {
  std::vector<wire::ModelStatus> listed = models;
  std::set<std::string> names;
  for (const wire::ModelStatus& model : models) names.insert(model.name());
  for (const wire::KnownModel& file : known.models()) {
    const auto loaded = absl::c_find_if(
        models, [&](const wire::ModelStatus& model) { return IsLoadedFrom(model, file); });
    if (!names.insert(file.file().name()).second) continue;
    listed.push_back(loaded == models.end() ? UnloadedModel(file) : *loaded);
    listed.back().set_name(file.file().name());
  }
  return listed;
}

absl::StatusOr<FoundModel> FindModelOrFile(const std::vector<wire::ModelStatus>& models,
                                           const wire::ListKnownModelsResponse& known,
                                           absl::string_view text, ModelNaming naming) {
  const auto as_loaded =
      [](const absl::StatusOr<const wire::ModelStatus*>& found) -> absl::StatusOr<FoundModel> {
    if (!found.ok()) return found.status();
    return FoundModel{.loaded = *found};
  };
  const auto found = FindModel(models, text);
  if (!absl::IsNotFound(found.status())) return as_loaded(found);
  // A tag of a repository is its quant, which counts.
  const bool is_repo = absl::StrContains(text, '/') || absl::StartsWith(text, "hf:");
  for (const absl::string_view name : {text, is_repo ? "" : Untagged(text)}) {
    if (name.empty()) continue;
    const auto meant = MeantFiles(known, name);
    if (!meant.empty()) return ChooseAmong(models, meant, text);
  }
  const auto loose = FindLoosely(models, text);
  if (!absl::IsNotFound(loose.status())) return as_loaded(loose);
  if (naming.any_model && models.size() == 1) return as_loaded(FindModel(models, ""));
  std::vector<std::string> names;
  for (const wire::KnownModel& model : known.models()) names.push_back(model.file().name());
  const std::string near = text.empty() ? "" : NearText(text, names);
  if (near.empty()) return found.status();
  return absl::NotFoundError(
      absl::StrCat("the model \"", PrintableText::From(text), "\" does not exist", near));
}

}  // namespace strata
