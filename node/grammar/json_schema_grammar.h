// JSON Schema as a grammar for the sampler: output of the grammar parses and meets the schema.
// Pure; no schema is trusted.
//
// What no grammar expresses is relaxed: node/grammar/schema_check.h tells whether output meets the
// schema nevertheless. Objects have their properties in the schema's order, and no others where it
// names some and does not have "additionalProperties". Between tokens of JSON there may be a space
// or a newline with indent.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "node/grammar/json_schema.h"
#include "node/grammar/schema_check.h"
#include "node/grammar/text_matcher.h"
#include "shard/sampling/gbnf.h"

namespace strata {

inline constexpr size_t kSchemaGrammarBytesMax = 192 * 1024;
inline constexpr size_t kSchemaGrammarWorkMax = 400'000;
inline constexpr uint32_t kSchemaRepeatMax = 20'000;  // the largest upper bound of a repetition

// Two keywords that bound a count.
struct SchemaCounts {
  const char *min, *max;
};

class JsonGrammar {
 public:
  JsonGrammar();

  // The grammar of values that meet the schema. `path` is the schema's path in the request.
  // kInvalidArgument (BadSchema): the schema is invalid, no value meets it, or it is too large; the
  // param is the path of the error.
  absl::StatusOr<GbnfExpr> Schema(const SchemaJson& schema, const std::string& path);
  GbnfExpr AnyObject();
  GbnfExpr AnyValue();
  // A space, a newline with indent, or nothing.
  GbnfExpr Space() const { return GbnfExpr::Rule(space_); }
  GbnfExpr NewRule(absl::string_view name, GbnfExpr body);
  // Any text up to and with the first `mark`, which is not empty.
  GbnfExpr TextUntil(absl::string_view mark);
  // The paths of what is relaxed.
  const std::vector<std::string>& relaxed() const { return relaxed_; }

  // The text of the grammar with the root rule `root`. `path` is that of the whole, for errors.
  absl::StatusOr<std::string> Finish(GbnfExpr root, const std::string& path);

 private:
  struct Place {
    const SchemaJson* document;
    std::string path;
    int depth = 0;
    Place In(absl::string_view keyword) const;
  };
  struct Property {
    std::string key;
    GbnfExpr value;
    bool required = false;
  };
  struct Word {
    std::vector<uint32_t> text;
    GbnfExpr then;
  };

  absl::StatusOr<GbnfExpr> Visit(const SchemaJson& schema, const Place& place);
  absl::StatusOr<GbnfExpr> VisitRef(const std::string& ref, const Place& place);
  absl::StatusOr<GbnfExpr> VisitAlternatives(const SchemaJson& schema, const char* keyword,
                                             const Place& place);
  absl::StatusOr<GbnfExpr> VisitValues(const SchemaJson& schema, const Place& place);
  absl::StatusOr<GbnfExpr> VisitType(const SchemaJson& schema, const std::string& type,
                                     const Place& place);
  absl::StatusOr<GbnfExpr> VisitObject(const SchemaJson& schema, const Place& place);
  struct NamePattern;
  absl::StatusOr<std::vector<NamePattern>> NamePatterns(const SchemaJson& schema,
                                                        const Place& place);
  SchemaJson ValueSchema(const std::string& name, const SchemaJson* own,
                         const std::vector<NamePattern>& patterns, const SchemaJson& more);
  absl::StatusOr<std::vector<TextRule>> NameRules(const SchemaJson& schema, const Place& place);
  absl::StatusOr<std::vector<GbnfExpr>> OtherMembers(const SchemaJson& schema,
                                                     const std::vector<std::string>& names,
                                                     const std::vector<NamePattern>& patterns,
                                                     const SchemaJson& more, const Place& place);
  absl::StatusOr<GbnfExpr> MapOf(const std::optional<GbnfExpr>& pair, GbnfExpr::Times times,
                                 const Place& place);
  absl::StatusOr<GbnfExpr> VisitArray(const SchemaJson& schema, const Place& place);
  absl::StatusOr<GbnfExpr> VisitString(const SchemaJson& schema, const Place& place);
  absl::StatusOr<GbnfExpr> VisitNumber(const SchemaJson& schema, bool whole, const Place& place);

  absl::StatusOr<GbnfExpr::Times> TimesOf(const SchemaJson& schema, const SchemaCounts& names,
                                          const Place& place);
  absl::StatusOr<std::vector<TextRule>> PatternRules(const std::string& pattern,
                                                     const Place& place);
  absl::StatusOr<std::vector<TextRule>> StringRules(const SchemaJson& schema, const Place& place);
  absl::StatusOr<GbnfExpr> Strings(std::vector<TextRule> rules, const Place& place);
  GbnfExpr Automaton(const std::vector<TextMatcher::State>& states);
  GbnfExpr Char(const CharSet& set) const;
  GbnfExpr Repeated(const Regex& repeat, GbnfExpr::Times times) const;
  std::optional<GbnfExpr> Multiples(int64_t low, int64_t high, int64_t of);
  absl::Status Exclude(const SchemaJson& other, const Place& place,
                       std::vector<std::string>* types);
  bool AreAllDisjoint(const std::vector<SchemaJson>& schemas, const Place& place);
  SchemaCheck& CheckOf(const SchemaJson* document);
  void Relax(const Place& place) { relaxed_.push_back(place.path); }

  GbnfExpr Members(const std::vector<Property>& properties, const GbnfExpr* other);
  GbnfExpr Pair(GbnfExpr value);  // from the colon on
  GbnfExpr Words(std::vector<Word> words, size_t from, int depth);
  GbnfExpr OtherKey(const std::vector<std::string>& names);
  GbnfExpr NotIn(const std::vector<std::vector<uint32_t>>& words, size_t from, int depth);
  GbnfExpr Shared(const std::string& key, GbnfExpr body);
  bool Work(size_t amount);

  std::deque<SchemaJson> documents_;                 // the documents of references
  std::map<const SchemaJson*, SchemaCheck> checks_;  // by document
  std::vector<std::string> relaxed_;
  GbnfGrammar grammar_;
  std::vector<std::string> paths_;  // by rule; empty: a rule of the grammar's own
  std::map<std::string, size_t> shared_;
  struct Ref {
    size_t rule = 0;
    absl::Status status;  // why no value meets it
  };
  std::map<std::pair<const SchemaJson*, std::string>, Ref> refs_;
  size_t space_, character_, string_, number_, integer_;
  size_t value_ = 0, object_ = 0;  // 0: not used yet
  size_t work_ = 0;
  size_t dfa_work_ = kDfaWorkMax;  // left
  int merges_ = kSchemaMergesMax;
};

// Repeats a part any number of times, beyond what libllama repeats.
GbnfExpr RepeatAnyNumber(GbnfExpr part, GbnfExpr::Times times);

}  // namespace strata
