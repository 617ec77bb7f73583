#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "node/grammar/json_schema_grammar.h"

namespace strata {
namespace {

using Expr = GbnfExpr;

// Branches within one rule: deeper ones get rules of their own, because the parser recurses.
constexpr int kBranchDepthMax = 16;
constexpr size_t kOpenKeyBytesMax = 256;

// The key's characters between the quotes, and the second quote.
std::string Quoted(const std::string& key) {
  return SchemaJson(key).dump(-1, ' ', false, SchemaJson::error_handler_t::replace).substr(1);
}

Expr TextOf(const std::vector<uint32_t>& points, size_t from, size_t to) {
  return {.kind = Expr::Kind::kText,
          .text = {points.begin() + static_cast<ptrdiff_t>(from),
                   points.begin() + static_cast<ptrdiff_t>(to)}};
}

Expr Comma(Expr space) { return Expr::Sequence({Expr::Text(","), std::move(space)}); }

// Reads a count.
absl::StatusOr<std::optional<uint32_t>> Count(const SchemaJson& schema, const char* name,
                                              const std::string& path) {
  const SchemaJson* field = Keyword(schema, name);
  if (field == nullptr) return std::nullopt;
  const double value = field->is_number() ? field->get<double>() : -1;
  if (value < 0 || value != std::floor(value)) {
    return BadSchema(absl::StrCat(path, ".", name), "must be a whole number, 0 or more");
  }
  return static_cast<uint32_t>(std::min(value, 4e9));
}

}  // namespace

absl::StatusOr<Expr::Times> JsonGrammar::TimesOf(const SchemaJson& schema,
                                                 const SchemaCounts& names, const Place& place) {
  const auto min = Count(schema, names.min, place.path);
  if (!min.ok()) return min.status();
  const auto max = Count(schema, names.max, place.path);
  if (!max.ok()) return max.status();
  Expr::Times times = {.min = min->value_or(0), .max = max->value_or(Expr::kNoMax)};
  if (times.min > times.max) {
    return UnmetSchema(absl::StrCat(place.path, ".", names.min),
                       absl::StrCat("is more than ", names.max, ": no value meets it"));
  }
  if (times.min > kSchemaRepeatMax) {
    return BadSchema(absl::StrCat(place.path, ".", names.min),
                     absl::StrCat("may be at most ", kSchemaRepeatMax));
  }
  if (max->has_value() && times.max > kSchemaRepeatMax) {
    Relax(place.In(names.max));
    times.max = Expr::kNoMax;
  }
  return times;
}

// One of the words from their `from`-th character on, then each word's continuation. Words branch
// at single characters, so that each string has one derivation.
GbnfExpr JsonGrammar::Words(std::vector<Word> words, size_t from, int depth) {
  if (!Work(words.size() + 1)) return Expr::Text("");
  size_t common = from;
  const auto alike = [&words](size_t at) {
    return std::all_of(words.begin(), words.end(), [&](const Word& word) {
      return at < word.text.size() && word.text[at] == words[0].text[at];
    });
  };
  while (alike(common)) ++common;
  if (!Work((common - from) * words.size())) return Expr::Text("");
  Expr head = TextOf(words[0].text, from, common);
  std::map<uint32_t, std::vector<Word>> branches;
  std::vector<Expr> parts;
  for (Word& word : words) {
    if (word.text.size() == common) {
      parts.push_back(std::move(word.then));
    } else {
      branches[word.text[common]].push_back(std::move(word));
    }
  }
  for (auto& [first, branch] : branches)
    parts.push_back(Words(std::move(branch), common, depth + 1));
  Expr rest = Expr::Choice(std::move(parts));
  if (depth % kBranchDepthMax == kBranchDepthMax - 1) rest = NewRule("words", std::move(rest));
  return head.text.empty() ? std::move(rest) : Expr::Sequence({std::move(head), std::move(rest)});
}

// A key with its second quote that is not one of the words.
GbnfExpr JsonGrammar::NotIn(const std::vector<std::vector<uint32_t>>& words, size_t from,
                            int depth) {
  const auto any = [this] {
    const std::string key = "other";
    return Shared(key,
                  Expr::Sequence({Expr::Repeat(Expr::Class({{'"', '"'}, {'\\', '\\'}, {0, 0x1F}},
                                                           /*negated=*/true),
                                               {}),
                                  Expr::Text("\"")}));
  };
  if (words.empty() || !Work(words.size() + 1)) return any();
  std::map<uint32_t, std::vector<std::vector<uint32_t>>> branches;
  for (const std::vector<uint32_t>& word : words) {
    if (from < word.size()) branches[word[from]].push_back(word);
  }
  std::vector<Expr> parts;
  // A word ends with the quote: where a word ends, this key must not.
  if (branches.count('"') == 0) parts.push_back(Expr::Text("\""));
  std::vector<Expr::Range> taken = {{'"', '"'}, {'\\', '\\'}, {0, 0x1F}};
  for (const auto& [first, branch] : branches) {
    if (first == '"' || first == '\\') continue;
    taken.push_back({first, first});
    parts.push_back(Expr::Sequence({TextOf({first}, 0, 1), NotIn(branch, from + 1, depth + 1)}));
  }
  parts.push_back(Expr::Sequence({Expr::Class(std::move(taken), /*negated=*/true), any()}));
  Expr key = Expr::Choice(std::move(parts));
  return depth % kBranchDepthMax == kBranchDepthMax - 1 ? NewRule("key", std::move(key)) : key;
}

GbnfExpr JsonGrammar::OtherKey(const std::vector<std::string>& names) {
  std::vector<std::vector<uint32_t>> words;
  for (const std::string& name : names) words.push_back(Expr::Text(Quoted(name)).text);
  return NewRule("more", Expr::Sequence({Expr::Text("\""), NotIn(words, 0, 0)}));
}

// The grammar between the braces, spaces behind the last member included. `other`: a member that
// is none of the properties; null: there are none.
GbnfExpr JsonGrammar::Members(const std::vector<Property>& properties, const Expr* other) {
  const size_t n = properties.size();
  // From the last to the first: the grammar behind member i - 1.
  std::vector<Expr> after(n + 1);  // of member i - 1
  std::vector<Expr> values(n);     // of member i: from its colon to the last member
  after[n] = other ? Expr::Repeat(Expr::Sequence({Comma(Space()), *other}), {}) : Expr::Text("");
  const auto next = [&](size_t from) {
    std::vector<Word> words;
    size_t to = from;
    while (to < n) {
      words.push_back({Expr::Text(Quoted(properties[to].key)).text, values[to]});
      if (properties[to++].required) break;
    }
    const bool may_end = to == n && (n == from || !properties[n - 1].required);
    std::vector<Expr> parts;
    if (!words.empty()) {
      parts.push_back(Expr::Sequence({Expr::Text("\""), Words(std::move(words), 0, 0)}));
    }
    if (may_end && other) parts.push_back(Expr::Sequence({*other, after[n]}));
    return std::pair(parts.empty() ? Expr::Text("") : Expr::Choice(std::move(parts)), may_end);
  };
  for (size_t i = n; i-- > 0;) {
    if (!Work(n - i)) return Expr::Text("");
    values[i] = NewRule("member", Expr::Sequence({Pair(properties[i].value), after[i + 1]}));
    auto [member, may_end] = next(i);
    Expr behind = Expr::Sequence({Comma(Space()), std::move(member)});
    // No member precedes the first.
    if (i > 0) {
      after[i] = NewRule("rest", may_end ? Expr::Optional(std::move(behind)) : std::move(behind));
    }
  }
  auto [first, may_end] = next(0);
  return may_end ? Expr::Optional(std::move(first)) : first;
}

// A part of "patternProperties".
struct JsonGrammar::NamePattern {
  std::vector<TextRule> rules;
  std::optional<TextMatcher> matcher;
  const SchemaJson* schema;
  Place place;
};

absl::StatusOr<std::vector<JsonGrammar::NamePattern>> JsonGrammar::NamePatterns(
    const SchemaJson& schema, const Place& place) {
  std::vector<NamePattern> patterns;
  const SchemaJson* field = Keyword(schema, "patternProperties");
  if (field == nullptr) return patterns;
  const Place here = place.In("patternProperties");
  if (!field->is_object()) return BadSchema(here.path, "must be an object of schemas");
  for (const auto& [regex, value] : field->items()) {
    const Place at = here.In(regex);
    auto rules = PatternRules(regex, at);
    if (!rules.ok()) return rules.status();
    auto matcher = TextMatcher::Create(*rules);
    if (!matcher || !Work(matcher->nodes() / 16)) {
      return BadSchema(at.path, "has patterns that are too large");
    }
    patterns.push_back({*std::move(rules), std::move(matcher), &value, at});
  }
  return patterns;
}

// What a property's value must meet: its own schema, those of patterns that match its name, or
// else `more`.
SchemaJson JsonGrammar::ValueSchema(const std::string& name, const SchemaJson* own,
                                    const std::vector<NamePattern>& patterns,
                                    const SchemaJson& more) {
  SchemaJson all = SchemaJson::array();
  if (own != nullptr) all.push_back(*own);
  for (const NamePattern& pattern : patterns) {
    if (Work(pattern.matcher->nodes() * name.size() / 8) && pattern.matcher->Matches(name)) {
      all.push_back(*pattern.schema);
    }
  }
  if (all.empty()) return more;
  if (all.size() == 1) return all[0];
  SchemaJson schema = SchemaJson::object();
  schema["allOf"] = std::move(all);
  return schema;
}

// What "propertyNames" asks of the names that are not listed.
absl::StatusOr<std::vector<TextRule>> JsonGrammar::NameRules(const SchemaJson& schema,
                                                             const Place& place) {
  const SchemaJson* names = Keyword(schema, "propertyNames");
  const Place at = place.In("propertyNames");
  if (names == nullptr || *names == true) return std::vector<TextRule>();
  if (*names == false) return UnmetSchema(at.path, "forbids every name");
  if (!names->is_object()) return BadSchema(at.path, "must be a schema, an object");
  for (const auto& member : names->items()) {
    constexpr absl::string_view kKept[] = {"type", "pattern", "format", "minLength", "maxLength"};
    if (std::find(std::begin(kKept), std::end(kKept), member.key()) == std::end(kKept) &&
        !IsAnnotation(member.key())) {
      Relax(at);
    }
  }
  return StringRules(*names, at);
}

// The members that are no properties of their own, each with its key.
absl::StatusOr<std::vector<GbnfExpr>> JsonGrammar::OtherMembers(
    const SchemaJson& schema, const std::vector<std::string>& names,
    const std::vector<NamePattern>& patterns, const SchemaJson& more, const Place& place) {
  std::vector<TextRule> no_names;  // nor a pattern, added below
  if (!names.empty()) {
    Regex choice = {.kind = Regex::Kind::kChoice};
    for (const std::string& name : names) choice.parts.push_back(TextRegex(name));
    no_names.push_back({.regex = WholeRegex(std::move(choice)), .negated = true});
  }
  std::vector<Expr> members;
  const auto add = [&](absl::StatusOr<Expr> key, const SchemaJson& value,
                       const Place& at) -> absl::Status {
    auto expr = key.ok() ? Visit(value, at) : key;
    if (expr.ok()) members.push_back(Expr::Sequence({*std::move(key), Pair(*std::move(expr))}));
    return expr.ok() || IsUnmet(expr.status()) ? absl::OkStatus() : expr.status();
  };
  if (patterns.empty() && more == false) return members;
  auto of_names = NameRules(schema, place);
  if (!of_names.ok() && IsUnmet(of_names.status())) return members;
  if (!of_names.ok()) return of_names.status();
  for (size_t i = 0; i < patterns.size(); ++i) {
    std::vector<TextRule> rules = patterns[i].rules;
    rules.insert(rules.end(), of_names->begin(), of_names->end());
    rules.insert(rules.end(), no_names.begin(), no_names.end());
    for (size_t k = 0; k < patterns.size(); ++k) {
      if (k != i) rules.push_back({.regex = patterns[k].rules[0].regex, .negated = true});
    }
    const Place& at = patterns[i].place;
    if (absl::Status status = add(Strings(std::move(rules), at), *patterns[i].schema, at);
        !status.ok()) {
      return status;
    }
  }
  if (more == false) return members;
  std::vector<TextRule> rules = *std::move(of_names);
  for (const NamePattern& pattern : patterns) {
    rules.push_back({.regex = pattern.rules[0].regex, .negated = true});
  }
  absl::StatusOr<Expr> key = names.empty() ? Expr::Rule(string_) : OtherKey(names);
  if (!rules.empty()) {
    rules.insert(rules.end(), no_names.begin(), no_names.end());
    key = Strings(std::move(rules), place);
  }
  if (absl::Status status = add(std::move(key), more, place.In("additionalProperties"));
      !status.ok()) {
    return status;
  }
  return members;
}

absl::StatusOr<GbnfExpr> JsonGrammar::VisitObject(const SchemaJson& schema, const Place& place) {
  const SchemaJson none = SchemaJson::object();
  const SchemaJson* declared = Keyword(schema, "properties");
  if (declared != nullptr && !declared->is_object()) {
    return BadSchema(place.path + ".properties", "must be an object of schemas");
  }
  const SchemaJson* additional = Keyword(schema, "additionalProperties");
  if (additional == nullptr) additional = Keyword(schema, "unevaluatedProperties");
  const SchemaJson* required = Keyword(schema, "required");
  if (required != nullptr && !required->is_array()) {
    return BadSchema(place.path + ".required", "must be an array of names");
  }
  auto patterns = NamePatterns(schema, place);
  if (!patterns.ok()) return patterns.status();
  // Where the schema names properties, others are allowed only by "additionalProperties".
  SchemaJson more =
      additional != nullptr ? *additional : SchemaJson(declared == nullptr && patterns->empty());
  std::map<std::string, bool> wanted;
  for (const SchemaJson& key : required != nullptr ? *required : SchemaJson::array()) {
    if (!key.is_string()) return BadSchema(place.path + ".required", "must be an array of names");
    wanted[key.get<std::string>()] = true;
  }
  const auto times = TimesOf(schema, {"minProperties", "maxProperties"}, place);
  if (!times.ok()) return times.status();
  const SchemaJson* names = Keyword(schema, "propertyNames");
  if (names != nullptr && names->is_object() && names->contains("$ref")) {
    const auto whole = MergeSchemas({*place.document, &merges_, &relaxed_}, *names, none,
                                    place.path + ".propertyNames");
    if (!whole.ok()) return whole.status();
    SchemaJson with_names = schema;
    with_names["propertyNames"] = *whole;
    return VisitObject(with_names, place);
  }
  std::optional<SchemaCheck::Json> names_check;
  if (names != nullptr && *names != true) names_check.emplace(*names);
  std::vector<Property> properties;
  std::vector<std::string> listed;
  const auto add = [&](const std::string& key, const SchemaJson* own,
                       const Place& at) -> absl::Status {
    const bool must = wanted.erase(key) > 0;
    listed.push_back(key);
    SchemaJson value = ValueSchema(key, own, *patterns, more == false ? SchemaJson(true) : more);
    if (names_check && !CheckOf(place.document).Check(*names_check, key).ok()) value = false;
    auto expr = Visit(value, at);
    if (!expr.ok() && (must || !IsUnmet(expr.status()))) return expr.status();
    if (expr.ok()) properties.push_back({.key = key, .value = *std::move(expr), .required = must});
    return absl::OkStatus();
  };
  for (const auto& [key, value] : (declared != nullptr ? *declared : none).items()) {
    if (absl::Status status = add(key, &value, place.In("properties").In(key)); !status.ok()) {
      return status;
    }
  }
  // The names that there may be, of a record by an enumeration.
  if (names != nullptr && names->is_object() && more != false && patterns->empty()) {
    if (const SchemaJson* list = Keyword(*names, "enum"); list != nullptr && list->is_array()) {
      for (const SchemaJson& key : *list) {
        if (!key.is_string() || (declared != nullptr && declared->contains(key))) continue;
        if (absl::Status status = add(key.get<std::string>(), nullptr, place.In("propertyNames"));
            !status.ok()) {
          return status;
        }
      }
      more = false;
    }
  }
  const std::map<std::string, bool> missing = wanted;
  for (const auto& [key, must] : missing) {
    const bool matches =
        std::any_of(patterns->begin(), patterns->end(),
                    [&key](const NamePattern& each) { return each.matcher->Matches(key); });
    if (additional != nullptr && *additional == false && !matches) {
      return UnmetSchema(
          place.path + ".required",
          absl::StrCat("requires \"", key, "\", which it forbids: no value meets it"));
    }
    if (absl::Status status = add(key, nullptr, place.In("required")); !status.ok()) return status;
  }
  for (const Property& property : properties) {
    // Distinguishing other keys from it takes a level for each character.
    if (more != false && Quoted(property.key).size() > kOpenKeyBytesMax) {
      return BadSchema(place.path + ".properties",
                       absl::StrCat("a name of more than ", kOpenKeyBytesMax,
                                    " bytes, where others are allowed: forbid these "
                                    "(additionalProperties), or shorten it"));
    }
  }
  const bool is_any = listed.empty() && patterns->empty() && more == true && !names_check;
  if (is_any && times->min == 0 && times->max == Expr::kNoMax) return AnyObject();
  auto others = OtherMembers(schema, listed, *patterns, more, place);
  if (!others.ok()) return others.status();
  std::optional<Expr> other;
  if (!others->empty()) other = NewRule("pair", Expr::Choice(*std::move(others)));
  if (properties.empty()) return MapOf(other, *times, place);
  const auto needed = static_cast<uint32_t>(
      std::count_if(properties.begin(), properties.end(),
                    [](const Property& property) { return property.required; }));
  if (needed > times->max) {
    return UnmetSchema(place.path + ".maxProperties", "is less than it requires");
  }
  if (!other && properties.size() < times->min) {
    return UnmetSchema(place.path + ".minProperties", "is more than it has");
  }
  if (needed < times->min) Relax(place.In("minProperties"));
  if (other ? times->max != Expr::kNoMax : properties.size() > times->max) {
    Relax(place.In("maxProperties"));
  }
  return NewRule("object",
                 Expr::Sequence({Expr::Text("{"), Space(),
                                 Members(properties, other ? &*other : nullptr), Expr::Text("}")}));
}

// An object of members without names of their own; null: it is empty.
absl::StatusOr<GbnfExpr> JsonGrammar::MapOf(const std::optional<Expr>& pair, Expr::Times times,
                                            const Place& place) {
  if (!pair && times.min > 0) {
    return UnmetSchema(place.path + ".minProperties", "wants properties, which it forbids");
  }
  if (!pair || times.max == 0) return Expr::Sequence({Expr::Text("{"), Space(), Expr::Text("}")});
  if (times.min > 1) Relax(place.In("minProperties"));  // a key may come twice
  Expr more = Expr::Sequence(
      {*pair, RepeatAnyNumber(Expr::Sequence({Comma(Space()), *pair}),
                              {.min = times.min > 1 ? times.min - 1 : 0,
                               .max = times.max == Expr::kNoMax ? Expr::kNoMax : times.max - 1})});
  if (times.min == 0) more = Expr::Optional(std::move(more));
  return NewRule("map",
                 Expr::Sequence({Expr::Text("{"), Space(), std::move(more), Expr::Text("}")}));
}

absl::StatusOr<GbnfExpr> JsonGrammar::VisitArray(const SchemaJson& schema, const Place& place) {
  auto times = TimesOf(schema, {"minItems", "maxItems"}, place);
  if (!times.ok()) return times.status();
  if (const SchemaJson* unique = Keyword(schema, "uniqueItems");
      unique != nullptr && *unique == true) {
    Relax(place.In("uniqueItems"));
  }
  if (schema.contains("contains") && !schema.contains("minContains") && times->max > 0) {
    times->min = std::max(times->min, 1u);
  }
  const SchemaJson* first = Keyword(schema, "prefixItems");
  const SchemaJson* items = Keyword(schema, "items");
  // The form of older drafts.
  const char* name = first != nullptr ? "prefixItems" : "items";
  if (first == nullptr && items != nullptr && items->is_array()) {
    first = items;
    items = Keyword(schema, "additionalItems");
  }
  if (items == nullptr) items = Keyword(schema, "unevaluatedItems");
  if (first != nullptr && !first->is_array()) {
    return BadSchema(place.path + ".prefixItems", "must be an array of schemas");
  }
  const size_t n = first != nullptr ? first->size() : 0;
  // Where the schema names the first items, others come only if it allows or requires more.
  const SchemaJson any = true, none = false;
  const SchemaJson& rest = items != nullptr ? *items : n > 0 && times->min <= n ? none : any;
  std::vector<Expr> heads;
  size_t most = times->max;
  for (size_t i = 0; i < n && i < most; ++i) {
    Place at = place.In(name);
    absl::StrAppend(&at.path, "[", i, "]");
    auto item = Visit((*first)[i], at);
    if (!item.ok() && (i < times->min || !IsUnmet(item.status()))) return item.status();
    if (!item.ok()) {
      most = i;
      break;
    }
    heads.push_back(*std::move(item));
  }
  std::optional<Expr> more;
  if (heads.size() == n && n < most) {
    auto item = Visit(rest, place.In("items"));
    if (!item.ok() && (times->min > n || !IsUnmet(item.status()))) return item.status();
    if (item.ok()) more = *std::move(item);
  }
  // From the last to the first: item i and all behind it.
  const auto count = [&](size_t taken) {
    const auto left = [taken](uint32_t value) {
      return value > taken ? value - static_cast<uint32_t>(taken) : 0;
    };
    return Expr::Times{.min = left(times->min),
                       .max = times->max == Expr::kNoMax ? Expr::kNoMax : left(times->max)};
  };
  Expr tail = Expr::Text("");
  if (more) {
    const Expr one = NewRule("item", Expr::Sequence({*more, Space()}));
    const size_t taken = std::max<size_t>(heads.size(), 1);
    Expr others = RepeatAnyNumber(Expr::Sequence({Comma(Space()), one}), count(taken));
    if (heads.empty()) {
      tail = Expr::Sequence({one, std::move(others)});
      if (times->min == 0) tail = Expr::Optional(std::move(tail));
    } else {
      tail = std::move(others);
    }
  }
  for (size_t i = heads.size(); i-- > 0;) {
    Expr item = Expr::Sequence({std::move(heads[i]), Space(), std::move(tail)});
    if (i > 0) item = Expr::Sequence({Comma(Space()), std::move(item)});
    tail = NewRule("item", i >= times->min ? Expr::Optional(std::move(item)) : std::move(item));
  }
  return NewRule("array",
                 Expr::Sequence({Expr::Text("["), Space(), std::move(tail), Expr::Text("]")}));
}

}  // namespace strata
