#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "node/grammar/json_schema_grammar.h"

namespace strata {

// One rule for each count of the mark's characters that the text so far ends with, as Knuth, Morris
// and Pratt search (SIAM Journal on Computing 6, 1977): no text has two parses.
GbnfExpr JsonGrammar::TextUntil(absl::string_view mark) {
  const std::string key = absl::StrCat("until ", mark);
  if (const auto known = shared_.find(key); known != shared_.end()) {
    return GbnfExpr::Rule(known->second);
  }
  const std::vector<uint32_t> text = GbnfExpr::Text(mark).text;
  std::vector<size_t> border(text.size() + 1, 0);  // of the mark's first so many characters
  for (size_t i = 1, n = 0; i < text.size(); ++i) {
    while (n > 0 && text[i] != text[n]) n = border[n];
    if (text[i] == text[n]) ++n;
    border[i + 1] = n;
  }
  const size_t first = grammar_.rules.size();
  for (size_t i = 0; i < text.size(); ++i) NewRule("until", GbnfExpr::Text(""));
  for (size_t i = 0; i < text.size(); ++i) {
    std::vector<GbnfExpr> parts;
    std::vector<GbnfExpr::Range> taken;
    for (size_t n = i;; n = border[n]) {
      const uint32_t next = text[n];
      const bool is_new = std::none_of(taken.begin(), taken.end(),
                                       [next](const auto& range) { return range.first == next; });
      if (is_new) {
        taken.push_back({next, next});
        GbnfExpr character = GbnfExpr::Class({{next, next}});
        parts.push_back(n + 1 == text.size() ? std::move(character)
                                             : GbnfExpr::Sequence({std::move(character),
                                                                   GbnfExpr::Rule(first + n + 1)}));
      }
      if (n == 0) break;
    }
    parts.push_back(GbnfExpr::Sequence(
        {GbnfExpr::Class(std::move(taken), /*negated=*/true), GbnfExpr::Rule(first)}));
    grammar_.rules[first + i].body = GbnfExpr::Choice(std::move(parts));
  }
  shared_.emplace(key, first);
  return GbnfExpr::Rule(first);
}

}  // namespace strata
