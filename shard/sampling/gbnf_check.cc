// Bounds the number of parses that an output can have, from the grammar alone. libllama lowers a
// grammar to rules of alternatives of characters and rules, and keeps a stack for each parse; so
// does this file.
#include <algorithm>
#include <bitset>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "shard/sampling/gbnf.h"

namespace strata {
namespace {

// Character classes, roughly: each ASCII character, and all others as one.
constexpr size_t kOther = 128;
using Characters = std::bitset<kOther + 1>;

constexpr size_t kNoRule = static_cast<size_t>(-1);

constexpr size_t kElementsMax = 256 * 1024;      // with all repetitions written out
constexpr uint64_t kStartsMax = 2048;            // parses to the next character from one place
constexpr uint32_t kUnrollMax = 8;               // longer repetitions are treated as loops
constexpr size_t kPairsMax = 20'000;             // of parse states, to distinguish two alternatives
constexpr size_t kPairsLookedAtMax = 1'000'000;  // to find these
constexpr size_t kDepthMax = 512;                // of an examined stack
// Tokens may be long runs of one character: bounds on the parses of such a run.
constexpr size_t kRunLength = 64;
constexpr double kRunParsesMax = 1e5;
constexpr size_t kRunStacksMax = 512;
constexpr size_t kRunWorkMax = 200'000;  // stacks advanced, in all

struct Symbol {
  bool is_rule = false;
  size_t rule = 0;
  Characters characters;
};
using Alternative = std::vector<Symbol>;
struct Rule {
  std::vector<Alternative> alternatives;
  size_t named;  // the rule of the grammar that it is part of
};

Characters CharactersOf(const GbnfExpr& expr) {
  Characters characters;
  for (const GbnfExpr::Range& range : expr.ranges) {
    for (uint32_t c = range.first; c <= range.last && c < kOther; ++c) characters.set(c);
    if (range.last >= kOther) characters.set(kOther);
  }
  if (!expr.negated) return characters;
  characters.flip();
  characters.set(kOther);
  return characters;
}

class LoweredGrammar {
 public:
  explicit LoweredGrammar(const GbnfGrammar& grammar) {
    rules_.resize(grammar.rules.size());
    for (size_t i = 0; i < grammar.rules.size(); ++i) {
      named_ = i;
      rules_[i].named = i;
      // Not in place: lowering adds rules.
      std::vector<Alternative> alternatives = AlternativesOf(grammar.rules[i].body);
      rules_[i].alternatives = std::move(alternatives);
    }
  }
  const std::vector<Rule>& rules() const { return rules_; }
  size_t elements() const { return elements_; }

 private:
  std::vector<Alternative> AlternativesOf(const GbnfExpr& expr) {
    std::vector<Alternative> alternatives;
    if (expr.kind != GbnfExpr::Kind::kChoice) {
      Append(expr, &alternatives.emplace_back());
      return alternatives;
    }
    for (const GbnfExpr& part : expr.parts) {
      Alternative alternative;
      Append(part, &alternative);
      alternatives.push_back(std::move(alternative));
    }
    return alternatives;
  }
  Symbol NewRule(std::vector<Alternative> alternatives) {
    rules_.push_back({.alternatives = std::move(alternatives), .named = named_});
    return {.is_rule = true, .rule = rules_.size() - 1, .characters = {}};
  }
  void Append(const GbnfExpr& expr, Alternative* to) {
    if (elements_ > kElementsMax) return;
    ++elements_;
    switch (expr.kind) {
      case GbnfExpr::Kind::kText:
        elements_ += expr.text.size();
        for (const uint32_t point : expr.text) {
          Symbol symbol;
          symbol.characters.set(std::min<size_t>(point, kOther));
          to->push_back(symbol);
        }
        break;
      case GbnfExpr::Kind::kClass:
        to->push_back({.characters = CharactersOf(expr)});
        break;
      case GbnfExpr::Kind::kRule:
        to->push_back({.is_rule = true, .rule = expr.rule, .characters = {}});
        break;
      case GbnfExpr::Kind::kSequence:
        for (const GbnfExpr& part : expr.parts) Append(part, to);
        break;
      case GbnfExpr::Kind::kChoice:
        to->push_back(NewRule(AlternativesOf(expr)));
        break;
      case GbnfExpr::Kind::kRepeat:
        AppendRepeat(expr, to);
        break;
    }
  }
  void AppendRepeat(const GbnfExpr& expr, Alternative* to) {
    const auto [min, max] = expr.times;
    const size_t before = elements_;
    std::vector<Alternative> part = AlternativesOf(expr.parts[0]);
    const bool ends = max <= kGrammarRepeatMax;
    elements_ += (elements_ - before) * (ends ? max : min);
    if (max == 0) return;
    Symbol one = part.size() == 1 && part[0].size() == 1 ? part[0][0] : NewRule(std::move(part));
    if (min == max && max <= kUnrollMax) {
      to->insert(to->end(), max, one);
    } else if (max == 1) {
      to->push_back(NewRule({{one}, {}}));
    } else {
      const Symbol loop = NewRule({});
      rules_[loop.rule].alternatives = {{one, loop}, {}};
      if (min > 0) to->push_back(one);
      to->push_back(loop);
    }
  }

