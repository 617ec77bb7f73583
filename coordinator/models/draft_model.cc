#include "coordinator/models/draft_model.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace strata {
namespace {

// Models of one family pad their vocabularies to different sizes (llama.cpp,
// common/speculative.cpp, takes the same limit).
constexpr size_t kPaddingMax = 128;

}  // namespace

absl::Status CheckDraftModel(const ModelFile& model, const ModelFile& draft) {
  if (model.id() == draft.id()) {
    return absl::InvalidArgumentError("--draft: a model cannot draft its own tokens");
  }
  const auto differ = [&](absl::string_view how) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--draft: ", draft.name(), " cannot draft the tokens of ", model.name(),
        ", whose vocabulary is another: ", how, "; take a smaller model of the same family"));
  };
  const std::vector<absl::string_view> tokens = model.header().GetStrings("tokenizer.ggml.tokens");
  const std::vector<absl::string_view> drafts = draft.header().GetStrings("tokenizer.ggml.tokens");
  const size_t both = std::min(tokens.size(), drafts.size());
  if (std::max(tokens.size(), drafts.size()) - both > kPaddingMax) {
    return differ(absl::StrCat(drafts.size(), " tokens instead of ", tokens.size()));
  }
  const auto end = tokens.begin() + static_cast<ptrdiff_t>(both);
  const auto [token, other] = std::mismatch(tokens.begin(), end, drafts.begin());
  if (token == end) return absl::OkStatus();
  return differ(absl::StrCat("token ", token - tokens.begin(), " differs"));
}

}  // namespace strata
