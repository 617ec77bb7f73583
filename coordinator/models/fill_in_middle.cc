#include "coordinator/models/fill_in_middle.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "transport/base/utf8.h"

namespace strata {
namespace {

// As Qwen and Granite, StarCoder, SantaCoder, DeepSeek, CodeLlama, Codestral, CodeGemma and GLM
// name them; the first that a vocabulary has counts.
struct Kind {
  const char* key;      // of the token's id in the header
  const char* old_key;  // in files of 2023
  std::array<absl::string_view, 8> names;
};
constexpr Kind kPrefix = {
    "fim_pre",
    "prefix",
    {"<|fim_prefix|>", "<fim_prefix>", "<fim-prefix>", "<\uff5cfim\u2581begin\uff5c>",
     "\u2581<PRE>", "<PRE>", "[PREFIX]", "<|code_prefix|>"}};
constexpr Kind kSuffix = {
    "fim_suf",
    "suffix",
    {"<|fim_suffix|>", "<fim_suffix>", "<fim-suffix>", "<\uff5cfim\u2581hole\uff5c>", "\u2581<SUF>",
     "<SUF>", "[SUFFIX]", "<|code_suffix|>"}};
constexpr Kind kMiddle = {
    "fim_mid",
    "middle",
    {"<|fim_middle|>", "<fim_middle>", "<fim-middle>", "<\uff5cfim\u2581end\uff5c>", "\u2581<MID>",
     "<MID>", "[MIDDLE]", "<|code_middle|>"}};
constexpr Kind kSeparator = {"fim_sep", "", {"<|file_sep|>", "<file_sep>", "<|file_separator|>"}};

std::string TextOf(const GgufHeader& header, const std::vector<absl::string_view>& tokens,
                   const Kind& kind) {
  for (const absl::string_view key : {kind.key, kind.old_key}) {
    if (key.empty()) continue;
    const auto id = header.GetInteger(absl::StrCat("tokenizer.ggml.", key, "_token_id"));
    if (id && *id < tokens.size()) return ValidUtf8(tokens[*id]);
  }
  for (const absl::string_view name : kind.names) {
    if (!name.empty() && std::ranges::find(tokens, name) != tokens.end()) return std::string(name);
  }
  return "";
}

}  // namespace

std::optional<wire::FillInMiddle> FillInMiddleOf(const GgufHeader& header) {
  const std::vector<absl::string_view> tokens = header.GetStrings("tokenizer.ggml.tokens");
  wire::FillInMiddle fill;
  fill.set_prefix(TextOf(header, tokens, kPrefix));
  fill.set_suffix(TextOf(header, tokens, kSuffix));
  fill.set_middle(TextOf(header, tokens, kMiddle));
  fill.set_file_separator(TextOf(header, tokens, kSeparator));
  if (fill.prefix().empty() || fill.suffix().empty() || fill.middle().empty()) return std::nullopt;
  return fill;
}

}  // namespace strata
