// A regular expression as a grammar for the sampler: the whole output matches it. Pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "shard/sampling/gbnf.h"

namespace strata {

// kInvalidArgument: it is no regular expression, no text matches it, it is too large, or no grammar
// can express it.
absl::StatusOr<GbnfGrammar> RegexGrammar(absl::string_view pattern);

}  // namespace strata
