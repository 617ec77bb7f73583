#include "node/api/model_names.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "coordinator/models/model_match.h"
#include "shard/model/model_file.h"

namespace strata {
namespace {

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

bool IsLooselyNamed(const wire::ModelStatus& model, absl::string_view text) {
  const std::string stem = ModelFileStem(model.source().path());
  for (const absl::string_view name :
       {absl::string_view(model.name()), absl::string_view(stem), FileOf(model.source().path())}) {
    if (!name.empty() && absl::EqualsIgnoreCase(text, name)) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<const wire::ModelStatus*> FindModelOf(const std::vector<wire::ModelStatus>& models,
                                                     absl::string_view text, ModelNaming naming) {
  absl::StatusOr<const wire::ModelStatus*> found = FindModel(models, text);
  if (!absl::IsNotFound(found.status())) return found;
  for (const absl::string_view name : {text, Untagged(text)}) {
    if (name.empty()) continue;
    std::vector<const wire::ModelStatus*> meant;
    for (const wire::ModelStatus& model : models) {
      if (IsLooselyNamed(model, name)) meant.push_back(&model);
    }
    if (meant.size() == 1) return FindModel(models, meant.front()->name());
    if (const auto plain = FindModel(models, name); !absl::IsNotFound(plain.status())) return plain;
  }
  return naming.any_model && models.size() == 1 ? FindModel(models, "") : found;
}

}  // namespace strata
