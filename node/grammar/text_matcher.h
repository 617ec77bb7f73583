// Texts matched by regular expressions: automata that read each character once, whatever the
// expression, and so never backtrack. Pure; thread-safe once made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "node/grammar/regex.h"

namespace strata {

inline constexpr size_t kMatcherNodesMax = 40'000;  // with all repetitions written out
inline constexpr size_t kDfaStatesMax = 400;
inline constexpr size_t kDfaWorkMax = 3'000'000;  // nodes looked at, for all of a schema

class TextMatcher {
 public:
  // Null: more than kMatcherNodesMax nodes.
  static std::optional<TextMatcher> Create(const std::vector<TextRule>& rules);
  // Exact, but for what the expression says of itself (IsExact).
  bool Matches(absl::string_view text) const;
  size_t nodes() const;  // the cost of a character

  // The texts that meet all rules, and more where HasExactAutomaton() is false, as an automaton
  // with one way for each text: from each state, an end can be reached. No states: no text does.
  // Null: it would have more than kDfaStatesMax states, or take more than `work`, which is reduced
  // by what it takes.
  struct Edge {
    CharSet chars;
    size_t to;
  };
  struct State {
    bool accepts = false;
    std::vector<Edge> edges = {};  // their characters are apart
  };
  std::optional<std::vector<State>> Determinize(size_t* work) const;

 private:
  struct Node {
    enum class Kind { kChars, kSplit, kStart, kEnd, kAhead, kBoundary, kFound } kind;
    size_t next = 0;
    size_t other = 0;  // kSplit: as well; kAhead: its number in aheads_
    bool negated = false;
    CharSet chars = {};
  };
  struct Automaton {
    std::vector<Node> nodes;
    size_t start = 0;
    size_t work = 0;  // to compile it
    bool negated = false;
  };
  using Nodes = std::vector<size_t>;
  using Position = std::vector<Nodes>;  // by automaton

  bool Compile(const TextRule& rule, Automaton* automaton);
  bool Add(const Regex& regex, size_t next, Automaton* automaton, size_t* first);
  struct Place {
    const std::vector<uint32_t>& text;
    size_t at;
  };
  using Reached = std::vector<std::vector<bool>>;  // by look-ahead and node
  static std::vector<bool> Reach(const Automaton& automaton, const Place& place,
                                 const Reached& aheads, const std::vector<bool>& behind);
  static Nodes Close(const Automaton& automaton, const Nodes& from, bool starts, bool ends);
  Position Start() const;
  Position Step(const Position& from, uint32_t point) const;
  bool Accepts(const Position& at) const;
  static std::vector<State> WithoutDeadEnds(const std::vector<State>& states);

  std::vector<Automaton> automata_;
  std::vector<Automaton> aheads_;  // inner ones first
};

}  // namespace strata
