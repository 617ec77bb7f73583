// Names of models, and which loaded model a name of a person or a program refers to: the one rule
// for names, of the API, `strata status`, `load`, `unload`, `run` and the metrics.
//
//   - A model's name is its general.name, else that of its file (ModelFile::name()).
//   - What is shown, and is its id in the API, is the name; where other loaded models have the same
//     name, it is "NAME@" and the first twelve hex digits of the model's id. It is never another's.
//   - A model is meant by what is shown of it, by its path, by the whole of its id or, where that
//     means one model alone, by its name, its file's name or the start of its id.
//
// Pure; any thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "proto/coordinator.pb.h"
#include "transport/base/printable_text.h"

namespace strata {

inline constexpr size_t kIdCharsMin = 4;  // of an id's start, to name something by it

inline bool HasIdPrefix(absl::string_view text, absl::string_view id_hex) {
  return text.size() >= kIdCharsMin && absl::StartsWithIgnoreCase(id_hex, text);
}

// The shown name of a model; `is_shared`: another one has this name, too. A name that looks as if
// it had an id already gets the model's own id.
PrintableText ShownModelName(const PrintableText& name, absl::string_view id, bool is_shared);

struct ModelNames {
  absl::string_view name;  // as it is shown
  absl::string_view path;  // bytes
  absl::string_view id;    // bytes
};
// How surely `text` means the model: of several matches the surest ones count. An empty text means
// any.
enum class ModelMatch { kNone, kByPart, kByName, kById };
ModelMatch MatchModel(absl::string_view text, const ModelNames& model);

// The indexes in `models` that `text` means: none, one, or several that it cannot tell apart.
std::vector<size_t> MeantModels(absl::string_view text, const std::vector<ModelNames>& models);

// The one of `models` that `text` means. kInvalidArgument: several; kNotFound: none; kUnavailable
// (RetryAfterMs): it should be loaded, and has no stages on any node now, with the reason. The
// messages list the models, by names and ids.
absl::StatusOr<const wire::ModelStatus*> FindModel(const std::vector<wire::ModelStatus>& models,
                                                   absl::string_view text);

}  // namespace strata
