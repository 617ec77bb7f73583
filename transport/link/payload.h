// Immutable bytes with an owner, moved from a stage's output to the socket and from the socket to
// the next stage's input without a copy where the transport allows it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace strata {

// Cheap to copy: copies share the bytes. Thread-safe to read.
class Payload {
 public:
  Payload() = default;

  static Payload Own(std::vector<float> values);
  static Payload Own(std::string bytes);
  // `data` stays valid for as long as `owner` lives. `owner` is shared by the copies of this
  // payload.
  static Payload Share(std::shared_ptr<const void> owner, const void* data, size_t size);

  const char* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  absl::string_view bytes() const { return {data_, size_}; }
  // Keeps the bytes alive; shared by the copies of this payload.
  const std::shared_ptr<const void>& owner() const { return owner_; }

  // The bytes as f32.
  // REQUIRES: size() is a multiple of 4 and data() is aligned for floats, as in every Payload that
  // this library makes.
  absl::Span<const float> floats() const;

 private:
  std::shared_ptr<const void> owner_;  // shared by copies of this payload
  const char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace strata
