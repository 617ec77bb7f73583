#pragma once

// The bytes of a string in the type of OpenSSL's functions.

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace strata {

inline const uint8_t* OpensslBytes(absl::string_view text) {
  return reinterpret_cast<const uint8_t*>(text.data());
}

inline uint8_t* OpensslBytes(std::string* text) { return reinterpret_cast<uint8_t*>(text->data()); }

}  // namespace strata
