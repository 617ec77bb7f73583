#include "node/grammar/schema_check.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "node/grammar/string_formats.h"

namespace strata {

using Json = nlohmann::json;

namespace {

const Json* Get(const Json& schema, const char* name) {
  const auto found = schema.find(name);
  return found == schema.end() ? nullptr : &*found;
}

absl::Status TooLarge() {
  return absl::ResourceExhaustedError("it is too large, or nests too deeply, to be checked");
}

size_t CodePoints(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

// The library compares large unsigned numbers with signed ones as if they were negative.
bool IsLess(const Json& a, const Json& b) {
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  const auto is_large = [](const Json& number) {
    return number.is_number_unsigned() && number.get<uint64_t>() > kMost;
  };
  if (is_large(a) != is_large(b)) return a.get<double>() < b.get<double>();
  return a < b;
}

bool IsMultiple(const Json& value, const Json& of) {
  if (value.is_number_integer() && of.is_number_integer()) {
    const auto divisor = of.get<int64_t>();
    return divisor != 0 && value.get<int64_t>() % divisor == 0;
  }
  // 0.07 is a multiple of 0.01, although no such double is.
  const double times = value.get<double>() / of.get<double>();
  return std::abs(times - std::round(times)) <= 1e-9 * std::abs(times);
}

// Of keywords that count.
bool InCounts(const Json& schema, const char* min, const char* max, size_t n) {
  const Json* least = Get(schema, min);
  const Json* most = Get(schema, max);
  return (least == nullptr || !least->is_number() ||
          static_cast<double>(n) >= least->get<double>()) &&
         (most == nullptr || !most->is_number() || static_cast<double>(n) <= most->get<double>());
}

}  // namespace

// One value's check. Each pair of a reference's target and a value is looked at once.
class SchemaCheck::Run {
 public:
  explicit Run(SchemaCheck* check) : check_(*check) {}

  bool Meets(const Json& schema, const Json& value) {
    if (schema.is_boolean()) return schema.get<bool>() || Fails("false");
    if (!schema.is_object()) return true;
    if (!Step(1 + schema.size()) || depth_ >= kSchemaCheckDepthMax) {
      exhausted_ = true;
      return false;
    }
    ++depth_;
    const absl::Cleanup leave = [this] { --depth_; };
    return MeetsRef(schema, value) && MeetsType(schema, value) && MeetsLogic(schema, value) &&
           (!value.is_number() || MeetsNumber(schema, value)) &&
           (!value.is_string() || MeetsString(schema, value.get_ref<const std::string&>())) &&
           (!value.is_array() || MeetsArray(schema, value)) &&
           (!value.is_object() || MeetsObject(schema, value));
  }
  bool exhausted() const { return exhausted_; }
  const char* failed() const { return failed_; }

 private:
  bool Fails(const char* keyword) {
    if (trials_ == 0 && *failed_ == '\0') failed_ = keyword;
    return false;
  }
  bool Step(size_t steps) {
    left_ -= std::min(left_, steps);
    if (left_ == 0) exhausted_ = true;
    return !exhausted_;
  }
  // Without a word about what fails.
  bool Try(const Json& schema, const Json& value) {
    ++trials_;
    const absl::Cleanup leave = [this] { --trials_; };
    return Meets(schema, value);
  }
  bool Matches(const std::string& regex, const std::string& text) {
    const Pattern& pattern = check_.PatternOf(regex);
    if (!pattern.matcher) return true;
    return Step((1 + text.size()) * (1 + pattern.matcher->nodes() / 8)) &&
           pattern.matcher->Matches(text);
  }

  bool MeetsRef(const Json& schema, const Json& value) {
    const Json* ref = Get(schema, "$ref");
    if (ref == nullptr || !ref->is_string()) return true;
    const auto& name = ref->get_ref<const std::string&>();
    const auto [found, sought] = check_.refs_.try_emplace(name, nullptr);
    if (sought) found->second = FindRef(check_.document_, name);
    const Json* target = found->second;
    if (target == nullptr) return Fails("$ref");
    const auto [known, added] = refs_.try_emplace({target, &value}, false);  // false: a circle
    if (!added) return known->second || Fails("$ref");
    return known->second = Meets(*target, value);
  }

  bool MeetsType(const Json& schema, const Json& value) {
    if (const Json* type = Get(schema, "type"); type != nullptr) {
      const auto is = [&value](const Json& name) {
        return name.is_string() && HasType(value, name.get_ref<const std::string&>());
      };
      const bool typed = type->is_array() ? std::any_of(type->begin(), type->end(), is) : is(*type);
      const Json* nullable = Get(schema, "nullable");
      if (!typed && !(value.is_null() && nullable != nullptr && *nullable == true)) {
        return Fails("type");
      }
    }
    if (const Json* list = Get(schema, "enum"); list != nullptr) {
      if (!Step(list->size())) return false;
      if (std::find(list->begin(), list->end(), value) == list->end()) return Fails("enum");
    }
    const Json* only = Get(schema, "const");
    return only == nullptr || *only == value || Fails("const");
  }

