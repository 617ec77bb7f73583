// The grammar of a request's output, from its schemas and tools and the model's form of calls.
// Pure.
#pragma once

#include "absl/status/status.h"
#include "node/api/api_request.h"
#include "node/chat/chat_format.h"

namespace strata {

// Sets the sampler's grammar, and what of a strict request is to be checked at the end
// (answer_check.h). kInvalidArgument (BadParam): a schema has no grammar.
absl::Status Constrain(const ChatFormat& format, ApiRequest* request);

}  // namespace strata
