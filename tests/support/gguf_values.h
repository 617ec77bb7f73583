// Values of GGUF metadata that only tests make.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "shard/model/gguf.h"

namespace strata::testing {

inline GgufValue U32Array(const std::vector<uint32_t>& values) {
  GgufValue array;
  array.type = GgufType::kArray;
  array.element_type = GgufType::kU32;
  array.count = values.size();
  array.bytes.resize(values.size() * sizeof(uint32_t));
  std::memcpy(array.bytes.data(), values.data(), array.bytes.size());
  return array;
}

}  // namespace strata::testing
