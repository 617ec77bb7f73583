#include <algorithm>
#include <map>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "shard/sampling/gbnf.h"

namespace strata {
namespace {

// A recursive descent over the text; keeps the first error.
class Parser {
 public:
  explicit Parser(absl::string_view text) : text_(text) {}

  absl::StatusOr<GbnfGrammar> Parse(absl::string_view root) {
    if (text_.size() > size_t{kGrammarBytesMax}) {
      return absl::InvalidArgumentError(
          absl::StrCat("grammar has ", text_.size(), " bytes; it may have ", kGrammarBytesMax));
    }
    if (text_.find('\0') != absl::string_view::npos) {
      return absl::InvalidArgumentError("grammar contains a zero byte");
    }
    for (Space(true); at_ < text_.size() && status_.ok(); Space(true)) ReadRule();
    if (!status_.ok()) return status_;
    const auto found = numbers_.find(std::string(root.empty() ? "root" : root));
    if (found == numbers_.end()) {
      return absl::InvalidArgumentError(
          root.empty() ? "grammar has no rule \"root\""
                       : absl::StrCat("grammar_root: the grammar has no rule \"", root, "\""));
    }
    grammar_.root = found->second;
    for (size_t i = 0; i < grammar_.rules.size(); ++i) {
      if (defined_[i]) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("grammar uses the rule \"", grammar_.rules[i].name, "\", which it lacks"));
    }
    return std::move(grammar_);
  }

