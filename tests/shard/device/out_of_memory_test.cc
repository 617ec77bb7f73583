#include "shard/device/out_of_memory.h"

#include <new>
#include <stdexcept>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using absl_testing::StatusIs;
using ::testing::HasSubstr;

TEST(FromLlamaException, MissingMemoryIsResourceExhausted) {
  EXPECT_THAT(FromLlamaException(std::bad_alloc()), StatusIs(absl::StatusCode::kResourceExhausted));
  for (const char* words :
       {"vk::Device::allocateMemory: ErrorOutOfDeviceMemory",
        "vk::Queue::submit: ErrorOutOfHostMemory", "CUDA error: out of memory",
        "mmap: Cannot allocate memory",
        "ggml_aligned_malloc: insufficient memory (attempted to allocate 19 MB)"}) {
    EXPECT_THAT(FromLlamaException(std::runtime_error(words)),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr(words)));
  }
}

TEST(FromLlamaException, OtherErrorsAreInternal) {
  EXPECT_THAT(FromLlamaException(std::runtime_error("vk::Queue::submit: ErrorDeviceLost")),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("ErrorDeviceLost")));
}

}  // namespace
}  // namespace strata