  bool MeetsLogic(const Json& schema, const Json& value) {
    for (const Json& each : ListOf(schema, "allOf")) {
      if (!Meets(each, value)) return false;
    }
    for (const char* keyword : {"anyOf", "oneOf"}) {
      if (Get(schema, keyword) == nullptr) continue;
      size_t met = 0;
      for (const Json& each : ListOf(schema, keyword)) {
        if (Try(each, value)) ++met;
        if (met > 0 && keyword[0] == 'a') break;
      }
      if (met == 0 || (met > 1 && keyword[0] == 'o')) return Fails(keyword);
    }
    if (const Json* other = Get(schema, "not"); other != nullptr) {
      if (Try(*other, value) || exhausted_) return Fails("not");
    }
    if (const Json* condition = Get(schema, "if"); condition != nullptr) {
      const bool holds = Try(*condition, value);
      const Json* then = Get(schema, holds ? "then" : "else");
      if (exhausted_ || (then != nullptr && !Meets(*then, value))) return Fails("if");
    }
    return true;
  }
  static const Json& ListOf(const Json& schema, const char* keyword) {
    static const auto* const none = new Json(Json::array());
    const Json* list = Get(schema, keyword);
    return list != nullptr && list->is_array() ? *list : *none;
  }

  bool MeetsNumber(const Json& schema, const Json& value) {
    const auto number = [&schema](const char* name) {
      const Json* field = Get(schema, name);
      return field != nullptr && field->is_number() ? field : nullptr;
    };
    // Of draft 4: the bound beside it is exclusive.
    const auto is_exclusive = [&schema](const char* name) {
      const Json* field = Get(schema, name);
      return field != nullptr && *field == true;
    };
    if (const Json* low = number("minimum")) {
      if (IsLess(value, *low) || (value == *low && is_exclusive("exclusiveMinimum")))
        return Fails("minimum");
    }
    if (const Json* high = number("maximum")) {
      if (IsLess(*high, value) || (value == *high && is_exclusive("exclusiveMaximum")))
        return Fails("maximum");
    }
    const Json* above = number("exclusiveMinimum");
    if (above != nullptr && !IsLess(*above, value)) return Fails("exclusiveMinimum");
    const Json* below = number("exclusiveMaximum");
    if (below != nullptr && !IsLess(value, *below)) return Fails("exclusiveMaximum");
    const Json* of = number("multipleOf");
    return of == nullptr || IsMultiple(value, *of) || Fails("multipleOf");
  }

  bool MeetsString(const Json& schema, const std::string& value) {
    if (!InCounts(schema, "minLength", "maxLength", CodePoints(value))) return Fails("length");
    const Json* pattern = Get(schema, "pattern");
    if (pattern != nullptr && pattern->is_string()) {
      return Matches(pattern->get_ref<const std::string&>(), value) || Fails("pattern");
    }
    // Beside a pattern it is a remark.
    const Json* format = Get(schema, "format");
    if (format == nullptr || !format->is_string()) return true;
    const char* regex = FormatRegex(format->get_ref<const std::string&>());
    return regex == nullptr || Matches(regex, value) || Fails("format");
  }

  bool MeetsArray(const Json& schema, const Json& value) {
    if (!InCounts(schema, "minItems", "maxItems", value.size())) return Fails("number of items");
    const Json* items = Get(schema, "items");
    const Json* first = Get(schema, "prefixItems");
    if (first == nullptr && items != nullptr && items->is_array()) {
      first = std::exchange(items, Get(schema, "additionalItems"));
    }
    const size_t n = first != nullptr && first->is_array() ? first->size() : 0;
    for (size_t i = 0; i < value.size(); ++i) {
      const Json* item = i < n ? &(*first)[i] : items;
      if (item != nullptr && !Meets(*item, value[i])) return false;
    }
    if (const Json* some = Get(schema, "contains"); some != nullptr) {
      size_t met = 0;
      for (const Json& each : value) met += Try(*some, each) ? 1 : 0;
      const bool enough = Get(schema, "minContains") != nullptr || met > 0;
      if (exhausted_ || !enough || !InCounts(schema, "minContains", "maxContains", met)) {
        return Fails("contains");
      }
    }
    const Json* unique = Get(schema, "uniqueItems");
    if (unique == nullptr || *unique != true) return true;
    std::vector<const Json*> order;
    for (const Json& each : value) order.push_back(&each);
    std::sort(order.begin(), order.end(), [](const Json* a, const Json* b) { return *a < *b; });
    for (size_t i = 1; i < order.size(); ++i) {
      if (*order[i - 1] == *order[i]) return Fails("uniqueItems");
    }
    return true;
  }

