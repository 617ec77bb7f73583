#pragma once

// Reading and writing of GGUF share these: the file's first bytes, and values as they lie in it.
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

#include <bit>
#include <cstring>
#include <string>

#include "absl/strings/string_view.h"

namespace strata {

static_assert(std::endian::native == std::endian::little, "GGUF values are kept as in the file");

inline constexpr absl::string_view kGgufMagic = "GGUF";
inline constexpr absl::string_view kGgufAlignmentKey = "general.alignment";

template <typename T>
void AppendRaw(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// `bytes` points to sizeof(T) of them, at any alignment.
template <typename T>
T LoadRaw(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

}  // namespace strata
