// JSON on stdout. Pure.
#pragma once

#include <string>

#include "nlohmann/json.hpp"

namespace strata {

// On one line; bytes that are not UTF-8 are replaced.
inline std::string JsonLine(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace strata
