// Draft models: smaller ones, loaded beside a model, that draft its tokens
// (LoadModelRequest.draft).
#pragma once

#include "absl/status/status.h"
#include "shard/model/model_file.h"

namespace strata {

// OK: `draft` can draft for `model`, whose vocabulary it has. Else kInvalidArgument. Pure.
absl::Status CheckDraftModel(const ModelFile& model, const ModelFile& draft);

}  // namespace strata
