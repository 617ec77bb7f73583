#include "transport/link/payload.h"

#include <cstdint>
#include <utility>

#include "absl/log/check.h"

namespace strata {

Payload Payload::Own(std::vector<float> values) {
  auto owner = std::make_shared<const std::vector<float>>(std::move(values));
  const void* data = owner->data();
  const size_t size = owner->size() * sizeof(float);
  return Share(std::move(owner), data, size);
}

Payload Payload::Own(std::string bytes) {
  auto owner = std::make_shared<const std::string>(std::move(bytes));
  const void* data = owner->data();
  const size_t size = owner->size();
  return Share(std::move(owner), data, size);
}

Payload Payload::Share(std::shared_ptr<const void> owner, const void* data, size_t size) {
  Payload payload;
  payload.owner_ = std::move(owner);
  payload.data_ = static_cast<const char*>(data);
  payload.size_ = size;
  return payload;
}

absl::Span<const float> Payload::floats() const {
  CHECK_EQ(size_ % sizeof(float), 0u);
  CHECK_EQ(reinterpret_cast<uintptr_t>(data_) % alignof(float), 0u);
  return {reinterpret_cast<const float*>(data_), size_ / sizeof(float)};
}

}  // namespace strata
