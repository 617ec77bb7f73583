#include "shard/sampling/gbnf.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace strata {
namespace {

// Lenient: a byte that begins no character stands for itself.
std::vector<uint32_t> CodePoints(absl::string_view text) {
  std::vector<uint32_t> points;
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const size_t bytes = byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
    uint32_t point = bytes == 1 ? byte : byte & (0x7Fu >> bytes);
    for (size_t k = 1; k < bytes && i + k < text.size(); ++k) {
      point = point << 6 | (static_cast<unsigned char>(text[i + k]) & 0x3Fu);
    }
    points.push_back(point);
    i += bytes;
  }
  return points;
}

void PrintPoint(uint32_t point, std::string* out) {
  const bool plain =
      (point >= '0' && point <= '9') || (point >= 'A' && point <= 'Z') ||
      (point >= 'a' && point <= 'z') ||
      (point < 0x7F &&
       absl::string_view(" _,:.{}()/+*!?@#$%&;<>=|~'`").find(static_cast<char>(point)) !=
           absl::string_view::npos);
  if (plain) {
    out->push_back(static_cast<char>(point));
  } else if (point < 0x100) {
    absl::StrAppendFormat(out, "\\x%02X", point);
  } else if (point < 0x10000) {
    absl::StrAppendFormat(out, "\\u%04X", point);
  } else {
    absl::StrAppendFormat(out, "\\U%08X", point);
  }
}

class Printer {
 public:
  explicit Printer(const GbnfGrammar& grammar) : grammar_(grammar) {}

  void Print(const GbnfExpr& expr, std::string* out) const {
    switch (expr.kind) {
      case GbnfExpr::Kind::kText:
        out->push_back('"');
        for (const uint32_t point : expr.text) PrintPoint(point, out);
        out->push_back('"');
        break;
      case GbnfExpr::Kind::kClass:
        absl::StrAppend(out, expr.negated ? "[^" : "[");
        for (const GbnfExpr::Range& range : expr.ranges) {
          PrintPoint(range.first, out);
          if (range.last == range.first) continue;
          out->push_back('-');
          PrintPoint(range.last, out);
        }
        out->push_back(']');
        break;
      case GbnfExpr::Kind::kRule:
        absl::StrAppend(out, grammar_.rules[expr.rule].name);
        break;
      case GbnfExpr::Kind::kSequence:
        for (size_t i = 0; i < expr.parts.size(); ++i) {
          if (i > 0) out->push_back(' ');
          PrintPart(expr.parts[i], expr.parts[i].kind == GbnfExpr::Kind::kChoice, out);
        }
        if (expr.parts.empty()) absl::StrAppend(out, "\"\"");
        break;
      case GbnfExpr::Kind::kChoice:
        for (size_t i = 0; i < expr.parts.size(); ++i) {
          if (i > 0) absl::StrAppend(out, " | ");
          Print(expr.parts[i], out);
        }
        break;
      case GbnfExpr::Kind::kRepeat:
        PrintRepeat(expr, out);
        break;
    }
  }

 private:
  void PrintPart(const GbnfExpr& expr, bool group, std::string* out) const {
    if (group) out->push_back('(');
    Print(expr, out);
    if (group) out->push_back(')');
  }

  void PrintRepeat(const GbnfExpr& expr, std::string* out) const {
    const GbnfExpr& part = expr.parts[0];
    const bool one = part.kind == GbnfExpr::Kind::kClass || part.kind == GbnfExpr::Kind::kRule ||
                     (part.kind == GbnfExpr::Kind::kText && part.text.size() == 1);
    PrintPart(part, !one, out);
    const auto [min, max] = expr.times;
    if (max == GbnfExpr::kNoMax) {
      absl::StrAppend(out, min == 0 ? "*" : min == 1 ? "+" : absl::StrCat("{", min, ",}"));
    } else if (min == 0 && max == 1) {
      out->push_back('?');
    } else if (min == max) {
      absl::StrAppend(out, "{", min, "}");
    } else {
      absl::StrAppend(out, "{", min, ",", max, "}");
    }
  }

  const GbnfGrammar& grammar_;
};

}  // namespace

GbnfExpr GbnfExpr::Text(absl::string_view text) {
  return {.kind = Kind::kText, .text = CodePoints(text)};
}
GbnfExpr GbnfExpr::Class(std::vector<Range> ranges, bool negated) {
  return {.kind = Kind::kClass, .ranges = std::move(ranges), .negated = negated};
}
GbnfExpr GbnfExpr::Rule(size_t rule) { return {.kind = Kind::kRule, .rule = rule}; }
GbnfExpr GbnfExpr::Sequence(std::vector<GbnfExpr> parts) {
  return {.kind = Kind::kSequence, .parts = std::move(parts)};
}
GbnfExpr GbnfExpr::Choice(std::vector<GbnfExpr> parts) {
  if (parts.size() == 1) return std::move(parts[0]);
  return {.kind = Kind::kChoice, .parts = std::move(parts)};
}
GbnfExpr GbnfExpr::Repeat(GbnfExpr part, Times times) {
  GbnfExpr expr = {.kind = Kind::kRepeat, .times = times};
  expr.parts.push_back(std::move(part));
  return expr;
}

std::string PrintGbnf(const GbnfGrammar& grammar) {
  const Printer printer(grammar);
  std::string out;
  for (const GbnfRule& rule : grammar.rules) {
    absl::StrAppend(&out, rule.name, " ::= ");
    printer.Print(rule.body, &out);
    out.push_back('\n');
  }
  return out;
}

}  // namespace strata