 private:
  void Fail(absl::string_view words) {
    if (!status_.ok()) return;
    const auto line =
        1 + std::count(text_.begin(), text_.begin() + static_cast<ptrdiff_t>(at_), '\n');
    status_ = absl::InvalidArgumentError(absl::StrCat("grammar, line ", line, ": ", words));
    at_ = text_.size();
  }
  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  // After a failure the rest of the text is skipped; later calls stay at its end.
  void Skip(size_t bytes) { at_ = std::min(at_ + bytes, text_.size()); }
  bool Take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void Space(bool lines) {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '#') {
        while (at_ < text_.size() && text_[at_] != '\n' && text_[at_] != '\r') ++at_;
      } else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r'))) {
        ++at_;
      } else {
        return;
      }
    }
  }

  static bool InName(char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-';
  }
  std::string Name() {
    const size_t from = at_;
    while (InName(Peek())) ++at_;
    if (at_ == from) Fail("a rule's name is missing");
    return std::string(text_.substr(from, at_ - from));
  }
  size_t NumberOf(const std::string& name) {
    const auto [entry, added] = numbers_.try_emplace(name, grammar_.rules.size());
    if (added) {
      if (grammar_.rules.size() >= size_t{kGrammarRulesMax}) {
        Fail(absl::StrCat("more than ", kGrammarRulesMax, " rules"));
      }
      grammar_.rules.push_back({.name = name, .body = {}});
      defined_.push_back(false);
    }
    return entry->second;
  }

  void ReadRule() {
    const std::string name = Name();
    if (!status_.ok()) return;
    const size_t number = NumberOf(name);
    Space(false);
    if (text_.substr(at_, 3) != "::=") return Fail("\"::=\" is missing");
    Skip(3);
    Space(true);
    GbnfExpr body = ReadChoice(0);
    if (!status_.ok()) return;
    // libllama takes the last of several.
    grammar_.rules[number].body = std::move(body);
    defined_[number] = true;
    if (at_ < text_.size() && Peek() != '\n' && Peek() != '\r') Fail("the rule's end is missing");
  }

  // Within parentheses a line's end is a space.
  GbnfExpr ReadChoice(int depth) {
    std::vector<GbnfExpr> parts;
    if (depth > kGrammarDepthMax) {
      Fail(absl::StrCat("grammar nests deeper than ", kGrammarDepthMax));
      return {};
    }
    parts.push_back(ReadSequence(depth));
    while (Take('|')) {
      Space(true);
      parts.push_back(ReadSequence(depth));
    }
    return GbnfExpr::Choice(std::move(parts));
  }

  GbnfExpr ReadSequence(int depth) {
    std::vector<GbnfExpr> parts;
    bool repeatable = false;
    while (status_.ok()) {
      const char c = Peek();
      if (c == '"') {
        parts.push_back(ReadText());
        repeatable = true;
      } else if (c == '[') {
        parts.push_back(ReadClass());
        repeatable = true;
      } else if (c == '.') {
        ++at_;
        parts.push_back(GbnfExpr::Class({{.first = 0, .last = 0x10FFFF}}));
        repeatable = true;
      } else if (c == '(') {
        ++at_;
        Space(true);
        parts.push_back(ReadChoice(depth + 1));
        if (!Take(')')) Fail("\")\" is missing");
        repeatable = true;
      } else if (InName(c)) {
        parts.push_back(GbnfExpr::Rule(NumberOf(Name())));
        repeatable = true;
      } else if (IsRepeat()) {
        if (!repeatable) Fail("there is nothing to repeat");
        ReadRepeat(&parts);
        repeatable = false;
      } else {
        break;
      }
      Space(depth > 0);
    }
    return GbnfExpr::Sequence(std::move(parts));
  }

  bool IsRepeat() const { return Peek() == '*' || Peek() == '+' || Peek() == '?' || Peek() == '{'; }

  void ReadRepeat(std::vector<GbnfExpr>* parts) {
    if (parts->empty()) return;
    GbnfExpr::Times times;
    if (Take('+')) {
      times.min = 1;
    } else if (Take('?')) {
      times.max = 1;
    } else if (!Take('*')) {
      Skip(1);
      Space(true);
      times.min = ReadCount();
      times.max = times.min;
      if (Take(',')) {
        Space(true);
        times.max = absl::ascii_isdigit(static_cast<unsigned char>(Peek())) ? ReadCount()
                                                                            : GbnfExpr::kNoMax;
      }
      if (!Take('}')) Fail("\"}\" is missing");
      if (times.max < times.min) Fail("a repetition's end is before its start");
      if (times.min > kGrammarRepeatMax) {
        Fail(absl::StrCat("a repetition of more than ", kGrammarRepeatMax));
      }
    }
    parts->back() = GbnfExpr::Repeat(std::move(parts->back()), times);
  }

  uint32_t ReadCount() {
    const size_t from = at_;
    while (absl::ascii_isdigit(static_cast<unsigned char>(Peek()))) ++at_;
    uint32_t count = 0;
    if (!absl::SimpleAtoi(text_.substr(from, at_ - from), &count) || count == GbnfExpr::kNoMax) {
      Fail("a repetition wants a number");
    }
    Space(true);
    return count;
  }

  GbnfExpr ReadText() {
    GbnfExpr expr = {.kind = GbnfExpr::Kind::kText};
    ++at_;
    while (status_.ok() && !Take('"')) expr.text.push_back(ReadPoint());
    return expr;
  }

  GbnfExpr ReadClass() {
    GbnfExpr expr = {.kind = GbnfExpr::Kind::kClass};
    ++at_;
    expr.negated = Take('^');
    while (status_.ok() && !Take(']')) {
      GbnfExpr::Range range = {.first = ReadPoint(), .last = 0};
      range.last = range.first;
      if (Peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        range.last = ReadPoint();
        if (range.last < range.first) Fail("a range's end is before its start");
      }
      expr.ranges.push_back(range);
    }
    return expr;
  }

  uint32_t ReadPoint() {
    if (at_ >= text_.size()) {
      Fail("a closing mark is missing");
      return 0;
    }
    if (!Take('\\')) return ReadUtf8();
    const char c = Peek();
    Skip(1);
    switch (c) {
      case 'x':
        return ReadHex(2);
      case 'u':
        return ReadHex(4);
      case 'U':
        return ReadHex(8);
      case 't':
        return '\t';
      case 'r':
        return '\r';
      case 'n':
        return '\n';
      case '\\':
      case '"':
      case '[':
      case ']':
        return static_cast<unsigned char>(c);
      default:
        Fail("an unknown escape");
        return 0;
    }
  }

  uint32_t ReadHex(size_t digits) {
    uint32_t value = 0;
    const absl::string_view hex = text_.substr(at_, digits);
    if (hex.size() != digits ||
        !std::all_of(hex.begin(), hex.end(),
                     [](unsigned char c) { return absl::ascii_isxdigit(c); }) ||
        !absl::SimpleHexAtoi(hex, &value)) {
      Fail(absl::StrCat("an escape wants ", digits, " hexadecimal digits"));
    }
    Skip(digits);
    return value;
  }

  uint32_t ReadUtf8() {
    const auto byte = static_cast<unsigned char>(text_[at_]);
    const size_t bytes = byte < 0x80   ? 1
                         : byte < 0xC2 ? 0
                         : byte < 0xE0 ? 2
                         : byte < 0xF0 ? 3
                         : byte < 0xF5 ? 4
                                       : 0;
    if (bytes == 0 || at_ + bytes > text_.size()) {
      Fail("not in UTF-8");
      return 0;
    }
    uint32_t point = bytes == 1 ? byte : byte & (0x7Fu >> bytes);
    for (size_t k = 1; k < bytes; ++k) {
      const auto next = static_cast<unsigned char>(text_[at_ + k]);
      if ((next & 0xC0) != 0x80) {
        Fail("not in UTF-8");
        return 0;
      }
      point = point << 6 | (next & 0x3Fu);
    }
    Skip(bytes);
    return point;
  }

  const absl::string_view text_;
  size_t at_ = 0;
  absl::Status status_;
  GbnfGrammar grammar_;
  std::vector<bool> defined_;
  std::map<std::string, size_t> numbers_;
};

}  // namespace

absl::StatusOr<GbnfGrammar> ParseGbnf(absl::string_view text, absl::string_view root) {
  return Parser(text).Parse(root);
}

}  // namespace strata
