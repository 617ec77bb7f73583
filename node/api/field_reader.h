// Reads the fields of one JSON object of a request; keeps the first error. Pure; no byte of the
// input is trusted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace strata {

class FieldReader {
 public:
  // REQUIRES: `json` is an object, and outlives this. `path`: of the object in the body, with a dot
  // at its end; empty: it is the body.
  explicit FieldReader(const nlohmann::json& json, absl::string_view path = "")
      : json_(json), path_(path) {}

  const nlohmann::json& json() const { return json_; }
  const absl::Status& status() const { return status_; }
  void Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  // BadParam of the field.
  void Wrong(absl::string_view name, absl::string_view words);
  std::string PathOf(absl::string_view name) const;

  // Null where the field is missing or null.
  const nlohmann::json* Find(const char* name) const;
  // Nothing where the field is missing, null, or wrong, which is an error.
  std::optional<bool> Bool(const char* name);
  struct Range {
    double low, high;
  };
  std::optional<double> Number(const char* name, Range range);
  std::optional<int64_t> Integer(const char* name, Range range);
  std::optional<std::string> Text(const char* name);

 private:
  const nlohmann::json& json_;
  const std::string path_;
  absl::Status status_;
};

// The elements, or the one value. Bodies may be large: nothing is copied.
std::vector<const nlohmann::json*> ListOf(const nlohmann::json& json, bool several);

// Token ids, one at least.
std::optional<std::vector<int32_t>> TokensOf(const nlohmann::json& json);

// A member of an object. Null: `json` is no object, or the member is missing or null.
const nlohmann::json* Member(const nlohmann::json& json, const char* name);
const nlohmann::ordered_json* Member(const nlohmann::ordered_json& json, const char* name);
// Null where the member is no string, too.
const std::string* TextMember(const nlohmann::json& json, const char* name);
const std::string* TextMember(const nlohmann::ordered_json& json, const char* name);

}  // namespace strata