  bool MeetsObject(const Json& schema, const Json& value) {
    if (!InCounts(schema, "minProperties", "maxProperties", value.size())) {
      return Fails("number of properties");
    }
    for (const Json& key : ListOf(schema, "required")) {
      if (key.is_string() && !value.contains(key.get_ref<const std::string&>()))
        return Fails("required");
    }
    const Json* declared = Get(schema, "properties");
    const Json* patterns = Get(schema, "patternProperties");
    const Json* more = Get(schema, "additionalProperties");
    const Json* names = Get(schema, "propertyNames");
    for (const auto& [key, member] : value.items()) {
      if (!Step(1)) return false;
      if (names != nullptr && !MeetsName(*names, key)) return Fails("propertyNames");
      bool known = false;
      if (declared != nullptr && declared->is_object()) {
        const auto property = declared->find(key);
        known = property != declared->end();
        if (known && !Meets(*property, member)) return false;
      }
      if (patterns != nullptr && patterns->is_object()) {
        for (const auto& [regex, property] : patterns->items()) {
          if (!Matches(regex, key)) continue;
          known = true;
          if (!Meets(property, member)) return false;
        }
      }
      if (!known && more != nullptr && !Meets(*more, member)) return Fails("additionalProperties");
    }
    return MeetsDependencies(schema, value);
  }
  bool MeetsName(const Json& schema, const std::string& name) {
    const Json& key = names_.emplace_back(name);  // kept: references are known by its address
    return Try(schema, key);
  }
  bool MeetsDependencies(const Json& schema, const Json& value) {
    for (const char* keyword : {"dependentRequired", "dependentSchemas", "dependencies"}) {
      const Json* list = Get(schema, keyword);
      if (list == nullptr || !list->is_object()) continue;
      for (const auto& [key, then] : list->items()) {
        if (!Step(1)) return false;
        if (!value.contains(key)) continue;
        const auto has = [&value](const Json& name) {
          return !name.is_string() || value.contains(name.get_ref<const std::string&>());
        };
        const bool met =
            then.is_array() ? std::all_of(then.begin(), then.end(), has) : Meets(then, value);
        if (!met) return Fails(keyword);
      }
    }
    return true;
  }

  SchemaCheck& check_;
  std::map<std::pair<const Json*, const Json*>, bool> refs_;
  std::deque<Json> names_;
  size_t left_ = kSchemaCheckStepsMax;
  int depth_ = 0;
  int trials_ = 0;
  bool exhausted_ = false;
  const char* failed_ = "";
};

absl::Status SchemaCheck::CheckText(absl::string_view text) {
  int depth = 0;  // in strings, too: no answer has so many braces there
  for (const char c : text) {
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (depth > kSchemaCheckDepthMax) return TooLarge();
  }
  const Json value = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return absl::FailedPreconditionError("it is not JSON");
  return Check(document_, value);
}

absl::Status SchemaCheck::Check(const Json& schema, const Json& value) {
  Run run(this);
  const bool meets = run.Meets(schema, value);
  if (run.exhausted()) return TooLarge();
  return meets ? absl::OkStatus() : absl::FailedPreconditionError(run.failed());
}

const SchemaCheck::Pattern& SchemaCheck::PatternOf(const std::string& regex) {
  const auto [entry, added] = patterns_.try_emplace(regex);
  if (!added) return entry->second;
  const auto parsed = ParseRegex(regex);
  if (parsed.ok() && IsExact(*parsed)) {
    entry->second.matcher = TextMatcher::Create({{.regex = *parsed}});
  }
  return entry->second;
}

absl::Status SchemaCheck::CanCheck(const SchemaJson& schema, const std::string& path) {
  struct Place {
    const SchemaJson* at;
    std::string path;
  };
  std::vector<Place> todo = {{&schema, path}};
  size_t nodes = 0;
  const auto check_pattern = [&nodes](const std::string& regex, const std::string& at) {
    const auto parsed = ParseRegex(regex);
    if (!parsed.ok()) return BadSchema(at, parsed.status().message());
    if (!IsExact(*parsed)) {
      return BadSchema(
          at,
          "has what can neither be kept nor checked (\\p, a look-behind, a reference to a "
          "group): leave that out, or set strict to false");
    }
    const auto matcher = TextMatcher::Create({{.regex = *parsed}});
    nodes += matcher ? matcher->nodes() : kMatcherNodesMax;
    if (!matcher || nodes > 8 * kMatcherNodesMax) return BadSchema(at, "is too large");
    return absl::OkStatus();
  };
  while (!todo.empty()) {
    const Place place = std::move(todo.back());
    todo.pop_back();
    for (const auto& [key, value] : place.at->items()) {
      const std::string at = place.at->is_array() ? absl::StrCat(place.path, "[", key, "]")
                                                  : absl::StrCat(place.path, ".", key);
      absl::Status status;
      if (place.at->is_object()) {
        if (key == "enum" || key == "const" || key == "default" || key == "examples") continue;
        if (key == "pattern" && value.is_string()) {
          status = check_pattern(value.get_ref<const std::string&>(), at);
        } else if (key == "patternProperties" && value.is_object()) {
          for (const auto& property : value.items()) {
            status.Update(check_pattern(property.key(), absl::StrCat(at, ".", property.key())));
          }
        }
      }
      if (!status.ok()) return status;
      if (value.is_structured()) todo.push_back({&value, at});
    }
  }
  return absl::OkStatus();
}

}  // namespace strata
