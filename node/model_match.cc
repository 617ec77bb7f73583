#include "node/model_match.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "node/openai_error.h"
#include "shard/model_file.h"

namespace strata {
namespace {

constexpr size_t kIdCharsShown = 12;

std::string NameAndId(const wire::ModelStatus& model) {
  return absl::StrCat(model.name(), " (",
                      absl::BytesToHexString(model.model_id()).substr(0, kIdCharsShown), ")");
}

}  // namespace

bool MeansModel(absl::string_view text, const ModelNames& model) {
  return text.empty() || text == model.name || text == model.path ||
         text == ModelFileStem(model.path) || StartsId(text, absl::BytesToHexString(model.id));
}

absl::StatusOr<const wire::ModelStatus*> FindModel(const std::vector<wire::ModelStatus>& models,
                                                   absl::string_view text) {
  std::vector<const wire::ModelStatus*> found;
  std::vector<std::string> all, meant;
  for (const wire::ModelStatus& model : models) {
    all.push_back(NameAndId(model));
    if (MeansModel(text,
                   {.name = model.name(), .path = model.source().path(), .id = model.model_id()})) {
      found.push_back(&model);
      meant.push_back(all.back());
    }
  }
  if (found.size() == 1) return found.front();
  if (found.empty()) {
    return absl::NotFoundError(
        absl::StrCat("the model \"", text, "\" does not exist; ",
                     all.empty() ? "none is loaded (strata load MODEL)"
                                 : absl::StrCat("loaded: ", absl::StrJoin(all, ", "))));
  }
  return BadParam("model",
                  absl::StrCat("\"", text, "\" means several models: ", absl::StrJoin(meant, ", "),
                               "; name the one you mean by its id"));
}

}  // namespace strata
