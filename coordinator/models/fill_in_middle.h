// The control tokens with which a model is asked for the text between two others, as its file has
// them: Bavarian et al. 2022, "Efficient Training of Language Models to Fill in the Middle",
// https://arxiv.org/abs/2207.14255.
#pragma once

#include <optional>

#include "proto/coordinator.pb.h"
#include "shard/model/gguf.h"

namespace strata {

// Tokens that the header names, else those of known names in its vocabulary. nullopt: a prefix, a
// suffix or a middle is missing.
std::optional<wire::FillInMiddle> FillInMiddleOf(const GgufHeader& header);

}  // namespace strata
