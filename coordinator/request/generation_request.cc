#include "coordinator/request/generation_request.h"

#include "absl/strings/str_cat.h"

namespace strata {

const char* SpeculationName(wire::Speculation speculation) {
  switch (speculation) {
    case wire::SPECULATION_OFF:
      return "off";
    case wire::SPECULATION_NGRAM:
      return "ngram";
    case wire::SPECULATION_DRAFT:
      return "draft";
    default:
      return "auto";
  }
}

std::optional<wire::Speculation> SpeculationNamed(absl::string_view name) {
  for (const wire::Speculation each : {wire::SPECULATION_AUTO, wire::SPECULATION_OFF,
                                       wire::SPECULATION_NGRAM, wire::SPECULATION_DRAFT}) {
    if (name == SpeculationName(each)) return each;
  }
  return std::nullopt;
}

std::string PromptTooLong(uint64_t prompt_tokens, uint32_t n_ctx) {
  return absl::StrCat("the prompt is too long: it has ", prompt_tokens,
                      " tokens, this model's maximum context length is ", n_ctx,
                      " tokens, and the context window holds the prompt and its answer. Shorten "
                      "the prompt, or load the model with a larger --ctx");
}

}  // namespace strata
