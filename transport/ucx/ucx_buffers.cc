#include "transport/ucx/ucx_buffers.h"

#include <bit>
#include <new>

namespace strata {
namespace {

void Free(char* bytes) { ::operator delete(bytes, std::align_val_t(kUcxBufferAlign)); }

}  // namespace

UcxBuffers::~UcxBuffers() {
  MutexLock lock(&mu_);
  for (auto& [size, buffers] : kept_) {
    for (char* bytes : buffers) Free(bytes);
  }
}

std::shared_ptr<char> UcxBuffers::Get(size_t size) {
  const bool keep = size <= kUcxKeptBufferBytesMax;
  if (keep) size = std::bit_ceil(size);
  char* bytes = nullptr;
  if (keep) {
    MutexLock lock(&mu_);
    std::vector<char*>& same = kept_[size];
    if (!same.empty()) {
      bytes = same.back();
      same.pop_back();
      kept_bytes_ -= size;
    }
  }
  if (bytes == nullptr) {
    bytes =
        static_cast<char*>(::operator new(size, std::align_val_t(kUcxBufferAlign), std::nothrow));
  }
  if (bytes == nullptr) return nullptr;
  if (!keep) return {bytes, Free};
  return {bytes, [pool = shared_from_this(), size](char* p) { pool->Return(p, size); }};
}

void UcxBuffers::Return(char* bytes, size_t size) {
  {
    MutexLock lock(&mu_);
    if (kept_bytes_ + size <= kUcxKeptBytesMax) {
      kept_[size].push_back(bytes);
      kept_bytes_ += size;
      return;
    }
  }
  Free(bytes);
}

}  // namespace strata
