// Prompts that ask a model for the text between two others. Pure.
#pragma once

#include "absl/status/status.h"
#include "node/api/api_request.h"
#include "proto/coordinator.pb.h"

namespace strata {

// Makes each prompt of the request, which has an infill, one with the model's tokens, in the order
// prefix, suffix, middle. kInvalidArgument (BadParam): the model has no such tokens, or a
// prompt comes as tokens.
absl::Status FillPrompts(const wire::ModelStatus& model, ApiRequest* request);

}  // namespace strata
