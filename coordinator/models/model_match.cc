#include "coordinator/models/model_match.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "coordinator/request/request_status.h"
#include "shard/model/model_file.h"
#include "transport/base/short_id.h"
#include "transport/rpc/grpc_status.h"

namespace strata {
namespace {

constexpr size_t kIdCharsMax = 64;

std::string IdSuffix(absl::string_view id) { return absl::StrCat("@", ShortModelId(id)); }

bool IsHex(absl::string_view text) {
  return std::ranges::all_of(
      text, [](char c) { return absl::ascii_isxdigit(static_cast<unsigned char>(c)); });
}

// Whether the name looks as if it had an id in it.
bool LooksLikeShown(absl::string_view name) {
  if (name.size() == kIdCharsMax && IsHex(name)) return true;
  const size_t at = name.rfind('@');
  return at != name.npos && name.size() - at - 1 == kShortModelIdDigits &&
         IsHex(name.substr(at + 1));
}

std::string NameAndId(const wire::ModelStatus& model) {
  return absl::StrCat(model.name(), " (", ShortModelId(model.model_id()), ")");
}

}  // namespace

PrintableText ShownModelName(const PrintableText& name, absl::string_view id, bool is_shared) {
  if (!is_shared && !LooksLikeShown(name)) return name;
  return PrintableText::From(absl::StrCat(name, IdSuffix(id)),
                             kShownNameBytesMax + 1 + kShortModelIdDigits);
}

ModelMatch MatchModel(absl::string_view text, const ModelNames& model) {
  if (text.empty()) return ModelMatch::kByPart;
  const std::string id = absl::BytesToHexString(model.id);
  if (text.size() == kIdCharsMax && absl::EqualsIgnoreCase(text, id)) return ModelMatch::kById;
  // A name that was shown while another model had the same name still means this one.
  const std::string suffix = IdSuffix(model.id);
  absl::string_view name = model.name;
  absl::ConsumeSuffix(&name, suffix);
  if (text == model.name || text == absl::StrCat(name, suffix) || text == model.path) {
    return ModelMatch::kByName;
  }
  const std::string stem = ModelFileStem(model.path);
  const bool is_part = text == name || text == stem || text == PrintableText::From(stem) ||
                       text == PrintableText::OfPath(model.path) || HasIdPrefix(text, id);
  return is_part ? ModelMatch::kByPart : ModelMatch::kNone;
}

std::vector<size_t> MeantModels(absl::string_view text, const std::vector<ModelNames>& models) {
  std::vector<size_t> meant;
  ModelMatch best = ModelMatch::kNone;
  for (size_t i = 0; i < models.size(); ++i) {
    const ModelMatch match = MatchModel(text, models[i]);
    if (match == ModelMatch::kNone || match < best) continue;
    if (match > best) meant.clear();
    best = match;
    meant.push_back(i);
  }
  return meant;
}

absl::StatusOr<const wire::ModelStatus*> FindModel(const std::vector<wire::ModelStatus>& models,
                                                   absl::string_view text) {
  std::vector<ModelNames> names;
  std::vector<std::string> all;
  for (const wire::ModelStatus& model : models) {
    all.push_back(NameAndId(model));
    names.push_back({.name = model.name(), .path = model.source().path(), .id = model.model_id()});
  }
  const std::vector<size_t> meant = MeantModels(text, names);
  if (meant.size() == 1) {
    const wire::ModelStatus& model = models[meant.front()];
    if (model.stages_size() > 0 || model.status().code() == 0) return &model;
    return WithRetryAfterMs(absl::UnavailableError(FromWire(model.status()).message()),
                            kRetrySoonMs);
  }
  const PrintableText query = PrintableText::From(text);
  if (meant.empty()) {
    return absl::NotFoundError(
        absl::StrCat("the model \"", query, "\" does not exist; ",
                     all.empty() ? "none is loaded (strata load MODEL)"
                                 : absl::StrCat("loaded: ", absl::StrJoin(all, ", "))));
  }
  std::vector<std::string> several;
  for (const size_t i : meant) several.push_back(all[i]);
  return BadParam("model", absl::StrCat("\"", query, "\" means several models: ",
                                        absl::StrJoin(several, ", "), "; name one of these"));
}

}  // namespace strata
