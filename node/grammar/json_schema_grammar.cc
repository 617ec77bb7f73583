#include "node/grammar/json_schema_grammar.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "node/grammar/number_grammar.h"

namespace strata {
namespace {

using Expr = GbnfExpr;

// Keywords that no grammar expresses.
constexpr const char* kRelaxed[] = {"if", "contains", "dependentRequired", "dependencies",
                                    "dependentSchemas"};

Expr Hex(uint32_t times) {
  return Expr::Repeat(Expr::Class({{'0', '9'}, {'a', 'f'}, {'A', 'F'}}),
                      {.min = times, .max = times});
}

// One character of a string, plain or escaped; surrogates come in pairs.
Expr Character() {
  const Expr pair = Expr::Sequence({Expr::Class({{'8', '9'}, {'a', 'b'}, {'A', 'B'}}), Hex(2),
                                    Expr::Text("\\u"), Expr::Class({{'d', 'd'}, {'D', 'D'}}),
                                    Expr::Class({{'c', 'f'}, {'C', 'F'}}), Hex(2)});
  const Expr code = Expr::Choice(
      {Expr::Sequence(
           {Expr::Class({{'0', '9'}, {'a', 'c'}, {'A', 'C'}, {'e', 'f'}, {'E', 'F'}}), Hex(3)}),
       Expr::Sequence(
           {Expr::Class({{'d', 'd'}, {'D', 'D'}}),
            Expr::Choice({Expr::Sequence({Expr::Class({{'0', '7'}}), Hex(2)}), pair})})});
  Expr escaped = Expr::Choice({Expr::Class({{'"', '"'},
                                            {'\\', '\\'},
                                            {'/', '/'},
                                            {'b', 'b'},
                                            {'f', 'f'},
                                            {'n', 'n'},
                                            {'r', 'r'},
                                            {'t', 't'}}),
                               Expr::Sequence({Expr::Text("u"), code})});
  return Expr::Choice({Expr::Class({{'"', '"'}, {'\\', '\\'}, {0, 0x1F}}, /*negated=*/true),
                       Expr::Sequence({Expr::Text("\\"), std::move(escaped)})});
}

Expr AnyInteger() {
  return Expr::Sequence(
      {Expr::Optional(Expr::Text("-")),
       Expr::Choice({Expr::Text("0"), Expr::Sequence({Expr::Class({{'1', '9'}}),
                                                      Expr::Repeat(Expr::Class({{'0', '9'}}),
                                                                   {.max = kWholeDigits - 1})})})});
}

}  // namespace

JsonGrammar::Place JsonGrammar::Place::In(absl::string_view keyword) const {
  return {.document = document, .path = absl::StrCat(path, ".", keyword), .depth = depth + 1};
}

JsonGrammar::JsonGrammar() {
  NewRule("root", Expr::Text(""));
  space_ =
      NewRule("space",
              Expr::Optional(Expr::Choice(
                  {Expr::Text(" "), Expr::Sequence({Expr::Text("\n"),
                                                    Expr::Repeat(Expr::Text(" "), {.max = 32})})})))
          .rule;
  character_ = NewRule("char", Character()).rule;
  string_ =
      NewRule("string", Expr::Sequence({Expr::Text("\""), Expr::Repeat(Expr::Rule(character_), {}),
                                        Expr::Text("\"")}))
          .rule;
  integer_ = NewRule("integer", AnyInteger()).rule;
  number_ =
      NewRule(
          "number",
          Expr::Sequence({Expr::Rule(integer_), Expr::Optional(AnyFraction(kFractionDigitsMax)),
                          Expr::Optional(Expr::Sequence(
                              {Expr::Class({{'e', 'e'}, {'E', 'E'}}),
                               Expr::Optional(Expr::Class({{'+', '+'}, {'-', '-'}})),
                               Expr::Repeat(Expr::Class({{'0', '9'}}), {.min = 1, .max = 2})}))}))
          .rule;
}

GbnfExpr JsonGrammar::NewRule(absl::string_view name, Expr body) {
  grammar_.rules.push_back({.name = grammar_.rules.empty()
                                        ? std::string(name)
                                        : absl::StrCat(name, "-", grammar_.rules.size()),
                            .body = std::move(body)});
  paths_.emplace_back();
  return Expr::Rule(grammar_.rules.size() - 1);
}

GbnfExpr JsonGrammar::Shared(const std::string& key, Expr body) {
  const auto [entry, added] = shared_.try_emplace(key, 0);
  if (added) entry->second = NewRule("s", std::move(body)).rule;
  return Expr::Rule(entry->second);
}

bool JsonGrammar::Work(size_t amount) {
  work_ += amount;
  return work_ <= kSchemaGrammarWorkMax;
}

GbnfExpr JsonGrammar::AnyValue() {
  if (value_ != 0) return Expr::Rule(value_);
  value_ = NewRule("value", Expr::Text("")).rule;
  const Expr list = Expr::Sequence(
      {Expr::Text("["), Space(),
       Expr::Optional(Expr::Sequence(
           {Expr::Rule(value_), Space(),
            Expr::Repeat(Expr::Sequence({Expr::Text(","), Space(), Expr::Rule(value_), Space()}),
                         {})})),
       Expr::Text("]")});
  grammar_.rules[value_].body =
      Expr::Choice({AnyObject(), NewRule("array", list), Expr::Rule(string_), Expr::Rule(number_),
                    Expr::Text("true"), Expr::Text("false"), Expr::Text("null")});
  return Expr::Rule(value_);
}

GbnfExpr JsonGrammar::AnyObject() {
  if (object_ != 0) return Expr::Rule(object_);
  object_ = NewRule("object", Expr::Text("")).rule;
  const Expr pair = Expr::Sequence({Expr::Rule(string_), Pair(AnyValue())});
  grammar_.rules[object_].body = Expr::Sequence(
      {Expr::Text("{"), Space(),
       Expr::Optional(Expr::Sequence(
           {pair, Expr::Repeat(Expr::Sequence({Expr::Text(","), Space(), pair}), {})})),
       Expr::Text("}")});
  return Expr::Rule(object_);
}

GbnfExpr JsonGrammar::Pair(Expr value) {
  return Expr::Sequence(
      {Expr::Text(":"), Expr::Optional(Expr::Text(" ")), std::move(value), Space()});
}

absl::StatusOr<GbnfExpr> JsonGrammar::Schema(const SchemaJson& schema, const std::string& path) {
  const SchemaJson& document = documents_.emplace_back(schema);
  return Visit(document, {.document = &document, .path = path});
}

absl::StatusOr<std::string> JsonGrammar::Finish(Expr root, const std::string& path) {
  grammar_.rules[0].body = std::move(root);
  for (const size_t rule : EndlessGbnfRules(grammar_)) {
    if (paths_[rule].empty() && rule != 0) continue;
    return UnmetSchema(rule == 0 ? path : paths_[rule],
                       "no value that ends meets it: it asks for itself");
  }
  std::string text = work_ > kSchemaGrammarWorkMax ? "" : PrintGbnf(grammar_);
  if (text.empty() || text.size() > kSchemaGrammarBytesMax) {
    return BadSchema(path, "is too large");
  }
  if (absl::Status status = CheckGbnf(grammar_); !status.ok()) {
    return BadSchema(path, absl::StrCat("cannot be checked in bounded time: ", status.message()));
  }
  return text;
}

absl::StatusOr<GbnfExpr> JsonGrammar::Visit(const SchemaJson& schema, const Place& place) {
  if (place.depth > kSchemaDepthMax || !Work(1)) {
    return BadSchema(place.path, "is too large, or nests too deeply");
  }
  if (schema == true) return AnyValue();
  if (schema == false) return UnmetSchema(place.path, "is false: no value meets it");
  if (!schema.is_object()) return BadSchema(place.path, "must be a schema, an object");
  for (const char* name : {"$dynamicRef", "$recursiveRef"}) {
    if (schema.contains(name)) {
      return BadSchema(absl::StrCat(place.path, ".", name), "is not supported: use $ref");
    }
  }
  for (const char* name : kRelaxed) {
    if (schema.contains(name)) Relax(place.In(name));
  }
  SchemaMerge merge = {.document = *place.document, .budget = &merges_, .relaxed = &relaxed_};
  if (const SchemaJson* all = Keyword(schema, "allOf"); all != nullptr) {
    if (!all->is_array() || all->empty()) {
      return BadSchema(place.path + ".allOf", "must be an array of schemas");
    }
    SchemaJson whole = schema;
    whole.erase("allOf");
    for (const SchemaJson& each : *all) {
      auto both = MergeSchemas(merge, whole, each, place.path + ".allOf");
      if (!both.ok()) return both.status();
      whole = *std::move(both);
    }
    Place next = place;
    ++next.depth;
    return Visit(whole, next);
  }
  if (const SchemaJson* ref = Keyword(schema, "$ref"); ref != nullptr) {
    if (!ref->is_string()) return BadSchema(place.path + ".$ref", "must be a string");
    SchemaJson rest = SchemaJson::object();
    for (const auto& [key, value] : schema.items()) {
      if (key != "$ref" && !IsAnnotation(key)) rest[key] = value;
    }
    if (rest.empty()) return VisitRef(ref->get<std::string>(), place);
    const auto whole = MergeSchemas(merge, schema, SchemaJson::object(), place.path);
    if (!whole.ok()) return whole.status();
    Place next = place;
    ++next.depth;
    return Visit(*whole, next);
  }
  for (const char* keyword : {"anyOf", "oneOf"}) {
    if (schema.contains(keyword)) return VisitAlternatives(schema, keyword, place);
  }
  if (schema.contains("enum") || schema.contains("const")) return VisitValues(schema, place);
  auto types = TypesOf(schema, place.path);
  if (!types.ok()) return types.status();
  if (const SchemaJson* other = Keyword(schema, "not"); other != nullptr) {
    if (absl::Status status = Exclude(*other, place.In("not"), &*types); !status.ok())
      return status;
  }
  if (types->empty()) {
    constexpr std::pair<const char*, const char*> kHints[] = {{"properties", "object"},
                                                              {"required", "object"},
                                                              {"additionalProperties", "object"},
                                                              {"unevaluatedProperties", "object"},
                                                              {"patternProperties", "object"},
                                                              {"propertyNames", "object"},
                                                              {"dependentRequired", "object"},
                                                              {"contains", "array"},
                                                              {"items", "array"},
                                                              {"prefixItems", "array"},
                                                              {"minItems", "array"},
                                                              {"maxItems", "array"},
                                                              {"minLength", "string"},
                                                              {"maxLength", "string"},
                                                              {"pattern", "string"},
                                                              {"format", "string"},
                                                              {"minimum", "number"},
                                                              {"maximum", "number"},
                                                              {"exclusiveMinimum", "number"},
                                                              {"exclusiveMaximum", "number"},
                                                              {"multipleOf", "number"},
                                                              {"uniqueItems", "array"},
                                                              {"minProperties", "object"},
                                                              {"maxProperties", "object"}};
    for (const auto& [keyword, type] : kHints) {
      if (schema.contains(keyword) &&
          std::find(types->begin(), types->end(), type) == types->end()) {
        types->emplace_back(type);
      }
    }
    if (types->empty()) return AnyValue();
  }
  std::vector<Expr> parts;
  absl::Status why;
  for (const std::string& type : *types) {
    auto part = VisitType(schema, type, place);
    if (part.ok()) {
      parts.push_back(*std::move(part));
    } else if (IsUnmet(part.status())) {
      why = part.status();
    } else {
      return part.status();
    }
  }
  if (parts.empty()) return why;
  return Expr::Choice(std::move(parts));
}

// Removes the types that "not" forbids; what else it forbids is relaxed.
absl::Status JsonGrammar::Exclude(const SchemaJson& other, const Place& place,
                                  std::vector<std::string>* types) {
  bool is_plain = other.is_object();  // nothing but a type
  for (const auto& member : other.items()) {
    is_plain = is_plain && (member.key() == "type" || IsAnnotation(member.key()));
  }
  if (other == true || (is_plain && !other.contains("type"))) {
    return UnmetSchema(place.path, "forbids every value");
  }
  if (!is_plain) {
    if (other != false) Relax(place);
    return absl::OkStatus();
  }
  const auto forbidden = TypesOf(other, place.path);
  if (!forbidden.ok()) return forbidden.status();
  if (types->empty()) *types = {"object", "array", "string", "number", "boolean", "null"};
  for (const std::string& type : *forbidden) {
    if (type == "number") std::erase(*types, "integer");
    if (type == "integer" && std::find(types->begin(), types->end(), "number") != types->end())
      Relax(place);
    std::erase(*types, type);
  }
  return types->empty() ? UnmetSchema(place.path, "forbids every value") : absl::OkStatus();
}

SchemaCheck& JsonGrammar::CheckOf(const SchemaJson* document) {
  return checks_.try_emplace(document, *document).first->second;
}

absl::StatusOr<GbnfExpr> JsonGrammar::VisitRef(const std::string& ref, const Place& place) {
  const auto known = refs_.find({place.document, ref});
  if (known != refs_.end()) {
    if (!known->second.status.ok()) return known->second.status;
    return Expr::Rule(known->second.rule);
  }
  const SchemaJson* target = FindRef(*place.document, ref);
  if (target == nullptr) {
    return BadSchema(place.path + ".$ref", absl::StrCat("does not resolve: ", ref));
  }
  const size_t rule = NewRule("ref", Expr::Text("")).rule;
  paths_[rule] = place.path;
  Ref& self = refs_[{place.document, ref}];
  self.rule = rule;
  Place next = place.In("$ref");
  auto body = Visit(*target, next);
  // A rule that refers only to itself would never begin.
  if (body.ok() && body->kind == Expr::Kind::kRule && body->rule == rule) {
    body = UnmetSchema(place.path + ".$ref", "refers to itself: no value meets it");
  }
  if (!body.ok()) {
    self.status = body.status();
    return self.status;
  }
  grammar_.rules[rule].body = *std::move(body);
  return Expr::Rule(rule);
}

absl::StatusOr<GbnfExpr> JsonGrammar::VisitAlternatives(const SchemaJson& schema,
                                                        const char* keyword, const Place& place) {
  const SchemaJson& list = schema[keyword];
  const Place here = place.In(keyword);
  if (!list.is_array() || list.empty()) return BadSchema(here.path, "must be an array of schemas");
  SchemaJson rest = SchemaJson::object();
  for (const auto& [key, value] : schema.items()) {
    if (key != keyword && !IsAnnotation(key)) rest[key] = value;
  }
  std::vector<Expr> parts;
  std::vector<SchemaJson> wholes;
  absl::Status why;
  for (size_t i = 0; i < list.size(); ++i) {
    Place next = here;
    absl::StrAppend(&next.path, "[", i, "]");
    auto whole =
        rest.empty()
            ? absl::StatusOr<SchemaJson>(list[i])
            : MergeSchemas({.document = *place.document, .budget = &merges_, .relaxed = &relaxed_},
                           rest, list[i], next.path);
    auto part = whole.ok() ? Visit(*whole, next) : absl::StatusOr<Expr>(whole.status());
    if (part.ok()) {
      parts.push_back(*std::move(part));
      wholes.push_back(*std::move(whole));
    } else if (IsUnmet(part.status())) {
      why = part.status();
    } else {
      return part.status();
    }
  }
  if (parts.empty()) return why;
  if (absl::string_view(keyword) == "oneOf" && !AreAllDisjoint(wholes, place)) Relax(here);
  return Expr::Choice(std::move(parts));
}

bool JsonGrammar::AreAllDisjoint(const std::vector<SchemaJson>& schemas, const Place& place) {
  for (size_t i = 0; i < schemas.size(); ++i) {
    for (size_t j = i + 1; j < schemas.size(); ++j) {
      if (!Work(10) || !AreDisjoint(*place.document, schemas[i], schemas[j])) return false;
    }
  }
  return true;
}

// The values of enum and const that meet the rest of the schema.
absl::StatusOr<GbnfExpr> JsonGrammar::VisitValues(const SchemaJson& schema, const Place& place) {
  if (const auto types = TypesOf(schema, place.path); !types.ok()) return types.status();
  const SchemaJson* list = Keyword(schema, "enum");
  if (list != nullptr && !list->is_array())
    return BadSchema(place.path + ".enum", "must be an array");
  std::vector<SchemaJson> values;
  if (list != nullptr) values.assign(list->begin(), list->end());
  if (const SchemaJson* only = Keyword(schema, "const"); only != nullptr) {
    const bool in =
        list == nullptr || std::find(values.begin(), values.end(), *only) != values.end();
    values = in ? std::vector<SchemaJson>{*only} : std::vector<SchemaJson>{};
  }
  SchemaJson rest = schema;
  for (const char* keyword : {"enum", "const"}) rest.erase(keyword);
  const SchemaCheck::Json rest_of_all = rest;
  std::set<std::string> texts;
  for (const SchemaJson& value : values) {
    const absl::Status status = CheckOf(place.document).Check(rest_of_all, value);
    if (absl::IsResourceExhausted(status) || !Work(rest.size())) {
      return BadSchema(place.path, "is too large beside its values");
    }
    if (status.ok()) texts.insert(value.dump());
  }
  if (texts.empty()) {
    return UnmetSchema(place.path + (list != nullptr ? ".enum" : ".const"),
                       "has no value that meets the rest of the schema");
  }
  std::vector<Word> words;
  for (const std::string& text : texts) words.push_back({Expr::Text(text).text, Expr::Text("")});
  return Words(std::move(words), 0, 0);
}

absl::StatusOr<GbnfExpr> JsonGrammar::VisitType(const SchemaJson& schema, const std::string& type,
                                                const Place& place) {
  if (type == "null") return Expr::Text("null");
  if (type == "boolean") return Expr::Choice({Expr::Text("true"), Expr::Text("false")});
  if (type == "string") return VisitString(schema, place);
  if (type == "object") return VisitObject(schema, place);
  if (type == "array") return VisitArray(schema, place);
  return VisitNumber(schema, type == "integer", place);
}

}  // namespace strata
