// The parameters of a tool, as far as forms of calls need them that write each argument apart.
// Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "node/grammar/json_schema.h"

namespace strata {

struct ToolParameter {
  std::string name;
  SchemaJson schema;  // with the definitions that it refers to
  bool required = false;
  bool is_text = false;                   // strings only
  bool is_truth = false;                  // true or false only
  std::vector<std::string> types = {};    // empty: not known
  std::vector<std::string> choices = {};  // with is_text: the only strings; empty: any

  // Whether a value, JSON's text, is of one of the types, or strings are not.
  bool Takes(const std::string& value) const;
};

// Nothing where the schema is not an object's with named properties.
std::optional<std::vector<ToolParameter>> ParametersOf(const SchemaJson& schema);

}  // namespace strata
