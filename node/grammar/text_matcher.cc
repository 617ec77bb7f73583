#include "node/grammar/text_matcher.h"

#include <algorithm>
#include <map>
#include <utility>

namespace strata {
namespace {

constexpr size_t kFound = 0;  // the node where the expression has been found

bool Has(const CharSet& set, uint32_t point) {
  const auto after = std::upper_bound(
      set.begin(), set.end(), point,
      [](uint32_t value, const GbnfExpr::Range& range) { return value < range.first; });
  return after != set.begin() && point <= std::prev(after)->last;
}

}  // namespace

// The nodes of `regex`, before `next`; from the last to the first.
bool TextMatcher::Add(const Regex& regex, size_t next, Automaton* automaton, size_t* first) {
  using Kind = Regex::Kind;
  std::vector<Node>& nodes = automaton->nodes;
  // Parts without nodes take time, too.
  if (++automaton->work > 2 * kMatcherNodesMax || nodes.size() > kMatcherNodesMax) return false;
  const auto add = [&nodes](Node node) {
    nodes.push_back(std::move(node));
    return nodes.size() - 1;
  };
  *first = next;
  switch (regex.kind) {
    case Kind::kChars:
      *first = add({.kind = Node::Kind::kChars, .next = next, .chars = regex.chars});
      return true;
    case Kind::kStart:
      *first = add({.kind = Node::Kind::kStart, .next = next});
      return true;
    case Kind::kEnd:
      *first = add({.kind = Node::Kind::kEnd, .next = next});
      return true;
    case Kind::kAhead: {
      Automaton ahead;
      ahead.work = automaton->work;
      ahead.nodes.push_back({.kind = Node::Kind::kFound});
      if (!Add(regex.parts[0], kFound, &ahead, &ahead.start)) return false;
      automaton->work = ahead.work;
      *first = add({.kind = Node::Kind::kAhead,
                    .next = next,
                    .other = aheads_.size(),
                    .negated = regex.negated});
      aheads_.push_back(std::move(ahead));
      return true;
    }
    case Kind::kBoundary:
      *first = add({.kind = Node::Kind::kBoundary, .next = next, .negated = regex.negated});
      return true;
    case Kind::kInexact:
      return true;
    case Kind::kSequence:
      for (size_t i = regex.parts.size(); i-- > 0;) {
        if (!Add(regex.parts[i], *first, automaton, first)) return false;
      }
      return true;
    case Kind::kChoice:
      for (size_t i = 0; i < regex.parts.size(); ++i) {
        size_t part = 0;
        if (!Add(regex.parts[i], next, automaton, &part)) return false;
        *first = i == 0 ? part : add({.kind = Node::Kind::kSplit, .next = *first, .other = part});
      }
      return true;
    case Kind::kRepeat: {
      const auto [min, max] = regex.times;
      size_t part = 0;
      if (max == GbnfExpr::kNoMax) {
        const size_t loop = add({.kind = Node::Kind::kSplit, .other = next});
        if (!Add(regex.parts[0], loop, automaton, &part)) return false;
        nodes[loop].next = part;
        *first = loop;
      } else {
        for (uint32_t i = min; i < max; ++i) {
          if (!Add(regex.parts[0], *first, automaton, &part)) return false;
          *first = add({.kind = Node::Kind::kSplit, .next = part, .other = next});
        }
      }
      for (uint32_t i = 0; i < min; ++i) {
        if (!Add(regex.parts[0], *first, automaton, first)) return false;
      }
      return true;
    }
  }
  return false;
}

bool TextMatcher::Compile(const TextRule& rule, Automaton* automaton) {
  automaton->negated = rule.negated;
  automaton->nodes.push_back({.kind = Node::Kind::kFound});
  if (!Add(rule.regex, kFound, automaton, &automaton->start)) return false;
  const bool anchored = rule.regex.kind == Regex::Kind::kSequence && !rule.regex.parts.empty() &&
                        rule.regex.parts[0].kind == Regex::Kind::kStart;
  if (anchored) return true;
  // It may be found behind any characters.
  std::vector<Node>& nodes = automaton->nodes;
  const size_t split = nodes.size();
  nodes.push_back({.kind = Node::Kind::kSplit, .next = automaton->start, .other = split + 1});
  nodes.push_back({.kind = Node::Kind::kChars, .next = split, .chars = AnyChar()});
  automaton->start = split;
  return true;
}

std::optional<TextMatcher> TextMatcher::Create(const std::vector<TextRule>& rules) {
  TextMatcher matcher;
  for (const TextRule& rule : rules) {
    Automaton automaton;
    if (!matcher.Compile(rule, &automaton)) return std::nullopt;
    matcher.automata_.push_back(std::move(automaton));
  }
  if (matcher.nodes() > kMatcherNodesMax) return std::nullopt;
  return matcher;
}

size_t TextMatcher::nodes() const {
  size_t nodes = 0;
  for (const auto* list : {&automata_, &aheads_}) {
    for (const Automaton& automaton : *list) nodes += automaton.nodes.size();
  }
  return nodes;
}

// What is reached without a character, from the nodes; {kFound} where the expression is found.
TextMatcher::Nodes TextMatcher::Close(const Automaton& automaton, const Nodes& from, bool starts,
                                      bool ends) {
  std::vector<bool> seen(automaton.nodes.size(), false);
  Nodes todo = from, closed;
  while (!todo.empty()) {
    const size_t at = todo.back();
    todo.pop_back();
    if (seen[at]) continue;
    seen[at] = true;
    const Node& node = automaton.nodes[at];
    switch (node.kind) {
      case Node::Kind::kFound:
        return {kFound};
      case Node::Kind::kSplit:
        todo.push_back(node.next);
        todo.push_back(node.other);
        break;
      case Node::Kind::kStart:
        if (starts) todo.push_back(node.next);
        break;
      case Node::Kind::kEnd:
        if (ends) todo.push_back(node.next);
        closed.push_back(at);
        break;
      case Node::Kind::kChars:
        closed.push_back(at);
        break;
      case Node::Kind::kAhead:
      case Node::Kind::kBoundary:
        todo.push_back(node.next);
        break;
    }
  }
  std::sort(closed.begin(), closed.end());
  return closed;
}

TextMatcher::Position TextMatcher::Start() const {
  Position start;
  for (const Automaton& automaton : automata_) {
    start.push_back(Close(automaton, {automaton.start}, /*starts=*/true, /*ends=*/false));
  }
  return start;
}

TextMatcher::Position TextMatcher::Step(const Position& from, uint32_t point) const {
  Position to;
  for (size_t i = 0; i < automata_.size(); ++i) {
    if (from[i] == Nodes{kFound}) {
      to.push_back({kFound});
      continue;
    }
    Nodes next;
    for (const size_t at : from[i]) {
      const Node& node = automata_[i].nodes[at];
      if (node.kind == Node::Kind::kChars && Has(node.chars, point)) next.push_back(node.next);
    }
    to.push_back(Close(automata_[i], next, /*starts=*/false, /*ends=*/false));
  }
  return to;
}

bool TextMatcher::Accepts(const Position& at) const {
  for (size_t i = 0; i < automata_.size(); ++i) {
    const bool found = at[i] == Nodes{kFound} ||
                       Close(automata_[i], at[i], /*starts=*/false, /*ends=*/true) == Nodes{kFound};
    if (found == automata_[i].negated) return false;
  }
  return true;
}

// The nodes from which the expression is found in the text from a place on, given those from the
// next place on.
std::vector<bool> TextMatcher::Reach(const Automaton& automaton, const Place& place,
                                     const Reached& aheads, const std::vector<bool>& behind) {
  const auto is_word = [&place](size_t at) {
    return at < place.text.size() && Has(WordChars(), place.text[at]);
  };
  const bool is_boundary = is_word(place.at) != (place.at > 0 && is_word(place.at - 1));
  std::vector<bool> reached(automaton.nodes.size(), false);
  // Nodes mostly follow those that they lead to; of loops, several rounds are taken.
  for (bool changed = true; std::exchange(changed, false);) {
    for (size_t i = 0; i < automaton.nodes.size(); ++i) {
      if (reached[i]) continue;
      const Node& node = automaton.nodes[i];
      bool now = false;
      switch (node.kind) {
        case Node::Kind::kFound:
          now = true;
          break;
        case Node::Kind::kChars:
          now = place.at < place.text.size() && behind[node.next] &&
                Has(node.chars, place.text[place.at]);
          break;
        case Node::Kind::kSplit:
          now = reached[node.next] || reached[node.other];
          break;
        case Node::Kind::kStart:
          now = place.at == 0 && reached[node.next];
          break;
        case Node::Kind::kEnd:
          now = place.at == place.text.size() && reached[node.next];
          break;
        case Node::Kind::kAhead:
          now = reached[node.next] && aheads[node.other].back() != node.negated;
          break;
        case Node::Kind::kBoundary:
          now = reached[node.next] && is_boundary != node.negated;
          break;
      }
      reached[i] = now;
      changed = changed || now;
    }
  }
  return reached;
}

// From the end to the start, so that what is ahead is known.
bool TextMatcher::Matches(absl::string_view text) const {
  const std::vector<uint32_t> points = GbnfExpr::Text(text).text;
  Reached aheads(aheads_.size()), rules(automata_.size());
  for (size_t at = points.size() + 1; at-- > 0;) {
    const Place place = {.text = points, .at = at};
    for (size_t i = 0; i < aheads_.size(); ++i) {
      aheads[i] = Reach(aheads_[i], place, aheads, aheads[i]);
      aheads[i].push_back(aheads[i][aheads_[i].start]);
    }
    for (size_t i = 0; i < automata_.size(); ++i) {
      rules[i] = Reach(automata_[i], place, aheads, rules[i]);
    }
  }
  for (size_t i = 0; i < automata_.size(); ++i) {
    if (rules[i][automata_[i].start] == automata_[i].negated) return false;
  }
  return true;
}

std::optional<std::vector<TextMatcher::State>> TextMatcher::Determinize(size_t* work) const {
  // Characters from one cut to the next behave alike.
  std::vector<uint32_t> cuts = {0};
  for (const Automaton& automaton : automata_) {
    for (const Node& node : automaton.nodes) {
      for (const GbnfExpr::Range& range : node.chars) {
        cuts.push_back(range.first);
        cuts.push_back(range.last + 1);
      }
    }
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  const uint32_t end = AnyChar()[0].last + 1;
  if (cuts.back() != end) cuts.push_back(end);

  std::vector<State> states;
  std::vector<Position> positions;
  std::map<Position, size_t> numbers;
  const auto number_of = [&](Position position) {
    const auto [entry, added] = numbers.try_emplace(position, states.size());
    if (added) {
      states.push_back({.accepts = Accepts(position)});
      positions.push_back(std::move(position));
    }
    return entry->second;
  };
  number_of(Start());
  for (size_t from = 0; from < states.size(); ++from) {
    if (states.size() > kDfaStatesMax) return std::nullopt;
    const Position position = positions[from];
    bool fails = false;  // whatever comes
    size_t cost = 1;
    for (size_t i = 0; i < automata_.size(); ++i) {
      const bool found = position[i] == Nodes{kFound};
      fails = fails || (automata_[i].negated ? found : position[i].empty());
      cost += position[i].size() + automata_[i].nodes.size() / 64;
    }
    if (fails) continue;
    std::map<size_t, CharSet> edges;
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      *work -= std::min(*work, cost);
      if (*work == 0) return std::nullopt;
      edges[number_of(Step(position, cuts[i]))].push_back({cuts[i], cuts[i + 1] - 1});
      if (states.size() > kDfaStatesMax) return std::nullopt;
    }
    for (auto& [to, chars] : edges) {
      states[from].edges.push_back({.chars = Normalize(std::move(chars)), .to = to});
    }
  }
  return WithoutDeadEnds(states);
}

// The states from which an end can be reached.
std::vector<TextMatcher::State> TextMatcher::WithoutDeadEnds(const std::vector<State>& states) {
  std::vector<bool> alive(states.size());
  for (size_t i = 0; i < states.size(); ++i) alive[i] = states[i].accepts;
  for (bool changed = true; std::exchange(changed, false);) {
    for (size_t i = states.size(); i-- > 0;) {
      if (alive[i]) continue;
      alive[i] = std::any_of(states[i].edges.begin(), states[i].edges.end(),
                             [&alive](const Edge& edge) { return alive[edge.to]; });
      changed = changed || alive[i];
    }
  }
  std::vector<State> kept;
  if (!alive[0]) return kept;
  std::vector<size_t> numbers(states.size());
  for (size_t i = 0, n = 0; i < states.size(); ++i) numbers[i] = alive[i] ? n++ : 0;
  for (size_t i = 0; i < states.size(); ++i) {
    if (!alive[i]) continue;
    State& state = kept.emplace_back(State{.accepts = states[i].accepts});
    for (const Edge& edge : states[i].edges) {
      if (alive[edge.to]) state.edges.push_back({.chars = edge.chars, .to = numbers[edge.to]});
    }
  }
  return kept;
}

}  // namespace strata
