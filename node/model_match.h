// Which of the loaded models a person or a program means.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "proto/coordinator.pb.h"

namespace strata {

inline constexpr size_t kIdCharsMin = 4;  // of an id's start, to name something by it

inline bool StartsId(absl::string_view text, absl::string_view id_hex) {
  return text.size() >= kIdCharsMin && absl::StartsWithIgnoreCase(id_hex, text);
}

struct ModelNames {
  absl::string_view name;
  absl::string_view path;
  absl::string_view id;  // bytes
};
// By name, path, the file's name without its ending, or the start of the id in hex; empty: any.
bool MeansModel(absl::string_view text, const ModelNames& model);

// The one of `models` that `text` means. kInvalidArgument: several; kNotFound: none. The words name
// what there is, by names and ids.
absl::StatusOr<const wire::ModelStatus*> FindModel(const std::vector<wire::ModelStatus>& models,
                                                   absl::string_view text);

}  // namespace strata
