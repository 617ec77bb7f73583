// A fuzzer's bytes, read as numbers and strings.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

namespace strata {

// Reads from the front; zeros behind the end. REQUIRES: the bytes outlive it.
class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }
  // A number of so many bytes, at most four, the highest first.
  uint32_t Number(size_t bytes) {
    uint32_t number = 0;
    for (; bytes > 0 && size_ > 0; --bytes, ++data_, --size_) number = number << 8 | *data_;
    return number;
  }
  std::string Bytes(size_t n) {
    n = std::min(n, size_);
    std::string bytes(reinterpret_cast<const char*>(data_), n);
    data_ += n;
    size_ -= n;
    return bytes;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

}  // namespace strata
