#include "tests/support/gbnf_text.h"

#include <algorithm>

#include "absl/log/check.h"

namespace strata {
namespace {

using Expr = GbnfExpr;

constexpr uint64_t kEndless = uint64_t{1} << 40;
constexpr int kDepthMax = 400;

void AppendUtf8(uint32_t point, std::string* text) {
  const auto byte = [text](uint32_t value) { text->push_back(static_cast<char>(value)); };
  if (point < 0x80) {
    byte(point);
  } else if (point < 0x800) {
    byte(0xC0 | point >> 6);
    byte(0x80 | (point & 0x3F));
  } else if (point < 0x10000) {
    byte(0xE0 | point >> 12);
    byte(0x80 | (point >> 6 & 0x3F));
    byte(0x80 | (point & 0x3F));
  } else {
    byte(0xF0 | point >> 18);
    byte(0x80 | (point >> 12 & 0x3F));
    byte(0x80 | (point >> 6 & 0x3F));
    byte(0x80 | (point & 0x3F));
  }
}

bool Has(const Expr& chars, uint32_t point) {
  const bool listed = std::any_of(
      chars.ranges.begin(), chars.ranges.end(),
      [point](const Expr::Range& range) { return point >= range.first && point <= range.last; });
  return listed != chars.negated;
}

}  // namespace

GbnfText::GbnfText(const GbnfGrammar& grammar)
    : grammar_(grammar), shortest_(grammar.rules.size(), kEndless) {
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = 0; i < shortest_.size(); ++i) {
      const uint64_t steps = ShortestOf(grammar_.rules[i].body) + 1;
      if (steps >= shortest_[i]) continue;
      shortest_[i] = steps;
      changed = true;
    }
  }
}

uint64_t GbnfText::ShortestOf(const Expr& expr) const {
  uint64_t steps = 0;
  switch (expr.kind) {
    case Expr::Kind::kText:
      return expr.text.size();
    case Expr::Kind::kClass:
      return 1;
    case Expr::Kind::kRule:
      return shortest_[expr.rule];
    case Expr::Kind::kSequence:
      for (const Expr& part : expr.parts) steps += ShortestOf(part);
      return std::min(steps, kEndless);
    case Expr::Kind::kChoice:
      steps = kEndless;
      for (const Expr& part : expr.parts) steps = std::min(steps, ShortestOf(part));
      return steps;
    case Expr::Kind::kRepeat:
      return expr.times.min == 0 ? 0
                                 : std::min(kEndless, expr.times.min * ShortestOf(expr.parts[0]));
  }
  return steps;
}

void GbnfText::WriteExpr(const Expr& expr, Writing* writing) const {
  const bool ends = writing->chars >= writing->chars_soft_max || writing->depth > kDepthMax;
  ++writing->depth;
  switch (expr.kind) {
    case Expr::Kind::kText:
      for (const uint32_t point : expr.text) AppendUtf8(point, &writing->text);
      writing->chars += expr.text.size();
      break;
    case Expr::Kind::kClass: {
      uint32_t point = 0;
      bool found = false;
      for (int i = 0; i < 64 && !found; ++i) {  // mostly ASCII
        point = i < 48 ? ' ' + writing->pick(95) : 0xA0 + writing->pick(0x2000);
        found = Has(expr, point);
      }
      if (!found) {
        CHECK(!expr.negated && !expr.ranges.empty());
        const Expr::Range& range =
            expr.ranges[writing->pick(static_cast<uint32_t>(expr.ranges.size()))];
        point = range.first + writing->pick(std::min(range.last - range.first, 0xFFFFu) + 1);
        if (point >= 0xD800 && point < 0xE000) point = range.last;
      }
      AppendUtf8(point, &writing->text);
      ++writing->chars;
      break;
    }
    case Expr::Kind::kRule:
      WriteExpr(grammar_.rules[expr.rule].body, writing);
      break;
    case Expr::Kind::kSequence:
      for (const Expr& part : expr.parts) WriteExpr(part, writing);
      break;
    case Expr::Kind::kChoice: {
      size_t chosen = writing->pick(static_cast<uint32_t>(expr.parts.size()));
      if (ends || ShortestOf(expr.parts[chosen]) >= kEndless) {
        for (size_t i = 0; i < expr.parts.size(); ++i) {
          if (ShortestOf(expr.parts[i]) < ShortestOf(expr.parts[chosen])) chosen = i;
        }
      }
      WriteExpr(expr.parts[chosen], writing);
      break;
    }
    case Expr::Kind::kRepeat: {
      uint32_t times = expr.times.min;
      if (!ends) times = std::min(times + writing->pick(4), expr.times.max);
      for (; times > 0; --times) WriteExpr(expr.parts[0], writing);
      break;
    }
  }
  --writing->depth;
}

std::string GbnfText::Write(const std::function<uint32_t(uint32_t)>& pick,
                            size_t chars_soft_max) const {
  Writing writing = {.pick = pick, .chars_soft_max = chars_soft_max};
  WriteExpr(grammar_.rules[grammar_.root].body, &writing);
  return writing.text;
}

// Where the expression may end that begins at `from`.
GbnfText::Ends GbnfText::Read(const Expr& expr, size_t from, Reading* reading) const {
  const std::vector<uint32_t>& text = reading->text;
  Ends ends;
  switch (expr.kind) {
    case Expr::Kind::kText:
      if (from + expr.text.size() <= text.size() &&
          std::equal(expr.text.begin(), expr.text.end(),
                     text.begin() + static_cast<ptrdiff_t>(from))) {
        ends.insert(from + expr.text.size());
      }
      return ends;
    case Expr::Kind::kClass:
      if (from < text.size() && Has(expr, text[from])) ends.insert(from + 1);
      return ends;
    case Expr::Kind::kRule: {
      const auto [known, added] = reading->rules.try_emplace({expr.rule, from});
      if (!added) return known->second;
      ends = Read(grammar_.rules[expr.rule].body, from, reading);
      reading->rules[{expr.rule, from}] = ends;
      return ends;
    }
    case Expr::Kind::kSequence:
      ends = {from};
      for (const Expr& part : expr.parts) {
        Ends next;
        for (const size_t at : ends) next.merge(Read(part, at, reading));
        ends = std::move(next);
      }
      return ends;
    case Expr::Kind::kChoice:
      for (const Expr& part : expr.parts) ends.merge(Read(part, from, reading));
      return ends;
    case Expr::Kind::kRepeat: {
      Ends now = {from};
      for (uint32_t n = 0; !now.empty() && n <= expr.times.max; ++n) {
        if (n >= expr.times.min) {
          const size_t before = ends.size();
          ends.insert(now.begin(), now.end());
          if (ends.size() == before) break;  // nothing new
        }
        Ends next;
        for (const size_t at : now) next.merge(Read(expr.parts[0], at, reading));
        now = std::move(next);
      }
      return ends;
    }
  }
  return ends;
}

bool GbnfText::Reads(absl::string_view text) const {
  Reading reading = {.text = GbnfExpr::Text(text).text, .rules = {}};
  const Ends ends = Read(grammar_.rules[grammar_.root].body, 0, &reading);
  return ends.contains(reading.text.size());
}

}  // namespace strata
