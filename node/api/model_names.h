// Which loaded model a client means: the rule of coordinator/models/model_match.h, and behind it
// the ways in which clients of other servers name models. Pure.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/coordinator.pb.h"

namespace strata {

struct ModelNaming {
  bool any_model = false;  // a name that none has means the only model
};

// As FindModel(). A name that means none by that rule means the one model whose name, file or stem
// of a file it is in any case, or without a tag, as in Ollama's "name:latest".
absl::StatusOr<const wire::ModelStatus*> FindModelOf(const std::vector<wire::ModelStatus>& models,
                                                     absl::string_view text, ModelNaming naming);

}  // namespace strata