  std::vector<Rule> rules_;
  size_t named_ = 0;
  size_t elements_ = 0;
};

// The places still to be parsed, the next one at the end.
struct Place {
  size_t rule, alternative, at;
  auto operator<=>(const Place&) const = default;
};
using Stack = std::vector<Place>;

class Checker {
 public:
  explicit Checker(const GbnfGrammar& grammar)
      : grammar_(grammar), lowered_(grammar), rules_(lowered_.rules()) {}

  absl::Status Check() {
    if (lowered_.elements() > kElementsMax) {
      return absl::InvalidArgumentError("grammar is too large with its repetitions");
    }
    FindNullable();
    for (const auto step :
         {&Checker::CheckStarts, &Checker::CheckAlternatives, &Checker::CheckRuns}) {
      if (absl::Status status = (this->*step)(); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  std::vector<size_t> Endless() const {
    std::vector<bool> ends(rules_.size(), false);
    Settle(&ends, [](const Symbol& symbol, const std::vector<bool>& known) {
      return symbol.is_rule ? bool{known[symbol.rule]} : symbol.characters.any();
    });
    std::vector<size_t> endless;
    for (size_t i = 0; i < grammar_.rules.size(); ++i) {
      if (!ends[i]) endless.push_back(i);
    }
    return endless;
  }

 private:
  absl::Status Wrong(size_t rule, absl::string_view words) const {
    return absl::InvalidArgumentError(absl::StrCat(
        "grammar: the rule \"", grammar_.rules[rules_[rule].named].name, "\" ", words));
  }

  // Which rules have an alternative all of whose symbols are good, given which rules are.
  template <typename Good>
  void Settle(std::vector<bool>* is, Good good) const {
    std::vector<std::vector<size_t>> users(rules_.size());
    std::vector<size_t> todo;
    for (size_t r = 0; r < rules_.size(); ++r) {
      todo.push_back(r);
      for (const Alternative& alternative : rules_[r].alternatives) {
        for (const Symbol& symbol : alternative) {
          if (symbol.is_rule) users[symbol.rule].push_back(r);
        }
      }
    }
    while (!todo.empty()) {
      const size_t r = todo.back();
      todo.pop_back();
      if ((*is)[r]) continue;
      for (const Alternative& alternative : rules_[r].alternatives) {
        (*is)[r] = std::all_of(alternative.begin(), alternative.end(),
                               [&](const Symbol& symbol) { return good(symbol, *is); });
        if ((*is)[r]) break;
      }
      if ((*is)[r]) todo.insert(todo.end(), users[r].begin(), users[r].end());
    }
  }
  void FindNullable() {
    nullable_.assign(rules_.size(), false);
    Settle(&nullable_, [](const Symbol& symbol, const std::vector<bool>& known) {
      return symbol.is_rule && known[symbol.rule];
    });
  }

  // Visits each rule after those that it may begin with; fails where there is no such order.
  // Iterative, because untrusted input decides the depth.
  absl::Status CheckStarts() {
    enum class State : uint8_t { kNew, kOpen, kDone };
    std::vector<State> states(rules_.size(), State::kNew);
    starts_.assign(rules_.size(), 0);
    for (size_t first = 0; first < rules_.size(); ++first) {
      std::vector<size_t> path = {first};
      while (!path.empty()) {
        const size_t r = path.back();
        if (states[r] == State::kDone) {
          path.pop_back();
          continue;
        }
        const bool again = states[r] == State::kOpen;
        states[r] = again ? State::kDone : State::kOpen;
        for (const Alternative& alternative : rules_[r].alternatives) {
          if (again) {
            starts_[r] = std::min(starts_[r] + StartsFrom(alternative, 0), kStartsMax + 1);
            continue;
          }
          for (const Symbol& symbol : alternative) {
            if (!symbol.is_rule) break;
            if (states[symbol.rule] == State::kOpen) {
              return Wrong(symbol.rule, "is left recursive, or repeats what may be empty");
            }
            if (states[symbol.rule] == State::kNew) path.push_back(symbol.rule);
            if (!nullable_[symbol.rule]) break;
          }
        }
      }
    }
    for (size_t r = 0; r < rules_.size(); ++r) {
      for (const Alternative& alternative : rules_[r].alternatives) {
        for (size_t at = 0; at < alternative.size(); ++at) {
          if (starts_[r] > kStartsMax || StartsFrom(alternative, at) > kStartsMax) {
            return Wrong(r, "can continue in too many ways");
          }
        }
      }
    }
    return absl::OkStatus();
  }
  uint64_t StartsFrom(const Alternative& alternative, size_t at) const {
    uint64_t starts = 0;
    for (; at < alternative.size() && starts <= kStartsMax; ++at) {
      const Symbol& symbol = alternative[at];
      starts += symbol.is_rule ? starts_[symbol.rule] : 1;
      if (!symbol.is_rule || !nullable_[symbol.rule]) return starts;
    }
    return starts + 1;
  }

  // Tarjan's strongly connected components, iterative; 0: not in a loop.
  void FindLoops() {
    loops_.assign(rules_.size(), 0);
    std::vector<size_t> order(rules_.size(), 0), low(rules_.size(), 0), open;
    struct Visit {
      size_t rule, edge;
    };
    std::vector<std::vector<size_t>> uses(rules_.size());
    for (size_t r = 0; r < rules_.size(); ++r) {
      for (const Alternative& alternative : rules_[r].alternatives) {
        for (const Symbol& symbol : alternative) {
          if (symbol.is_rule) uses[r].push_back(symbol.rule);
        }
      }
    }
    std::vector<bool> closed(rules_.size(), false);
    size_t next = 0, loop = 0;
    for (size_t first = 0; first < rules_.size(); ++first) {
      if (order[first] != 0) continue;
      std::vector<Visit> path = {{first, 0}};
      while (!path.empty()) {
        const size_t r = path.back().rule;
        if (path.back().edge == 0 && order[r] == 0) {
          order[r] = low[r] = ++next;
          open.push_back(r);
        }
        if (path.back().edge < uses[r].size()) {
          const size_t to = uses[r][path.back().edge++];
          if (order[to] == 0) {
            path.push_back({to, 0});
          } else if (!closed[to]) {
            low[r] = std::min(low[r], order[to]);
          }
          continue;
        }
        path.pop_back();
        if (!path.empty()) low[path.back().rule] = std::min(low[path.back().rule], low[r]);
        if (low[r] != order[r]) continue;
        const bool cycle =
            open.back() != r || std::find(uses[r].begin(), uses[r].end(), r) != uses[r].end();
        if (cycle) ++loop;
        for (size_t member = rules_.size(); member != r;) {
          member = open.back();
          open.pop_back();
          closed[member] = true;
          loops_[member] = cycle ? loop : 0;
        }
      }
    }
  }

  // Two parses that lead from a rule back to itself over the same characters, and leave different
  // stacks, double with each round.
  absl::Status CheckAlternatives() {
    FindLoops();
    std::set<size_t> growing;
    for (size_t r = 0; r < rules_.size(); ++r) {
      if (loops_[r] == 0) continue;
      for (const Alternative& alternative : rules_[r].alternatives) {
        for (size_t at = 0; at + 1 < alternative.size(); ++at) {
          if (InLoop(alternative[at], loops_[r])) growing.insert(loops_[r]);
        }
      }
    }
    PairBudget budget;
    for (size_t r = 0; r < rules_.size(); ++r) {
      if (growing.count(loops_[r]) == 0) continue;
      std::vector<size_t> back;
      const auto& alternatives = rules_[r].alternatives;
      for (size_t i = 0; i < alternatives.size(); ++i) {
        if (std::any_of(alternatives[i].begin(), alternatives[i].end(),
                        [&](const Symbol& s) { return InLoop(s, loops_[r]); })) {
          back.push_back(i);
        }
      }
      for (size_t i = 0; i < back.size(); ++i) {
        for (size_t j = i + 1; j < back.size(); ++j) {
          if (!AreApart(r, back[i], back[j], &budget)) {
            return Wrong(r,
                         "is too ambiguous: several of its alternatives may begin alike and lead "
                         "back to it");
          }
        }
      }
    }
    return absl::OkStatus();
  }
  bool InLoop(const Symbol& symbol, size_t loop) const {
    return symbol.is_rule && loops_[symbol.rule] == loop;
  }

  struct ParseState {
    Stack stack;
    bool looped = false;  // it has reached the target rule
    // Not <=>: libc++ of macOS 13 has none for vectors.
    bool operator<(const ParseState& other) const {
      return std::tie(stack, looped) < std::tie(other.stack, other.looped);
    }
  };
  const Symbol& At(const Place& place) const {
    return rules_[place.rule].alternatives[place.alternative][place.at];
  }
  // Finds all parses up to the next character; those that reach the rule `target` stop there.
  void Expand(ParseState state, size_t target, std::set<ParseState>* states) const {
    std::vector<ParseState> todo = {std::move(state)};
    while (!todo.empty()) {
      ParseState now = std::move(todo.back());
      todo.pop_back();
      while (!now.stack.empty() &&
             now.stack.back().at ==
                 rules_[now.stack.back().rule].alternatives[now.stack.back().alternative].size()) {
        now.stack.pop_back();
      }
      if (now.stack.empty() || now.looped || !At(now.stack.back()).is_rule) {
        states->insert(std::move(now));
        continue;
      }
      const size_t rule = At(now.stack.back()).rule;
      if (rule == target) {
        states->insert({.stack = {}, .looped = true});
        continue;
      }
      ++now.stack.back().at;
      for (size_t i = 0; i < rules_[rule].alternatives.size(); ++i) {
        ParseState next = now;
        next.stack.push_back({rule, i, 0});
        todo.push_back(std::move(next));
      }
    }
  }

  struct PairBudget {
    size_t kept = kPairsMax, looked_at = kPairsLookedAtMax;
  };
  // Whether no string leads both alternatives back to the rule. A parse that is back already may
  // continue with anything.
  bool AreApart(size_t rule, size_t a, size_t b, PairBudget* budget) const {
    std::set<ParseState> from_a, from_b;
    Expand({.stack = {{rule, a, 0}}}, rule, &from_a);
    Expand({.stack = {{rule, b, 0}}}, rule, &from_b);
    std::set<std::pair<ParseState, ParseState>> known;
    std::vector<std::pair<ParseState, ParseState>> todo;
    // False: the budget is exhausted.
    const auto add = [&](const std::set<ParseState>& left, const std::set<ParseState>& right) {
      for (const ParseState& l : left) {
        for (const ParseState& r : right) {
          if (budget->looked_at-- == 0) return false;
          const bool ended = (l.stack.empty() && !l.looped) || (r.stack.empty() && !r.looped);
          if (ended || AreUnlike(l, r) || !known.insert({l, r}).second) continue;
          if (budget->kept-- == 0) return false;
          todo.emplace_back(l, r);
        }
      }
      return true;
    };
    if (!add(from_a, from_b)) return false;
    while (!todo.empty()) {
      const auto [left, right] = std::move(todo.back());
      todo.pop_back();
      if (left.looped && right.looped) return false;
      if (left.stack.size() + right.stack.size() > kDepthMax) return false;
      if (!add(After(left, rule), After(right, rule))) return false;
    }
    return true;
  }
  // Whether no character continues both.
  bool AreUnlike(const ParseState& left, const ParseState& right) const {
    return !left.looped && !right.looped &&
           (At(left.stack.back()).characters & At(right.stack.back()).characters).none();
  }
  std::set<ParseState> After(ParseState state, size_t target) const {
    std::set<ParseState> states;
    if (state.looped) {
      states.insert(std::move(state));
    } else {
      ++state.stack.back().at;
      Expand(std::move(state), target, &states);
    }
    return states;
  }

  // libllama enumerates the parses of a token one by one, even equal ones.
  absl::Status CheckRuns() {
    size_t work = 0;
    for (size_t r = 0; r < rules_.size(); ++r) {
      if (loops_[r] == 0) continue;
      std::set<ParseState> first;
      for (size_t i = 0; i < rules_[r].alternatives.size(); ++i) {
        Expand({.stack = {{r, i, 0}}}, kNoRule, &first);
      }
      // Characters that match the same first places behave alike; most runs end at once.
      std::map<std::vector<bool>, size_t> seen;
      for (size_t c = 0; c <= kOther; ++c) {
        std::map<Stack, double> stacks;
        for (const ParseState& state : first) {
          if (!state.stack.empty() && At(state.stack.back()).characters[c]) {
            stacks[state.stack] += 1;
          }
        }
        if (stacks.empty()) continue;
        std::vector<bool> key;
        for (const ParseState& state : first) {
          key.push_back(!state.stack.empty() && At(state.stack.back()).characters[c]);
        }
        // A few of the characters that begin alike are tried.
        if (++seen[key] > 4) continue;
        if (!RunIsShort(c, std::move(stacks), &work)) {
          return Wrong(r, "is too ambiguous: a repeated character can be read in too many ways");
        }
      }
    }
    return absl::OkStatus();
  }
  bool RunIsShort(size_t c, std::map<Stack, double> stacks, size_t* work) const {
    for (size_t n = 1; n < kRunLength && !stacks.empty(); ++n) {
      std::map<Stack, double> next;
      double parses = 0;
      for (auto& [stack, count] : stacks) {
        ParseState state = {.stack = stack};
        ++state.stack.back().at;
        std::set<ParseState> after;
        Expand(std::move(state), kNoRule, &after);
        *work += after.size();
        for (const ParseState& each : after) {
          if (each.stack.empty() || !At(each.stack.back()).characters[c]) continue;
          next[each.stack] += count;
          parses += count;
        }
        if (parses > kRunParsesMax || next.size() > kRunStacksMax || *work > kRunWorkMax) {
          return false;
        }
      }
      stacks = std::move(next);
    }
    return true;
  }

  const GbnfGrammar& grammar_;
  const LoweredGrammar lowered_;
  const std::vector<Rule>& rules_;
  std::vector<bool> nullable_;
  std::vector<uint64_t> starts_;  // parses to its first character; kStartsMax + 1: more
  std::vector<size_t> loops_;     // the loop of each rule, 0: none
};

}  // namespace

absl::Status CheckGbnf(const GbnfGrammar& grammar) { return Checker(grammar).Check(); }

std::vector<size_t> EndlessGbnfRules(const GbnfGrammar& grammar) {
  return Checker(grammar).Endless();
}

}  // namespace strata
