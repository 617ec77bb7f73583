#include "node/api/field_reader.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "coordinator/request/request_status.h"
#include "nlohmann/json.hpp"

namespace strata {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

void FieldReader::Wrong(absl::string_view name, absl::string_view words) {
  Fail(BadParam(PathOf(name), words));
}

std::string FieldReader::PathOf(absl::string_view name) const { return absl::StrCat(path_, name); }

const Json* FieldReader::Find(const char* name) const { return Member(json_, name); }

std::optional<bool> FieldReader::Bool(const char* name) {
  const Json* field = Find(name);
  if (field == nullptr) return std::nullopt;
  if (field->is_boolean()) return field->get<bool>();
  Wrong(name, "must be true or false");
  return std::nullopt;
}

std::optional<double> FieldReader::Number(const char* name, Range range) {
  const Json* field = Find(name);
  if (field == nullptr) return std::nullopt;
  const double value = field->is_number() ? field->get<double>() : std::nan("");
  if (value >= range.low && value <= range.high) return value;
  Wrong(name, absl::StrCat("must be a number from ", range.low, " to ", range.high));
  return std::nullopt;
}

std::optional<int64_t> FieldReader::Integer(const char* name, Range range) {
  const Json* field = Find(name);
  if (field == nullptr) return std::nullopt;
  // Some clients write 16.0.
  const double value = field->is_number() ? field->get<double>() : std::nan("");
  if (value >= range.low && value <= range.high && value == std::floor(value)) {
    return static_cast<int64_t>(value);
  }
  Wrong(name, absl::StrCat("must be a whole number from ", static_cast<int64_t>(range.low), " to ",
                           static_cast<int64_t>(range.high)));
  return std::nullopt;
}

std::optional<std::string> FieldReader::Text(const char* name) {
  const Json* field = Find(name);
  if (field == nullptr) return std::nullopt;
  if (field->is_string()) return field->get<std::string>();
  Wrong(name, "must be a string");
  return std::nullopt;
}

// The elements, or the one value. Bodies may be large: nothing is copied.
std::vector<const Json*> ListOf(const Json& json, bool several) {
  std::vector<const Json*> list;
  if (!several) {
    list.push_back(&json);
  } else {
    for (const Json& each : json) list.push_back(&each);
  }
  return list;
}

// Of one token at least.
std::optional<std::vector<int32_t>> TokensOf(const Json& json) {
  if (!json.is_array() || json.empty()) return std::nullopt;
  for (const Json& token : json) {
    if (!token.is_number_integer() || token.get<int64_t>() < 0 ||
        token.get<int64_t>() > std::numeric_limits<int32_t>::max()) {
      return std::nullopt;
    }
  }
  return json.get<std::vector<int32_t>>();
}

namespace {

template <typename AnyJson>
const AnyJson* MemberOf(const AnyJson& json, const char* name) {
  const auto found = json.find(name);  // the end where it is no object
  return found == json.end() || found->is_null() ? nullptr : &*found;
}

template <typename AnyJson>
const std::string* TextMemberOf(const AnyJson& json, const char* name) {
  const AnyJson* member = MemberOf(json, name);
  return member == nullptr ? nullptr : member->template get_ptr<const std::string*>();
}

}  // namespace

const Json* Member(const Json& json, const char* name) { return MemberOf(json, name); }
const OrderedJson* Member(const OrderedJson& json, const char* name) {
  return MemberOf(json, name);
}

const std::string* TextMember(const Json& json, const char* name) {
  return TextMemberOf(json, name);
}
const std::string* TextMember(const OrderedJson& json, const char* name) {
  return TextMemberOf(json, name);
}

}  // namespace strata
