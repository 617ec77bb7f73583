// Variables of the process. Any thread that runs while nobody changes them.
#pragma once

#include <cstdlib>
#include <string>

namespace strata {

// Empty: it is not set.
inline std::string EnvironmentVariable(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace strata
