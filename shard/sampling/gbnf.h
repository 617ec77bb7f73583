// Grammars in GBNF, the form that libllama's grammar sampler reads, as a tree: built by programs,
// parsed from a client's text, and checked before libllama gets them. Pure; all input is untrusted.
//
// The form: https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace strata {

// Bounds of a grammar's text: libllama's parser recurses on our stack.
inline constexpr int kGrammarBytesMax = 256 * 1024;
inline constexpr int kGrammarDepthMax = 256;
inline constexpr int kGrammarRulesMax = 10000;
// libllama takes an upper end of a repetition beyond this as unbounded, and refuses such a lower
// end.
inline constexpr uint32_t kGrammarRepeatMax = 2000;

struct GbnfExpr {
  enum class Kind { kText, kClass, kRule, kSequence, kChoice, kRepeat };
  struct Range {
    uint32_t first, last;  // code points
  };
  static constexpr uint32_t kNoMax = std::numeric_limits<uint32_t>::max();

  // UTF-8; may be empty.
  static GbnfExpr Text(absl::string_view text);
  static GbnfExpr Class(std::vector<Range> ranges, bool negated = false);
  static GbnfExpr Rule(size_t rule);
  static GbnfExpr Sequence(std::vector<GbnfExpr> parts);
  static GbnfExpr Choice(std::vector<GbnfExpr> parts);
  struct Times {
    uint32_t min = 0;
    uint32_t max = kNoMax;
  };
  static GbnfExpr Repeat(GbnfExpr part, Times times);
  static GbnfExpr Optional(GbnfExpr part) { return Repeat(std::move(part), {.min = 0, .max = 1}); }

  Kind kind = Kind::kSequence;
  std::vector<uint32_t> text = {};   // kText: code points
  std::vector<Range> ranges = {};    // kClass
  bool negated = false;              // kClass
  size_t rule = 0;                   // kRule: index in its grammar
  std::vector<GbnfExpr> parts = {};  // kSequence, kChoice; of kRepeat the one
  Times times = {};                  // kRepeat
};

struct GbnfRule {
  std::string name;  // letters, digits, minus signs
  GbnfExpr body;
};
struct GbnfGrammar {
  std::vector<GbnfRule> rules;
  size_t root = 0;
};

// In the form that libllama reads.
std::string PrintGbnf(const GbnfGrammar& grammar);

// kInvalidArgument: where and why it is no grammar, or larger than the bounds above. An empty
// `root` means "root".
absl::StatusOr<GbnfGrammar> ParseGbnf(absl::string_view text, absl::string_view root = "");

// Checks that libllama can apply the grammar in bounded time and memory. libllama keeps every
// possible parse of the output and advances each separately, so parses must not multiply.
// kInvalidArgument: too large, left recursive, or too ambiguous; the message names a rule.
absl::Status CheckGbnf(const GbnfGrammar& grammar);

// The rules that match no finite string, by index.
std::vector<size_t> EndlessGbnfRules(const GbnfGrammar& grammar);

}  // namespace strata
