// A pool of buffers that payloads are fetched into: a fresh megabyte from the system costs as much
// in page faults as to receive it. Part of links over UCX. Thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "transport/base/mutex.h"

namespace strata {

// Most memory that the pool keeps, and its largest buffer; other memory goes back to the system.
inline constexpr size_t kUcxKeptBytesMax = 64u << 20;
inline constexpr size_t kUcxKeptBufferBytesMax = 16u << 20;
// The best alignment for SIMD loads.
inline constexpr size_t kUcxBufferAlign = 64;

class UcxBuffers : public std::enable_shared_from_this<UcxBuffers> {
 public:
  static std::shared_ptr<UcxBuffers> Make() { return std::shared_ptr<UcxBuffers>(new UcxBuffers); }
  ~UcxBuffers();

  // At least `size` bytes, aligned; null when there is no memory. Its last owner returns it to the
  // pool, on any thread.
  std::shared_ptr<char> Get(size_t size);

 private:
  UcxBuffers() = default;
  void Return(char* bytes, size_t size);

  Mutex mu_;                                                        // taken last of all locks
  std::map<size_t, std::vector<char*>> kept_ ABSL_GUARDED_BY(mu_);  // by size, powers of two
  size_t kept_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace strata
