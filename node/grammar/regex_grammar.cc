#include "node/grammar/regex_grammar.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "node/grammar/regex.h"
#include "node/grammar/text_matcher.h"

namespace strata {

absl::StatusOr<GbnfGrammar> RegexGrammar(absl::string_view pattern) {
  auto regex = ParseRegex(pattern);
  if (!regex.ok()) return regex.status();
  std::vector<TextRule> rules = RulesOf(WholeRegex(*std::move(regex)));
  if (!std::all_of(rules.begin(), rules.end(),
                   [](const TextRule& rule) { return HasExactAutomaton(rule.regex); })) {
    return absl::InvalidArgumentError(
        "has what no grammar expresses: \\b, \\p, a look-behind, a reference to a group, or a "
        "look-ahead that is not at the beginning");
  }
  const auto matcher = TextMatcher::Create(rules);
  size_t work = kDfaWorkMax;
  const auto states = matcher ? matcher->Determinize(&work) : std::nullopt;
  if (!states) return absl::InvalidArgumentError("is too large, or repeats too often");
  if (states->empty()) return absl::InvalidArgumentError("matches no text");
  GbnfGrammar grammar;
  for (size_t i = 0; i < states->size(); ++i) {
    std::vector<GbnfExpr> parts;
    for (const TextMatcher::Edge& edge : (*states)[i].edges) {
      parts.push_back(GbnfExpr::Sequence({GbnfExpr::Class(edge.chars), GbnfExpr::Rule(edge.to)}));
    }
    if ((*states)[i].accepts) parts.push_back(GbnfExpr::Text(""));
    grammar.rules.push_back({.name = i == 0 ? "root" : absl::StrCat("s-", i),
                             .body = GbnfExpr::Choice(std::move(parts))});
  }
  return grammar;
}

}  // namespace strata
