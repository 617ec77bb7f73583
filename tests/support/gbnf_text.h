// Texts of a grammar, for tests: written at random, and read. Without libllama and its tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "shard/sampling/gbnf.h"

namespace strata {

// REQUIRES: the grammar is not left recursive (CheckGbnf), and outlives it.
class GbnfText {
 public:
  explicit GbnfText(const GbnfGrammar& grammar);

  // A text of the root. `pick(n)` is a number below n. Behind `chars_soft_max` characters the
  // shortest way to an end is taken.
  std::string Write(const std::function<uint32_t(uint32_t)>& pick, size_t chars_soft_max) const;
  // Whether the root has the text.
  bool Reads(absl::string_view text) const;

 private:
  using Ends = std::set<size_t>;
  struct Reading {
    std::vector<uint32_t> text;
    std::map<std::pair<size_t, size_t>, Ends> rules;  // by rule and place
  };
  struct Writing {
    const std::function<uint32_t(uint32_t)>& pick;
    size_t chars_soft_max;
    int depth = 0;
    size_t chars = 0;
    std::string text = {};
  };

  uint64_t ShortestOf(const GbnfExpr& expr) const;
  void WriteExpr(const GbnfExpr& expr, Writing* writing) const;
  Ends Read(const GbnfExpr& expr, size_t from, Reading* reading) const;

  const GbnfGrammar& grammar_;
  std::vector<uint64_t> shortest_;  // text of each rule, in steps
};

}  // namespace strata
